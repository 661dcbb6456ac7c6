package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/embedded"
)

// Times for waitFor.
const (
	firstSaid = time.Second // shorter waits are not reported
	rarely    = time.Minute
)

// waitFor reports what it waits for: after a second, and then at intervals that grow to a minute.
func waitFor(ctx context.Context, log *slog.Logger, there func() bool, what func(context.Context) string) {
	for pause := firstSaid; ; pause = min(2*pause, rarely) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		if there() {
			return
		}
		if text := what(ctx); ctx.Err() == nil {
			log.Warn("waiting for " + text)
		}
	}
}

// joined reports whether the member of etcd that runs here, if any, is in its cluster.
func (s *server) joined() bool {
	if s.member == nil {
		return true
	}
	select {
	case <-s.member.Ready():
		return true
	default:
		return false
	}
}

// etcdWaits returns why etcd is not ready, or does not accept this host: unknown.
func (s *server) etcdWaits(ctx context.Context, unknown error) string {
	if errors.Is(unknown, osdmap.ErrExists) {
		return fmt.Sprintf("another name or id in %s's mcblock.yaml: %v", s.cfg.Name, unknown)
	}
	if s.member != nil {
		if text := memberTrouble(s.cfg, s.member.Trouble()); text != "" {
			return "etcd: " + text
		}
	}
	return etcdSilent(ctx, s.cfg)
}

// etcdSilent returns which parts of etcd do not answer.
func etcdSilent(ctx context.Context, cfg *config.Config) string {
	at := map[string]string{}
	for _, e := range cfg.Etcd.Endpoints {
		at[e] = e
	}
	for _, m := range cfg.Etcd.Members {
		if m.Name != cfg.Name { // this one has no clients before the others are ready
			at[m.Name] = m.Peer
		}
	}
	silent := unconnected(ctx, at, firstSaid)
	if len(silent) == 0 {
		return "etcd: its members can be reached, and it has not answered yet: if this lasts, see what their logs say of certificates and of members"
	}
	return fmt.Sprintf("etcd: %s %s not answer: start mcblock (or etcd) there", strings.Join(silent, ", "), cli.Either(len(silent) == 1, "does", "do"))
}

// memberTrouble returns what is wrong with this host's member of etcd, and what to do; "": nothing
// known.
func memberTrouble(cfg *config.Config, err error) string {
	dir := filepath.Join(cfg.Data, "etcd")
	switch {
	case errors.Is(err, embedded.ErrRemoved):
		return fmt.Sprintf("%v (mcblock etcd replace): take %s out of etcd.members in its configuration, and start it again. To have it back as a member: mcblock etcd add, join: true, and remove %s", err, cfg.Name, dir)
	case errors.Is(err, embedded.ErrOtherCluster):
		return fmt.Sprintf("%v: where it takes the place of a lost one, set join: true under etcd, remove %s, and start it again; else see that etcd.members is the same on all hosts", err, dir)
	case errors.Is(err, embedded.ErrReplaced):
		return fmt.Sprintf("%v (mcblock etcd replace, or add): set join: true under etcd, remove %s, and start it again", err, dir)
	case errors.Is(err, embedded.ErrForeign):
		return fmt.Sprintf("%v: put this host's own %s back; if only the name in mcblock.yaml has changed, give it the one before; or, if the data is lost: remove %s, on another host mcblock etcd replace NAME %s=HOST:PORT with the name that mcblock etcd members has for it, here join: true under etcd, and start it again",
			err, dir, dir, cfg.Name)
	case errors.Is(err, embedded.ErrLost):
		return fmt.Sprintf("%v: put %s back; or, if it is lost: on another host mcblock etcd replace %s %s=HOST:PORT, here join: true under etcd, and start it again", err, dir, cfg.Name, cfg.Name)
	}
	return ""
}

// unconnected returns the names of members that accept no connection within a limit, by their addresses.
func unconnected(ctx context.Context, at map[string]string, limit time.Duration) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name, address := range at {
		wg.Go(func() {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				_ = conn.Close()
				return
			}
			mu.Lock()
			defer mu.Unlock()
			names = append(names, name)
		})
	}
	wg.Wait()
	slices.Sort(names)
	return names
}
