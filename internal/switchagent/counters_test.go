package switchagent

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// TestCountersOfWhoLeaves: counters are read while a receiver leaves: they are those of the
// receivers in the same answer, in their order.
func TestCountersOfWhoLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(1, 3), hostAddr(1, 4))
		l.install(1, g)
		a := l.nodes[0].agent
		k, err := groupKeyFrom(g.Key)
		if err != nil {
			t.Fatal(err)
		}
		v := a.table.View(a.table.Installed(k))
		out := a.describe(v)
		_, session := a.driver.current()
		done := make(chan error, 1)
		go func() {
			_, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, Receivers: g.Receivers[1:]})
			done <- err
		}()
		for left := false; !left; {
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				left = true
			default:
			}
			out.Members = nil
			if err := count(t.Context(), session, v, out, true); err != nil {
				t.Fatal(err)
			}
			if len(out.GetMembers()) != 3 {
				t.Fatalf("counters of %d receivers besides 3", len(out.GetMembers()))
			}
		}
		if out = a.describe(a.table.View(a.table.Installed(k))); len(out.GetGroup().GetReceivers()) != 2 {
			t.Errorf("%v", out)
		}
	})
}

// TestBehind: the distance to the first is one of serial numbers; a member that has not
// answered has none.
func TestBehind(t *testing.T) {
	psn := func(n uint32) *mcrdmav1.MemberCounters { return &mcrdmav1.MemberCounters{AckedPsn: &n} }
	list := []*mcrdmav1.MemberCounters{psn(0xfffffe), psn(3), {}, psn(0)}
	behind(list)
	for i, want := range []string{"5", "0", "none", "3"} {
		got := "none"
		if list[i].BehindPackets != nil {
			got = fmt.Sprint(list[i].GetBehindPackets())
		}
		if got != want {
			t.Errorf("member %d: %s behind, want %s", i, got, want)
		}
	}
	behind(nil)
	behind([]*mcrdmav1.MemberCounters{{}})
}

// TestCountsBeginWithTheUse: what a slot's counters had when a group began to use it is
// not the group's, also not after a restart of the agent. With further members the group
// uses another slot, whose counts begin at 0, too.
func TestCountsBeginWithTheUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.startAll()
		f := l.foreigner(1)
		res, err := f.rpc.GetForwardingPipelineConfig(t.Context(), &p4.GetForwardingPipelineConfigRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ids := map[string]uint32{}
		for _, c := range res.GetConfig().GetP4Info().GetCounters() {
			ids[strings.TrimPrefix(c.GetPreamble().GetName(), "egress.ack_merge.")] = c.GetPreamble().GetId()
		}
		set := func(name string, cell int64, packets int64) {
			f.write(p4.Update_MODIFY, &p4.Entity{Entity: &p4.Entity_CounterEntry{CounterEntry: &p4.CounterEntry{CounterId: ids[name],
				Index: &p4.Index{Index: cell}, Data: &p4.CounterData{PacketCount: packets}}}})
		}
		for cell := int64(0); cell < 20*switchspec.MaxMembers; cell++ { // as earlier groups have left them
			set("fatal_naks", cell, 3)
			set("acks", cell, 1000+cell)
		}
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(1, 3))
		l.install(1, g)
		counts := func(what string, acks, fatal []uint64) {
			t.Helper()
			res, err := l.groups(1).Get(t.Context(), &mcrdmav1.GetRequest{Key: g.Key, Counters: true})
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range res.GetGroup().GetMembers() {
				if m.GetAcks() != acks[i] || m.GetFatalNaks() != fatal[i] || m.GetCnps()+m.GetRnrNaks()+m.GetSequenceNaks() != 0 {
					t.Errorf("%s: receiver %d: %v; want %d ACKs and %d fatal NAKs", what, i, m, acks[i], fatal[i])
				}
			}
		}
		var acked uint32
		for _, r := range res.GetConfig().GetP4Info().GetRegisters() {
			if r.GetPreamble().GetAlias() == "acked" {
				acked = r.GetPreamble().GetId()
			}
		}
		lag := func(what, want string) { // PSNs, and how far behind
			t.Helper()
			res, err := l.groups(1).Get(t.Context(), &mcrdmav1.GetRequest{Key: g.Key, Counters: true, Acked: true})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, m := range res.GetGroup().GetMembers() {
				if m.AckedPsn == nil {
					got += "- "
				} else {
					got += fmt.Sprintf("%d,%d ", m.GetAckedPsn(), m.GetBehindPackets())
				}
			}
			if got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		reach := func(psns ...uint64) { // what the members have acknowledged
			var epoch uint64
			for x := range switchspec.Of[switchspec.MergeGroup](l.state(1)) {
				epoch = uint64(x.Epoch)
			}
			for x := range switchspec.Of[switchspec.MergeMember](l.state(1)) {
				if int(x.Index) < len(psns) {
					f.write(p4.Update_MODIFY, &p4.Entity{Entity: &p4.Entity_RegisterEntry{RegisterEntry: &p4.RegisterEntry{RegisterId: acked,
						Index: &p4.Index{Index: switchspec.MaxMembers*int64(x.Slot) + int64(x.Index)},
						Data:  &p4.P4Data{Data: &p4.P4Data_Bitstring{Bitstring: binary.BigEndian.AppendUint64(nil, epoch<<48|psns[x.Index])}}}}})
				}
			}
		}
		lag("new", "- - ")
		reach(7)
		lag("after an answer of the first", "7,0 - ")
		reach(7, 4)
		lag("after answers", "7,0 4,3 ")
		counts("new", []uint64{0, 0}, []uint64{0, 0})
		answer := func() { // of the second receiver
			for x := range switchspec.Of[switchspec.MergeMember](l.state(1)) {
				if x.Src == hostAddr(1, 3) {
					cell := switchspec.MaxMembers*int64(x.Slot) + int64(x.Index)
					set("fatal_naks", cell, 4)
					set("acks", cell, 1005+cell)
				}
			}
		}
		answer()
		counts("after its answers", []uint64{0, 5}, []uint64{0, 1})
		l.nodes[0].kill()
		l.start(1)
		counts("after a restart", []uint64{0, 5}, []uint64{0, 1})
		psn := uint32(9)
		if _, err := l.groups(1).Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, InitialPsn: &psn,
			Receivers: append(g.Receivers, aReceiver(hostAddr(1, 4), 0x200))}); err != nil {
			t.Fatal(err)
		}
		counts("with another member", []uint64{0, 0, 0}, []uint64{0, 0, 0})
		lag("with another member", "- - - ")
		answer()
		n := l.nodes[0]
		n.sw.close()
		n.sw, _ = l.startSwitch(n.p4)
		eventually(t, "the switch merges again", func() bool { s, err := l.read(1); return err == nil && len(multicast(s)) > 0 && l.consistent() == "" })
		counts("after the switch's restart", []uint64{0, 0, 0}, []uint64{0, 0, 0})
	})
}
