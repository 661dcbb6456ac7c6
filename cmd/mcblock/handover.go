package main

import (
	"context"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// handing limits how long a host that ends makes others the primaries of its volumes.
const handing = 2 * time.Second

// How long this host's daemon may be away, as when it is restarted, before other hosts become the
// primaries: the daemons of other hosts keep this host's groups for longer than that.
const (
	askEvery = time.Second // also the limit for an answer
	askTimes = 6
)

// stepAside makes other acting hosts the primaries as long as this host's daemon does not answer.
// Without it this host forms no group, and the groups that it has end, while its leases are granted,
// so that no other host would take over. A volume that needs this host's copy stays.
func (s *server) stepAside(ctx context.Context, m *osdmap.Manager, every time.Duration, answers func(context.Context) error) {
	for failed := 0; ; {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, askEvery)
		err := answers(limited)
		cancel()
		if failed++; err == nil {
			failed = 0
			s.silent.Store(nil)
		}
		if failed == 2 { // a single answer may be late
			s.silent.Store(&err)
		}
		if failed == askTimes {
			s.log.Error("this host's cmd-daemon does not answer: other hosts become the primaries of its volumes", "error", err)
		}
		if failed >= askTimes {
			s.handOver(m, func(v *osdmap.VolumeState) bool { return len(v.Map.Acting) > v.Map.MinSize })
		}
	}
}

// handOver makes other acting hosts the primaries of those volumes of which this host is. Their
// clients would otherwise wait until its leases have ended.
func (s *server) handOver(m *osdmap.Manager, those func(*osdmap.VolumeState) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), handing)
	defer cancel()
	o := replica.NewOperator(replica.OperatorConfig{Manager: m, Files: files(s.cfg), Name: s.cfg.Name, Timeout: handing, Log: s.log})
	defer o.Close()
	state, err := m.Read(ctx)
	if err != nil {
		s.log.Warn("no volume is handed over", "error", err)
		return
	}
	for _, v := range state.Volumes {
		if !those(&v) {
			continue
		}
		switch by, err := o.Relieve(ctx, &v, core.ID(s.cfg.ID)); {
		case err != nil:
			s.log.Warn("the volume is not handed over", "volume", v.Volume.Name, "error", err)
		case by != 0:
			s.log.Info("another host is the primary", "volume", v.Volume.Name, "primary", state.HostName(by))
		}
	}
}
