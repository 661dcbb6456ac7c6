package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

// TestStepAside: while the daemon of a primary does not answer, another host is the primary, unless
// its copy is needed.
func TestStepAside(t *testing.T) {
	r := newRig(t, 3)
	r.must("volume create vol --size 16M --hosts h1,h2,h3 --min-size 2")
	r.must("volume create both --size 16M --hosts h1,h2 --min-size 2")
	primary := func(name string, copies int) string {
		var list []volumeView
		if err := json.Unmarshal([]byte(r.must("volume list -o json")), &list); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(v volumeView) bool { return v.Name == name })
		if len(list[i].Acting) < copies {
			return ""
		}
		return list[i].Primary
	}
	for name, copies := range map[string]int{"vol": 3, "both": 2} {
		r.until("all act", func() error {
			if primary(name, copies) == "" {
				return errors.New("they do not")
			}
			return nil
		})
		r.must("volume promote " + name + " h2")
	}
	cfg := r.hosts[1].cfg
	store, err := etcd.Dial(etcd.Config{Endpoints: cfg.EtcdClients(), Files: files(cfg)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	s := &server{cfg: cfg, log: slog.New(slog.DiscardHandler)}
	silent := func(want bool) {
		if err := s.silent.Load(); (err != nil) != want {
			t.Errorf("the daemon is silent: %v, want %v", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		s.stepAside(ctx, osdmap.New(store, osdmap.Options{}), time.Millisecond, func(context.Context) error {
			if asked++; asked == askTimes { // once in time
				silent(true)
				if now := primary("vol", 3); now != "h2" {
					t.Errorf("after %d questions %s is the primary", asked, now)
				}
				return nil
			}
			if asked == askTimes+1 {
				silent(false)
			}
			return errors.New("no answer")
		})
	}()
	r.until("another is the primary", func() error {
		if now := primary("vol", 3); now == "h2" || now == "" {
			return fmt.Errorf("it is %q", now)
		}
		return nil
	})
	cancel()
	<-ended
	if asked < 2*askTimes {
		t.Errorf("after %d questions another is the primary", asked)
	}
	if now := primary("both", 2); now != "h2" {
		t.Errorf("%q is the primary where the copy of h2 is needed", now)
	}
}
