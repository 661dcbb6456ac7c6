package p4rt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// inspect: a reader sees the program and its entries, and needs no session.
func inspect(t *testing.T, target string) {
	c := client(t, Config{Target: target})
	s := open(t, c)
	if err := s.WaitPrimary(within(t)); err != nil {
		t.Fatal(err)
	}
	if p, err := c.Program(within(t)); p != nil || err != nil {
		t.Fatalf("a switch without a program: %v, %v", p, err)
	}
	if _, err := s.EnsurePipeline(within(t)); err != nil {
		t.Fatal(err)
	}
	want := everything(t)
	if err := s.Apply(within(t), switchspec.Diff(&switchspec.State{}, want)); err != nil {
		t.Fatal(err)
	}
	s.Close()

	own, err := OwnProgram()
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Program(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if d := got.Differences(own); d != nil || got.Source != own.Source || !strings.HasSuffix(own.Source, "mcrdma.p4") {
		t.Errorf("%v; compiled from %q and %q", d, got.Source, own.Source)
	}
	if have, err := c.Read(within(t)); err != nil || !have.Equal(want) {
		t.Errorf("read back %v, %v", have, err)
	}
	use, groups, replicas, err := c.Use(within(t), got)
	if err != nil {
		t.Fatal(err)
	}
	if groups != 2 || replicas != 7 || use["ingress.unicast.routes"] != 4 || use["egress.rewrite.replicas"] != 4 ||
		use["ingress.unicast.ecmp_groups"] != 1 || use["ingress.settings"] != 0 {
		t.Errorf("%d groups, %d replicas, %v", groups, replicas, use)
	}
}

func TestInspect(t *testing.T) { inspect(t, embedded(t).target) }

func TestInspectBMv2(t *testing.T) { inspect(t, real(t)) }

func TestDifferences(t *testing.T) {
	own, err := OwnProgram()
	if err != nil {
		t.Fatal(err)
	}
	for i, spoil := range []func(p *Program){
		func(p *Program) { p.Cookie++ },
		func(p *Program) { p.JSON = append([]byte(" "), p.JSON...) },
		func(p *Program) { p.info.Tables = p.info.Tables[1:] },
	} {
		other := *own
		other.info = proto.CloneOf(own.info)
		spoil(&other)
		if d := other.Differences(own); len(d) != 1 {
			t.Errorf("%d: %v", i, d)
		}
	}
	silent := &Program{info: own.info}
	if d := silent.Differences(own); d != nil {
		t.Errorf("a switch that keeps neither cookie nor JSON: %v", d)
	}
	if size := own.Sizes(); size["egress.rewrite.regions"] != 65536 {
		t.Errorf("%v", size)
	}
}

// TestSaid: the switch says where it processes packets, and what is wrong with its ports, if it has anything to say.
func TestSaid(t *testing.T) {
	r := embedded(t)
	says := func(want string, problems ...Problem) {
		t.Helper()
		s := open(t, client(t, Config{Target: r.target}))
		defer s.Close()
		if got := s.Said(); got.FastPath != want || !slices.Equal(got.Problems, problems) {
			t.Errorf("%q; expected %q, %q", got, want, problems)
		}
	}
	says("")
	other, err := softswitch.New(softswitch.Config{CPUPort: bmv2.CPUPort - 1})
	if err != nil {
		t.Fatal(err)
	}
	d := embeddedWith(t, "127.0.0.1:0", other)
	s := open(t, client(t, Config{Target: d.target}))
	if p := s.Said().Problems; len(p) == 0 || p[0].Remedy != "start the switch with --cpu-port 510" {
		t.Errorf("of another CPU port it says %q", p)
	}
	r.sw.Accelerate(softswitch.NoFastPath("it is\na test"))
	says("off: it is; a test")
	for n := range uint16(2) {
		near, far := memnet.Pair(fmt.Sprint("sw", n), fmt.Sprint("host", n))
		if err := errors.Join(r.sw.Attach(100+n, near), far.Close()); err != nil {
			t.Fatal(err)
		}
	}
	says("off: it is; a test",
		Problem{"port 100, sw0, is down or has no link", "set it and its other end up"}, Problem{"port 101, sw1, is down or has no link", "set it and its other end up"})
}
