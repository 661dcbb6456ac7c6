package connmgr

import (
	"time"

	"github.com/mcrdma/mcrdma/internal/unixsock"
)

// keepSocket makes the socket for applications anew whenever it has been removed.
func (m *Manager) keepSocket() {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for said := ""; ; {
		select {
		case <-ticks.C:
		case <-m.life.Done():
			return
		}
		now := ""
		if err := m.renewSocket(); err != nil {
			now = err.Error()
		}
		if now != said && now != "" {
			m.log.Warn("applications cannot connect", "error", now)
		}
		said = now
	}
}

func (m *Manager) renewSocket() error {
	l, ok := m.apps.(*unixsock.Listener)
	if !ok {
		return nil
	}
	renewed, err := l.Renew()
	if renewed {
		m.log.Warn("the socket for applications was removed, and has been made anew", "socket", m.cfg.Socket)
	}
	return err
}
