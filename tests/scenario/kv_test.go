package scenario

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/examples/kv/store"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// TestKV: a backup of examples/kv is killed while writers put entries, some with keys of their own
// and some with common keys; it comes back, is caught up meanwhile, and at the end all stores are
// equal.
func TestKV(t *testing.T) {
	everywhere(t, []story{{"a backup of a store is killed", storeKeeps}, {"a backup cannot be caught up at once", storeRetries},
		{"the only backup ends and comes back", storeWaits}})
}

// storeWaits: without its only backup the store waits, and continues when it is back.
func storeWaits(l *lab, cfg mcrdma.GroupConfig) {
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	only := l.others()[0]
	a := only.run()
	_, err := store.NewBackup(ctx, a.client)
	l.must(err)
	cfg.WaitForMinSize = true
	p, err := store.NewPrimary(ctx, l.hosts[0].run().client, cfg, only.name)
	l.must(err)
	l.must(p.Put(ctx, "before", "value"))
	var kept sync.WaitGroup
	kept.Go(func() { p.Keep(ctx) })
	a.kill()
	b, err := store.NewBackup(ctx, only.run().client)
	l.must(err)
	l.must(p.Put(ctx, "after", "value"))
	for len(b.All()) < 2 && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
	if !maps.Equal(b.All(), p.All()) {
		l.t.Errorf("the backup has %v, and not %v", b.All(), p.All())
	}
	cancel()
	kept.Wait()
	l.must(p.Close(l.t.Context()))
}

func storeKeeps(l *lab, cfg mcrdma.GroupConfig) {
	ctx, cancel := context.WithCancel(l.t.Context())
	backups := map[*host]*store.Backup{}
	start := func(h *host) *app {
		a := h.run()
		b, err := store.NewBackup(ctx, a.client)
		l.must(err)
		backups[h] = b
		return a
	}
	var victim *app
	var names []string
	for _, h := range l.others() {
		victim = start(h)
		names = append(names, h.name)
	}
	p, err := store.NewPrimary(ctx, l.hosts[0].run().client, cfg, names...)
	l.must(err)
	var wg, writers sync.WaitGroup
	wg.Go(func() { p.Keep(ctx) })
	stop := make(chan struct{})
	for w := range 4 {
		writers.Go(func() {
			for n := 0; ; n++ {
				for _, key := range []string{fmt.Sprint(w, " ", n), fmt.Sprint("shared ", n%5), fmt.Sprint("few ", w, n/5)} {
					if err := p.Put(ctx, key, fmt.Sprint(w, " ", n)); err != nil {
						l.t.Errorf("writer %d, entry %d: %v", w, n, err)
						return
					}
				}
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	until := func(what string, f func() bool) {
		l.t.Helper()
		for range 600 {
			if f() {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		l.t.Errorf("not within a minute: %s", what)
	}
	grows := func() {
		l.t.Helper()
		n := len(p.All())
		until("entries", func() bool { return len(p.All()) > n+100 })
	}
	same := func(b *store.Backup) bool { return maps.Equal(b.All(), p.All()) }
	grows()
	victim.kill()
	grows()
	before := len(p.All())
	start(victim.h)
	b := backups[victim.h]
	until("it is caught up", func() bool { return len(b.All()) >= before })
	grows()
	close(stop)
	writers.Wait()
	for h, b := range backups {
		until(h.name+" has the same", func() bool { return same(b) })
	}
	cancel()
	wg.Wait()
	l.must(p.Close(l.t.Context()))
}

// storeRetries: a backup accepts no entry for a while, and the connection for catching up is lost
// meanwhile. It gets all missing entries when it accepts them again.
func storeRetries(l *lab, cfg mcrdma.GroupConfig) {
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	var last *app
	var names []string
	for _, h := range l.others() {
		last = h.run()
		_, err := store.NewBackup(ctx, last.client)
		l.must(err)
		names = append(names, h.name)
	}
	p, err := store.NewPrimary(ctx, l.hosts[0].run().client, cfg, names...)
	l.must(err)
	last.kill()
	const entries = 40
	for n := range entries {
		l.must(p.Put(ctx, fmt.Sprint(n), "value"))
	}
	var kept sync.WaitGroup
	kept.Go(func() { p.Keep(ctx) })
	a := last.h.run()
	a.l, err = a.client.Listen(ctx, mcrdma.ListenConfig{Service: "kv", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) { return &mcrdma.Grant{}, nil }})
	l.must(err)
	a.accept()
	time.Sleep(5 * time.Second)
	l.net.Break(a.h.appProcess(), l.hosts[0].appProcess())
	late, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	for got := map[string]bool{}; len(got) < entries; {
		r, err := a.m.Recv(late)
		l.must(err)
		got[string(r.Bytes())] = r.Unicast
	}
	cancel()
	kept.Wait()
	l.must(p.Close(l.t.Context()))
}
