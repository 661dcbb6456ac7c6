package bifurcation

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata. Hosts are written by their number: 3 is 10.0.0.3.
//
//	fabric [single-path]     a new one; switch NAME…, fixed NAME… (not programmable), link A B, host N SWITCH…
//	route                    replaces next hops: SWITCH N via SWITCH…, or via host, or via nothing
//	plan source=1 to=(2,3) [address=4] [max=4] [regions]    prints where the group's rules are, in the order of installation
//
// Each plan that succeeds is also put before the oracle.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		fabric := &Topology{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "fabric":
				fabric = &Topology{SinglePath: d.HasArg("single-path")}
				return each(d.Input, func(f []string) error { return build(fabric, f) })
			case "route":
				return each(d.Input, func(f []string) error { return reroute(fabric, f) })
			case "plan":
				return plan(t, fabric, d)
			}
			d.Fatalf(t, "unknown command")
			return ""
		})
	})
}

func each(input string, do func([]string) error) string {
	var out strings.Builder
	for _, line := range strings.Split(input, "\n") {
		if err := do(strings.Fields(line)); err != nil {
			fmt.Fprintf(&out, "%v\n", err)
		}
	}
	return out.String()
}

func host(s string) netip.Addr {
	var n int
	if _, err := fmt.Sscan(s, &n); err != nil {
		panic(err)
	}
	return addr(n)
}

func names(fields []string) []Switch {
	var all []Switch
	for _, f := range fields {
		all = append(all, Switch(f))
	}
	return all
}

func build(t *Topology, f []string) error {
	switch f[0] {
	case "switch", "fixed":
		for _, name := range names(f[1:]) {
			if err := t.AddSwitch(name, f[0] == "switch"); err != nil {
				return err
			}
		}
		return nil
	case "link":
		return t.Connect(Switch(f[1]), Switch(f[2]))
	case "host":
		return t.AddHost(host(f[1]), names(f[2:])...)
	}
	return fmt.Errorf("what is %q?", f[0])
}

func reroute(t *Topology, f []string) error {
	to := names(f[3:])
	for i, s := range to {
		if s == "host" {
			to[i] = ""
		}
	}
	return t.SetRoute(Switch(f[0]), host(f[1]), to...)
}

func plan(t *testing.T, fabric *Topology, d *datadriven.TestData) string {
	var source, limit, address int
	var to []string
	d.ScanArgs(t, "source", &source)
	d.MaybeScanArgs(t, "max", &limit)
	d.MaybeScanArgs(t, "address", &address)
	for _, a := range d.CmdArgs {
		if a.Key == "to" {
			to = a.Vals
		}
	}
	all := []netip.Addr{addr(source)}
	for _, s := range to {
		if s != "" {
			all = append(all, host(s))
		}
	}
	g := groupOf(all)
	if address > 0 {
		g.Address = addr(address)
	}
	p, err := Plan(fabric, g, limit)
	if err != nil {
		return err.Error() + "\n"
	}
	n, err := newNetwork(fabric, g, p)
	if err == nil {
		n.narrow = limit > 0
		err = n.check()
	}
	if err != nil {
		d.Fatalf(t, "the oracle: %v", err)
	}
	return show(fabric, p, d.HasArg("regions"))
}

func show(t *Topology, p Planned, regions bool) string {
	var out strings.Builder
	if p.Early > 0 {
		fmt.Fprintf(&out, "given up early: %d\n", p.Early)
	}
	for _, s := range p.Steps {
		fmt.Fprintf(&out, "%s: to %s for %s", s.At, short([]Receiver{{Addr: s.Dst}}), short(s.Receivers))
		if s.Rules.Empty() {
			out.WriteString(" passes\n")
		} else {
			out.WriteByte('\n')
		}
		for k, group := range s.Rules.PREGroups {
			fmt.Fprintf(&out, "  group %d:", k)
			for _, r := range group {
				fmt.Fprintf(&out, " %d", r.RID)
			}
			out.WriteByte('\n')
		}
		for _, w := range s.Rules.Rewrites {
			fmt.Fprintf(&out, "  copy %d to %s by %s", w.RID, short([]Receiver{{Addr: w.Dst}}), neighbor(t, s.At, w.NextHop))
			if w.Last {
				fmt.Fprintf(&out, ", qpn %#x", w.QPN)
			}
			out.WriteByte('\n')
		}
		for _, m := range s.Rules.Translations {
			if regions {
				fmt.Fprintf(&out, "  copy %d rkey %#x va %#x-%#x: +%#x rkey %#x\n", m.RID, m.RKey, m.First, m.Last, m.Offset, m.NewRKey)
			}
		}
		for _, b := range s.Branches {
			fmt.Fprintf(&out, "  then %v for %s\n", b.Next, short(b.Receivers))
		}
	}
	fmt.Fprintf(&out, "merge at %s: members %#x, psn %d, from %s to qpn %#x:", p.MergePoint, p.Merge.Current, p.Merge.InitialPSN,
		short([]Receiver{{Addr: p.Merge.Source}}), p.Merge.SenderQPN)
	for _, m := range p.Merge.Members {
		fmt.Fprintf(&out, " %d=%s", m.Index, short([]Receiver{{Addr: m.Src}}))
	}
	return out.String() + "\n"
}

func neighbor(t *Topology, at Switch, hop uint16) string {
	if to := t.switches[at].ports[hop-1].to; to != "" {
		return string(to)
	}
	return "its port"
}

func short(all []Receiver) string {
	var s []string
	for _, r := range all {
		b := r.Addr.As4()
		s = append(s, fmt.Sprint(int(b[1])<<16|int(b[2])<<8|int(b[3])))
	}
	return strings.Join(s, ",")
}
