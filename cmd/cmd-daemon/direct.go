package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/internal/switchagent"
	agentconfig "github.com/mcrdma/mcrdma/internal/switchagent/config"
)

// loadDirect reads the configuration of the agent of the host's switch, which runs inside the
// daemon. The daemon uses it by gRPC like any other; for the agent this host is like any other. If
// the daemon's configuration also names a switch, it must be the same.
func loadDirect(cfg *config.Config) (*agentconfig.Config, error) {
	own, err := agentconfig.Load(cfg.Direct)
	if err != nil {
		return nil, err
	}
	if cfg.Switch.Name != "" && cfg.Switch.Name != own.Name {
		return nil, fmt.Errorf("%s is the configuration of switch %s, and \"switch\" is %s: leave \"switch\" out", cfg.Direct, own.Name, cfg.Switch.Name)
	}
	if plain := own.TLS == (agentconfig.TLS{}); plain != (cfg.TLS == config.TLS{}) {
		return nil, fmt.Errorf("%s has %s, and the daemon %s: give both certificates, or neither", cfg.Direct,
			cli.Either(plain, "no tls", "tls"), cli.Either(plain, "has", "has not"))
	}
	cfg.Switch = config.Switch{Name: own.Name, Agent: own.Listen}
	return own, nil
}

// startDirect starts the agent, which runs until life ends; if it ends before, it ends life.
// wait waits for its end.
func startDirect(life context.Context, fail context.CancelCauseFunc, cfg *agentconfig.Config, log *slog.Logger) (address string, wait func(), err error) {
	a, err := switchagent.New(life, cfg, switchagent.Options{Logger: log.With("agent", cfg.Name), Version: cli.Version(), Busy: new(hostload.Meter).Busy})
	if err != nil {
		return "", func() {}, fmt.Errorf("agent of switch %s: %w", cfg.Name, err)
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		if err := a.Run(life); err != nil {
			log.Error("the agent has ended", "switch", cfg.Name, "error", err)
			fail(fmt.Errorf("agent of switch %s: %w", cfg.Name, err))
		}
	}()
	return reachable(a.Addr()), func() { <-ran }, nil
}

// reachable returns the address to connect to for a listening address.
func reachable(a net.Addr) string {
	if p, err := netip.ParseAddrPort(a.String()); err == nil && p.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), p.Port()).String()
	}
	return a.String()
}
