package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// TestKnownHosts: a volume is created on hosts that have just started; if one of them never does,
// the command says so after a while.
func TestKnownHosts(t *testing.T) {
	const never = time.Hour
	for _, c := range []struct {
		names  string
		h1, h2 time.Duration // until the host is known
		hosts  int
		took   time.Duration
		says   string
	}{
		{"", 0, never, 1, 0, ""},
		{"", 300 * time.Millisecond, never, 1, 400 * time.Millisecond, ""},
		{"", 2 * time.Second, never, 1, 2 * time.Second, "a host to run"},
		{"", never, never, 0, startTime, "a host to run"},
		{"h1 h2", 0, 300 * time.Millisecond, 2, 400 * time.Millisecond, ""},
		{"h1 h2", 0, 2 * time.Second, 2, 2 * time.Second, "waiting for h2 to run"},
		{"h1 h2", never, 0, 1, startTime, "waiting for h1 to run"},
		{"h1", 0, never, 1, 0, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			var stderr bytes.Buffer
			s, err := knownHosts(t.Context(), func(context.Context) (s osdmap.State, err error) {
				for name, after := range map[string]time.Duration{"h1": c.h1, "h2": c.h2} {
					if time.Since(begun) >= after {
						s.Hosts = append(s.Hosts, osdmap.Host{Name: name})
					}
				}
				return s, nil
			}, strings.Fields(c.names), &stderr)
			if err != nil || len(s.Hosts) != c.hosts || time.Since(begun) != c.took || (stderr.Len() > 0) != (c.says != "") || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("%q, known after %v and %v: %d hosts after %v, %v; said %q", c.names, c.h1, c.h2, len(s.Hosts), time.Since(begun), err, stderr.String())
			}
		})
	}
	broken := errors.New("broken")
	if _, err := knownHosts(t.Context(), func(context.Context) (osdmap.State, error) { return osdmap.State{}, broken }, nil, nil); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// TestWithoutHosts: by default, a volume is not created as long as a host of the configuration is
// not known, because it would have a copy too few.
func TestWithoutHosts(t *testing.T) {
	cfg := &config.Config{}
	cfg.Etcd.Members = []config.Member{{Name: "h1"}, {Name: "h2"}, {Name: "h3"}}
	s := &osdmap.State{Hosts: []osdmap.Host{{ID: 1, Name: "h1"}, {ID: 3, Name: "h3"}}}
	o := createOptions{size: 1 << 20, block: 4096}
	if _, _, err := o.volume(s, "vol", o.wanted(cfg)); err == nil || !strings.Contains(err.Error(), "h2 never ran") {
		t.Error(err)
	}
	s.Hosts = append(s.Hosts, osdmap.Host{ID: 2, Name: "h2"})
	if v, minSize, err := o.volume(s, "vol", o.wanted(cfg)); err != nil || len(v.Hosts) != 3 || minSize != 2 {
		t.Errorf("%v, min_size %d, %v", v.Hosts, minSize, err)
	}
}

// TestEndedBackfill: of a copy that has ended before it was complete, the reason is shown, and not how much was copied.
func TestEndedBackfill(t *testing.T) {
	var b bytes.Buffer
	if err := writeParts(&b, new(cli.Output), []partView{{Host: "h3", Backfilling: true, Copied: 512, Error: "the disk is full"}}); err != nil || !strings.Contains(b.String(), "the disk is full") {
		t.Error(err, b.String())
	}
	b.Reset()
	if err := writeParts(&b, new(cli.Output), []partView{{Host: "h3", Backfilling: true, Copied: 512}}); err != nil || !strings.Contains(b.String(), "512 bytes copied") {
		t.Error(err, b.String())
	}
}
