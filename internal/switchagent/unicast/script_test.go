package unicast

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// TestScripts runs testdata/scripts. Addresses and ports of next hops are written
// address@port; MACs by their last byte. "new" describes the switch; "diff" shows how
// Wanted differs from when it was last shown; "restart" begins anew with a table
// that adopts what was wanted.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.d = d
			out := s.run()
			if s.table != nil {
				if err := s.table.Wanted().Check(); err != nil {
					out += err.Error() + "\n"
				}
			}
			return out
		})
	})
}

type script struct {
	t     *testing.T
	d     *datadriven.TestData
	table *Table
	cfg   Config
	shown *switchspec.State
}

func (s *script) run() string {
	var out strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	lines := strings.FieldsFunc(s.d.Input, func(r rune) bool { return r == '\n' })
	switch s.d.Cmd {
	case "new":
		s.cfg = Config{Name: "torA", MAC: mac("a0")}
		for _, l := range lines {
			s.describe(strings.Fields(l))
		}
		var err error
		s.shown = &switchspec.State{}
		if s.table, err = New(s.cfg); err != nil {
			return err.Error() + "\n"
		}
		return ""
	case "restart":
		s.shown = s.table.Wanted()
		s.table = must(New(s.cfg))
		s.table.Adopt(s.shown)
	case "routes":
		s.table.Routes(delta(lines))
	case "link":
		for _, l := range lines {
			w := append(strings.Fields(l), "00")
			s.table.Link(port16(w[0]), w[1] == "up", mac(w[2]))
		}
	case "learn":
		for _, l := range lines {
			say("%t", s.table.Learn(aHost(strings.Fields(l)), s.now()))
		}
	case "probe":
		ask, changed := s.table.Probe(s.now())
		for _, h := range ask {
			say("ask %v %v port %d", h.Addr, h.MAC, h.Port)
		}
		if changed {
			say("changed")
		}
	case "settled":
		s.table.Settled()
	case "use":
		for _, w := range s.d.CmdArgs {
			say("%t", s.table.Use(port16(w.Key)))
		}
	case "unuse":
		for _, w := range s.d.CmdArgs {
			s.table.Unuse(port16(w.Key))
		}
	case "resolve":
		for _, l := range lines {
			r, err := s.table.Resolve(netip.MustParseAddr(l))
			if err != nil {
				say("%v", err)
				continue
			}
			say("%v next %v direct %t", r.Hops, r.Next, r.Direct)
		}
	case "wanted":
		s.shown = s.table.Wanted()
		for e := range s.shown.All() {
			say("%v", e)
		}
	case "diff":
		want := s.table.Wanted()
		for _, c := range switchspec.Diff(s.shown, want) {
			say("%v %v", c.Op, c.Entity)
		}
		s.shown = want
	case "problems":
		for _, p := range s.table.Problems() {
			say("%s", p)
		}
	case "list":
		for _, r := range s.table.RouteList() {
			say("%v %s", r.Prefix, r.Note)
			for _, h := range r.Hops {
				say("  %d: port %d to %q, %v > %v, %d uses", h.Number, h.Port, h.To, h.Src, h.Dst, h.Uses)
			}
		}
	default:
		s.t.Fatalf("no such command: %s", s.d.Cmd)
	}
	return out.String()
}

func (s *script) now() time.Time {
	at := 0.0
	if s.d.HasArg("at") {
		var text string
		s.d.ScanArgs(s.t, "at", &text)
		at = must(strconv.ParseFloat(text, 64))
	}
	return epoch.Add(time.Duration(at * float64(time.Second)))
}

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func (s *script) describe(w []string) {
	c := &s.cfg
	switch w[0] {
	case "address":
		c.Addr = netip.MustParseAddr(w[1])
	case "mac":
		c.MAC = mac(w[1])
	case "gateway":
		c.Gateways = append(c.Gateways, netip.MustParseAddr(w[1]))
	case "prefix":
		c.Prefixes = append(c.Prefixes, netip.MustParsePrefix(w[1]))
	case "host":
		c.Hosts = append(c.Hosts, aHost(w[1:]))
	case "port": // number [to=] [name=] [mac=] [peer=] [hello] [router=]
		p := Port{Number: port16(w[1])}
		for _, a := range w[2:] {
			k, v, _ := strings.Cut(a, "=")
			switch k {
			case "to":
				p.To = v
			case "name":
				p.Name = v
			case "mac":
				p.MAC = mac(v)
			case "peer":
				p.PeerMAC = mac(v)
			case "hello":
				p.Hello = true
			case "router":
				p.Router = netip.MustParseAddr(v)
			}
		}
		c.Ports = append(c.Ports, p)
	case "switch": // name [plain] address or prefix…
		sw := Switch{Name: w[1], Programmable: true}
		for _, a := range w[2:] {
			if p, err := netip.ParsePrefix(a); err == nil {
				sw.Prefixes = append(sw.Prefixes, p)
			} else if a == "plain" {
				sw.Programmable = false
			} else {
				sw.Addrs = append(sw.Addrs, netip.MustParseAddr(a))
			}
		}
		c.Switches = append(c.Switches, sw)
	}
}

// delta reads lines "prefix hop…", "withdrawn prefix", "neighbor hop mac", "lost
// hop".
func delta(lines []string) routing.Delta {
	var d routing.Delta
	for _, l := range lines {
		switch w := strings.Fields(l); w[0] {
		case "withdrawn":
			d.Withdrawn = append(d.Withdrawn, netip.MustParsePrefix(w[1]))
		case "neighbor":
			d.Neighbors = append(d.Neighbors, routing.Neighbor{NeighborKey: routing.NeighborKey(hop(w[1])), MAC: mac(w[2])})
		case "lost":
			d.Lost = append(d.Lost, routing.NeighborKey(hop(w[1])))
		default:
			r := routing.Route{Prefix: netip.MustParsePrefix(w[0])}
			for _, h := range w[1:] {
				r.Hops = append(r.Hops, hop(h))
			}
			d.Routes = append(d.Routes, r)
		}
	}
	return d
}

func hop(s string) routing.NextHop {
	a, p, _ := strings.Cut(s, "@")
	addr, _ := netip.ParseAddr(a) // invalid: on the link
	return routing.NextHop{Addr: addr, Port: p}
}

func aHost(w []string) Host {
	return Host{netip.MustParseAddr(w[0]), mac(w[1]), port16(w[2])}
}

// mac is 02:00:00:00:00:xx, zero for 00, and a multicast one for ff.
func mac(s string) switchspec.MAC {
	switch s {
	case "00":
		return switchspec.MAC{}
	case "ff":
		return switchspec.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	return switchspec.MAC{2, 0, 0, 0, 0, byte(must(strconv.ParseUint(s, 16, 8)))}
}

func port16(s string) uint16 { return uint16(must(strconv.ParseUint(s, 10, 16))) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
