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

// handOver makes other acting hosts the primaries of the volumes of which this host is. Their clients
// would otherwise wait until its leases have ended.
func (s *server) handOver(m *osdmap.Manager) {
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
		switch by, err := o.Relieve(ctx, &v, core.ID(s.cfg.ID)); {
		case err != nil:
			s.log.Warn("the volume is not handed over", "volume", v.Volume.Name, "error", err)
		case by != 0:
			s.log.Info("another host is the primary", "volume", v.Volume.Name, "primary", state.HostName(by))
		}
	}
}
