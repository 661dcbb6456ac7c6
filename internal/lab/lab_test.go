package lab

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// GoBGP's servers end with the process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"),
		goleak.IgnoreAnyFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

// TestStart: a lab is whole when Start returns, and nothing runs after Close.
func TestStart(t *testing.T) {
	var logs testenv.SyncBuffer
	defer func() {
		if t.Failed() {
			t.Log(logs.String())
		}
	}()
	l, err := Start(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&logs, nil)),
		Failed: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range l.plan.switches() {
		c, err := l.reader(n)
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Read(t.Context())
		if err = errors.Join(err, l.lacks(t.Context(), n, c), c.Close()); err != nil {
			t.Fatal(err)
		}
		for x := range switchspec.Of[switchspec.Settings](s) {
			if x.ICRC != switchspec.ICRCNeutral {
				t.Errorf("agents choose %v for %s", x, n.Name)
			}
		}
	}
	if h := l.Host("h4"); h.Address != "10.2.0.12" || h.Switch != "torB" || filepath.Base(h.Socket) != "h4.sock" {
		t.Errorf("h4 is %+v", h)
	}
	key := grouptree.Key{Source: l.plan.Node("h1").Address, ID: 1 << 23}
	var out strings.Builder
	if err := l.Draw(t.Context(), &out, key); !errors.Is(err, grouptree.ErrNoGroup) {
		t.Errorf("drawing no group: %v, %s", err, &out)
	}
	if err := l.plan.free(); err == nil {
		t.Errorf("another lab could be in %v, too", l.plan.network)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.plan.free(); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// TestInterrupted: a lab that is stopped while it starts leaves nothing behind.
func TestInterrupted(t *testing.T) {
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		l, err := Start(ctx, Options{Dir: t.TempDir()})
		if cancel(); l != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: lab %v, error %v, want that of the context", after, l, err)
		}
	}
}

// TestTaken: where another process listens already, no lab is started.
func TestTaken(t *testing.T) {
	one, err := topology.Parse(racks, "racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(one)
	if err == nil {
		err = p.findNetwork()
	}
	if err != nil {
		t.Fatal(err)
	}
	torA := p.Node("torA")
	s, err := startSwitch(torA, p, Options{Logger: slog.New(slog.DiscardHandler), Port: asItIs})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := p.free(); err == nil || !strings.Contains(err.Error(), p.at(torA, p4runtimePort).String()) {
		t.Errorf("free: %v, want the address of P4Runtime", err)
	}
	if _, err := startSwitch(torA, p, Options{Logger: slog.New(slog.DiscardHandler), Port: asItIs}); err == nil || !strings.Contains(err.Error(), "torA") {
		t.Errorf("a second torA: %v", err)
	}
}

// TestTopology: a lab is as its topology file says, and one that cannot be a lab is refused.
func TestTopology(t *testing.T) {
	own, err := topology.Load("../../examples/twoswitches/fabric.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Start(t.Context(), Options{Dir: t.TempDir(), Topology: own, Failed: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	if h := l.Host("r2"); h.Address != "10.2.0.12" || h.Switch != "right" {
		t.Errorf("r2 is %+v", h)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	rate := func(at, to string) uint64 { // of one port
		if at == "left" && to == "right" {
			return math.MaxUint64
		}
		return 0
	}
	if _, err := Start(t.Context(), Options{Dir: t.TempDir(), Topology: own, Rate: rate}); err == nil || !strings.Contains(err.Error(), "switch left: ") || !strings.Contains(err.Error(), "rate") {
		t.Errorf("a rate that no port has: %v", err)
	}
	for want, text := range map[string]string{
		"the first address of":  "{name: h, address: 10.1.0.1}], links: [{a: {node: h}, b: {node: s, port: 1}}]",
		"link to another":       "{name: h, address: 10.1.0.2}], links: [{a: {node: h}, b: {node: s, port: 1}}]",
		"host h: want one link": "{name: h, address: 10.1.0.2}], links: []",
		"switch s has no":       "{name: h, address: 10.1.0.2}], links: [{a: {node: h}, b: {node: s, port: 1, address: 10.9.0.1}}]",
	} {
		sw := "{name: s, address: 10.255.0.1, prefixes: [10.1.0.0/24]}"
		if strings.HasPrefix(want, "switch") {
			sw = "{name: s, prefixes: [10.1.0.0/24]}"
		}
		if want == "link to another" {
			sw += ", {name: u, address: 10.255.0.2, prefixes: [10.2.0.0/24]}"
		}
		bad, err := topology.Parse([]byte("{switches: ["+sw+"], hosts: ["+text+"}"), "bad.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Start(t.Context(), Options{Dir: t.TempDir(), Topology: bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
