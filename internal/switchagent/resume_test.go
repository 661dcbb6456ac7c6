package switchagent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/routing/bgp"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

// A noted speaker records the calls to it.
type noted struct {
	routing.Table
	mu     sync.Mutex
	calls  []string
	resume func(ctx context.Context)
}

func (n *noted) note(what string, a netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, what+" "+a.String())
	return nil
}

func (n *noted) has(call string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.calls, call)
}

func (n *noted) Announce(context.Context, netip.Prefix) error     { return nil }
func (n *noted) AddPeer(_ context.Context, p bgp.Peer) error      { return n.note("add", p.Addr) }
func (n *noted) RemovePeer(_ context.Context, a netip.Addr) error { return n.note("remove", a) }
func (n *noted) Suspend() error                                   { n.calls = append(n.calls, "suspend"); return nil }
func (n *noted) Neighbors(context.Context) ([]bgp.Neighbor, error) {
	return []bgp.Neighbor{{Addr: netip.AddrFrom4([4]byte{192, 0, 2, 2}), State: bgp.Established}}, nil
}
func (n *noted) Close() error { n.calls = append(n.calls, "close"); return nil }
func (n *noted) Resume(ctx context.Context, peers []bgp.Peer) (err error) {
	slices.SortFunc(peers, func(a, b bgp.Peer) int { return a.Addr.Compare(b.Addr) })
	for _, p := range peers {
		_ = n.note("resume", p.Addr)
	}
	n.resume(ctx)
	return nil
}

// lookAgain is how often the speaker checks which peers it waits for, and not just
// when a session is given up.
const lookAgain = 70 * time.Millisecond

// neighbors are two with links that are watched.
func neighbors(hold time.Duration) *config.Config {
	c := &config.Config{Restart: config.Restart{Hold: hold}}
	for i, name := range []string{"a", "b"} {
		c.Ports = append(c.Ports, config.Port{Port: uint16(i + 1), To: name, Hello: true})
		c.Switches = append(c.Switches, config.Switch{Name: name, BGP: &config.Peer{Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}})
	}
	return c
}

// TestNeighborsOfConfiguration: the neighbors are those of the configuration, by name;
// those without a session are reported as without a link.
func TestNeighborsOfConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &sessions{source: &noted{}, peers: map[string]bgp.Peer{}}
		for _, s := range neighbors(0).Switches {
			n.peers[s.Name] = bgp.Peer{Addr: s.BGP.Address, ASN: 7}
		}
		list, err := n.neighbors(t.Context())
		if err != nil || len(list) != 2 || list[0].name != "a" || list[0].State != noLink || list[0].ASN != 7 || list[1].State != bgp.Established {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

// Which sessions are opened, and when, after a start.
func TestSessionsAfterStart(t *testing.T) {
	for _, c := range []struct {
		name     string
		hold     time.Duration
		forwards bool
		want     string
		known    time.Duration // since the switch was found
	}{
		// As links come up.
		{"no restart", 0, true, "add 192.0.2.1, close", 0},
		{"new switch", time.Minute, false, "add 192.0.2.1, suspend", 0},
		// All at once; a neighbor that turns out to be absent is not waited for, and comes later.
		{"restart", time.Minute, true, "resume 192.0.2.1, resume 192.0.2.2, remove 192.0.2.2, suspend", 3010 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &noted{}
				s.resume = func(context.Context) { // until no peer is left to wait for
					for d := time.Duration(0); d < time.Minute && !s.has("remove 192.0.2.2"); d += lookAgain {
						time.Sleep(lookAgain)
					}
				}
				adopted := make(chan struct{})
				r, err := openBGP(t.Context(), neighbors(c.hold), &start{adopted: adopted, forwards: c.forwards},
					func(context.Context, bgp.Config) (Speaker, error) { return s, nil }, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				r.link(1, "a", true)
				synctest.Wait()
				if c.hold > 0 && len(s.calls) > 0 {
					t.Errorf("before the switch was found: %q", s.calls)
				}
				close(adopted)
				begun := time.Now()
				<-r.known
				if d := time.Since(begun); d != c.known {
					t.Errorf("routes are known after %v, want %v", d, c.known)
				}
				synctest.Wait()
				if err := r.end(c.hold > 0); err != nil {
					t.Error(err)
				}
				if got := strings.Join(s.calls, ", "); got != c.want {
					t.Errorf("calls: %s\nwant:  %s", got, c.want)
				}
			})
		})
	}
}

// The end does not wait for what a restart waits for.
func TestSessionsEndWhileResuming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &noted{resume: func(ctx context.Context) { <-ctx.Done() }}
		adopted := make(chan struct{})
		r, err := openBGP(t.Context(), neighbors(time.Minute), &start{adopted: adopted, forwards: true},
			func(context.Context, bgp.Config) (Speaker, error) { return s, nil }, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		close(adopted)
		time.Sleep(time.Second)
		begun := time.Now()
		if err := r.end(false); err != nil || time.Since(begun) > 0 {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if got, want := strings.Join(s.calls, ", "), "resume 192.0.2.1, resume 192.0.2.2, close"; got != want {
			t.Errorf("calls: %s\nwant:  %s", got, want)
		}
	})
}
