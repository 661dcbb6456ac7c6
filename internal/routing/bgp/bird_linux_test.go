package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/bird"
)

// BIRD, an independent speaker, exchanges routes with us both ways.
func TestNamespaceBIRD(t *testing.T) { bird.InNamespace(t, withBIRD) }

// BIRD keeps our routes while we restart, and we keep those of BIRD.
func TestNamespaceBIRDRestartWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, unlocked)
	bird.InNamespace(t, restartWithBIRD)
}

func withBIRD(t *testing.T) {
	dir := t.TempDir()
	end := bird.Start(t, dir, bird.Conf)
	us := netip.MustParseAddr("192.0.2.1")
	s, err := Open(t.Context(), Config{ASN: 65001, RouterID: us, Listen: []netip.Addr{us}, ListenPort: 1790})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Announce(t.Context(), netip.MustParsePrefix("10.1.0.0/24")); err != nil {
		t.Fatal(err)
	}
	peer := Peer{Addr: netip.MustParseAddr("192.0.2.2"), ASN: 65002, Port: 1790, Local: us, Hops: 2, NextHop: netip.MustParseAddr("10.0.0.0")}
	if err := s.AddPeer(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "10.7.0.1", "{192.0.2.2}")
	becomes(t, s, "10.8.0.1", "{192.0.2.2}")

	var shown string
	shows := func(want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("our prefix at BIRD: %v", want), func() bool {
			shown = bird.Ask(t, dir, "show", "route", "protocol", "ours", "all")
			return strings.Contains(shown, "10.1.0.0/24") == want
		})
	}
	shows(true)
	for _, want := range []string{"BGP.next_hop: 10.0.0.0", "BGP.as_path: 65001"} {
		if !strings.Contains(shown, want) {
			t.Errorf("BIRD does not show %q:\n%s", want, shown)
		}
	}
	if err := s.Withdraw(t.Context(), netip.MustParsePrefix("10.1.0.0/24")); err != nil {
		t.Fatal(err)
	}
	shows(false)
	end() // without a NOTIFICATION
	becomes(t, s, "10.7.0.1", "nothing")
}

// eventually polls BIRD.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.After(20 * time.Second); !cond(); {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func restartWithBIRD(t *testing.T) {
	dir := t.TempDir()
	const routesOnce = "protocol static { ipv4; route 10.7.0.0/24 blackhole; }"
	restarting := strings.Replace(bird.Conf, "multihop 2;", "multihop 2; graceful restart on;", 1)
	end := bird.Start(t, dir, restarting)
	us := netip.MustParseAddr("192.0.2.1")
	peer := Peer{Addr: netip.MustParseAddr("192.0.2.2"), ASN: 65002, Port: 1790, Local: us, Hops: 2}
	open := func(list ...string) *Source {
		t.Helper()
		s, err := Open(t.Context(), Config{ASN: 65001, RouterID: us, Listen: []netip.Addr{us}, ListenPort: 1790, Restart: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if err := s.Announce(t.Context(), netip.MustParsePrefix(p)); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	// has says which of our prefixes BIRD has.
	has := func() (both, first bool) {
		out := bird.Ask(t, dir, "show", "route", "protocol", "ours")
		first = strings.Contains(out, "10.1.0.0/24")
		return first && strings.Contains(out, "10.2.0.0/24"), first
	}
	s := open("10.1.0.0/24", "10.2.0.0/24")
	if err := s.AddPeer(t.Context(), peer); err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "10.7.0.1", "{192.0.2.2}")
	eventually(t, "BIRD has our prefixes", func() bool { both, _ := has(); return both })
	if err := s.Suspend(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "BIRD sees the session end", func() bool {
		return !strings.Contains(bird.Ask(t, dir, "show", "protocols", "ours"), "Established")
	})
	for range 50 {
		if both, _ := has(); !both {
			t.Fatal("BIRD does not wait")
		}
	}
	s = open("10.1.0.0/24")
	defer func() { _ = s.Close() }()
	resumed := make(chan error, 1)
	go func() { resumed <- s.Resume(t.Context(), []Peer{peer}) }()
	eventually(t, "BIRD drops the prefix that is no longer announced, and only that", func() bool {
		both, first := has()
		if !first {
			t.Fatal("a prefix was gone that is announced again")
		}
		return !both
	})
	if err := <-resumed; err != nil {
		t.Fatal(err)
	}
	becomes(t, s, "10.7.0.1", "{192.0.2.2}")
	becomes(t, s, "10.8.0.1", "{192.0.2.2}")
	if out := bird.Ask(t, dir, "show", "protocols", "all", "ours"); !strings.Contains(out, "AF preserved: ipv4") {
		t.Errorf("BIRD has not heard that packets went on:\n%s", out)
	}

	// The other way around.
	log := record(t, s)
	end()
	session(t, s, peer.Addr, false)
	stays(t, log, time.Second)
	end = bird.Start(t, dir, strings.Replace(restarting, bird.Static, routesOnce, 1), "-R")
	becomes(t, s, "10.8.0.1", "nothing")
	log.want(t, "10.8.0.0/24 gone")
	end()
	session(t, s, peer.Addr, false)
	log.want(t, "10.8.0.0/24 gone")
	// It is back, and knows of no restart.
	bird.Start(t, dir, strings.Replace(strings.Replace(restarting, bird.Static, "", 1), "restart on", "restart off", 1))
	becomes(t, s, "10.7.0.1", "nothing")
	eventually(t, "BIRD has our prefix again", func() bool { _, first := has(); return first })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "BIRD drops what has left", func() bool { _, first := has(); return !first })
}
