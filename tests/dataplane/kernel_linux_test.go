package dataplane

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/softswitch/fastpath"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// An onKernel switch has the kernel process what it can, at real ports; all else is the pipeline's.
type onKernel struct {
	testing.TB
	*Switch
	wires *Wires
	fast  *fastpath.Fast
}

// newOnKernel puts the fast path at wires for all hosts of a rack.
func newOnKernel(t testing.TB) *onKernel {
	l := &onKernel{TB: t, wires: NewWires(t, RackHosts, xdpPass)}
	start := time.Now()
	c := fastpath.Config{Now: func() time.Duration { return time.Since(start) }, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for n, index := range l.wires.Ports {
		name := fmt.Sprintf("s%d", n)
		c.Ports = append(c.Ports, fastpath.Port{Number: uint16(n), Name: name, Index: int(index)}) //nolint:gosec // few
	}
	var err error
	if l.fast, err = fastpath.New(c); err != nil {
		testenv.Skip(t, "%v", err)
	}
	t.Cleanup(func() {
		if err := l.fast.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

const xdpPass = 2

// with gives it the tables of another.
func (l *onKernel) with(t testing.TB, s *Switch) {
	l.TB, l.Switch = t, s
	l.fast.Loaded(s.Pipeline, s.PRE)
	s.Through = l.send
}

// send has a host send a frame, and waits until it is known what became of it.
func (l *onKernel) send(port uint16, frame []byte) []Frame {
	l.Helper()
	l.fast.Changed()
	if len(frame) > WireMTU+14 || port > RackHosts {
		return l.Alone(port, frame)
	}
	before := l.fast.Stats()
	l.wires.Send(l, int(port), frame)
	for end := time.Now().Add(30 * time.Second); ; {
		if f := l.wires.Climbs(int(port), unix.MSG_DONTWAIT); f != nil {
			if l.fast.Mine(f) {
				l.Fatal("an answer climbs")
			}
			return l.Alone(port, f)
		}
		now := l.fast.Stats()
		left := now.Routed - before.Routed + now.Answers - before.Answers
		lost := now.Dropped - before.Dropped
		copies := now.Copies - before.Copies
		switch {
		case now.Requests > before.Requests && copies+lost == uint64(l.copies(frame)):
			return l.receive(int(copies)) //nolint:gosec // few
		case now.Requests == before.Requests && left+lost > 0:
			return l.receive(int(left)) //nolint:gosec // few
		case time.Now().After(end):
			l.Fatalf("nothing becomes of % x: %+v, before %+v", frame, now, before)
		}
	}
}

// copies is how many copies the group of a request has.
func (l *onKernel) copies(frame []byte) int {
	word := func(at, n int) (v uint64) {
		for _, b := range frame[at : at+n] {
			v = v<<8 | uint64(b)
		}
		return v
	}
	e := l.Table("ingress.replication.groups").Exactly(word(26, 4), word(47, 3), word(30, 4))
	return len(l.PRE.Group(uint16(e.Call.Args[1].Uint()))) //nolint:gosec // 16 bits
}

// receive is what n hosts receive.
func (l *onKernel) receive(n int) (out []Frame) {
	l.Helper()
	for end := time.Now().Add(30 * time.Second); len(out) < n; {
		for host := range l.wires.hosts {
			for f := l.wires.Next(host, unix.MSG_DONTWAIT); f != nil; f = l.wires.Next(host, unix.MSG_DONTWAIT) {
				out = append(out, Frame{uint16(host), f}) //nolint:gosec // few
			}
		}
		if time.Now().After(end) {
			l.Fatalf("%d frames of %d", len(out), n)
		}
	}
	slices.SortFunc(out, func(a, b Frame) int { return cmp.Compare(a.Port, b.Port) })
	return out
}

// beneath, if it is not nil, is given each rack that a test makes.
var beneath func(testing.TB, *Switch)

// TestVethKernel: the tests of this package, with the kernel as the data plane.
func TestVethKernel(t *testing.T) {
	l := newOnKernel(t)
	handled := fastpath.Stats{}
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"TestCopies", TestCopies}, {"TestMergedAnswer", TestMergedAnswer}, {"TestCapturesPass", TestCapturesPass}, {"TestBadICRC", TestBadICRC},
		{"TestGuardReads", TestGuardReads}, {"TestCutShort", TestCutShort}, {"TestBypass", TestBypass}, {"TestRequestsOfMembers", TestRequestsOfMembers}, {"TestLiar", TestLiar},
		{"TestNeutral", TestNeutral}, {"TestNeutralFlow", TestNeutralFlow}, {"TestNeutralBranch", TestNeutralBranch},
		{"TestNeutralDamaged", TestNeutralDamaged}, {"TestNeutralComputesAnew", TestNeutralComputesAnew}, {"TestNeutralAnswers", TestNeutralAnswers},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.wires.Enter(t)
			beneath = l.with
			defer func() { beneath = nil }()
			c.test(t)
			handled = l.fast.Stats()
			t.Logf("%+v; %s", handled, l.fast.Status())
		})
	}
	if f := flag.Lookup("test.run"); f != nil && strings.Contains(f.Value.String(), "/") {
		return // of a part
	}
	if handled.Routed == 0 || handled.Requests == 0 || handled.Answers == 0 || handled.Copies != 3*handled.Requests || handled.Updates+handled.Strays != 0 {
		t.Errorf("%+v", handled)
	}
}
