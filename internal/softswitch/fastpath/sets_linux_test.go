package fastpath

import (
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// TestVethSets: numbers of sets of ports are used again, and nothing of an earlier set stays. Sets are
// made before the packets of a group are kept from being copied, and without the switch's lock.
func TestVethSets(t *testing.T) {
	const most, receivers = 3, 3
	w := newWired(t)
	w.sets.most = most
	var copies uint64
	for i := range 30 {
		var list []pre.Replica
		for j := range uint16(receivers) {
			if which := i%7 + 1; which>>j&1 == 1 {
				list = append(list, pre.Replica{Port: j + 2, Instance: j + 1})
			}
		}
		if err := w.PRE.ModifyGroup(uint32(w.group.Index), list); err != nil { //nolint:gosec // few
			t.Fatal(err)
		}
		for wait := w.Ends(); wait != nil; wait = w.Ends() {
			wait()
			want := w.sets.numbers[w.plan.have[unit{kind: multicast, n: uint32(w.group.Index)}][place{"pre_groups", uint32(w.group.Index)}].(preGroup).set] //nolint:gosec // few
			if w.k.sets[want] == "" {
				t.Fatalf("set %d is not there", want)
			}
		}
		w.Changed()
		w.wires.Send(t, 1, w.group.Data(rocev2.SendOnly, rocev2.PSN(i), nil).Frame())
		copies += uint64(len(list))
		w.until("copies", func(s Stats) uint64 { return s.Copies }, copies)
	}
	var at bpf.PlaceKey
	var index uint32
	n := 0
	for all := w.k.Maps["places"].Iterate(); all.Next(&at, &index); n++ {
	}
	for _, set := range w.k.sets {
		n -= len(set.interfaces())
	}
	if n != 0 || len(w.k.sets) > most {
		t.Errorf("%d places too many, of %d sets", n, len(w.k.sets))
	}
	if w.Status() != whole || w.Stats().Updates > 0 {
		t.Errorf("%s, %+v", w.Status(), w.Stats())
	}
}

// TestVethFails: when the kernel does not take a change, the switch itself goes on, with the state of
// merging.
func TestVethFails(t *testing.T) {
	for what, breaks := range map[string]func(*wired){
		"there are more than 1 sets of ports": func(w *wired) {
			w.sets.most = 1
			if err := w.PRE.ModifyGroup(uint32(w.group.Index), []pre.Replica{{Port: 2, Instance: 1}}); err != nil { //nolint:gosec // few
				w.Fatal(err)
			}
		},
		"map bridge: ": func(w *wired) {
			w.k.Maps["bridge"].Close()
			w.Add("ingress.unicast.bridge", []any{dataplane.MAC(dataplane.HostMAC(9))}, "ingress.unicast.to_port", 2)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWired(t)
			w.merges(0, 5)
			breaks(w)
			for wait := w.Ends(); wait != nil; wait = w.Ends() {
				wait()
			}
			w.Changed()
			if !strings.HasPrefix(w.Status(), "off: "+what) || w.get("acked", 16*w.group.Index)&0xffffff != 5 {
				t.Errorf("%s, acknowledged %#x", w.Status(), w.get("acked", 16*w.group.Index))
			}
			w.wires.Send(t, 2, w.ack(0, 6))
			if w.wires.Climbs(2, 0) == nil {
				t.Error("an answer does not come to the switch")
			}
		})
	}
}
