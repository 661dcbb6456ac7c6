package group_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/group"
)

// TestStall: looks are written as words, of one letter for each thing that is counted in a pause: p, a
// packet of the sender; 2, 3 or 4, an answer of that receiver. Without any p before them or in them, the
// switch counts no packets.
func TestStall(t *testing.T) {
	f := &group.Formation{}
	for i := range byte(3) {
		f.Receivers = append(f.Receivers, group.Receiver{Addr: netip.AddrFrom4([4]byte{10, 0, 0, 2 + i})})
	}
	for _, c := range []struct {
		looks  string
		before uint64 // packets
		still  string // "": all have answered
		blame  string // "-": none has answered, and all had time
	}{
		{looks: "p24 p24 p24 p24 p24", still: "3", blame: "3"},
		{looks: "p24 . p24 . p24 .", still: "3", blame: "3"},
		{looks: "p24 . . p24 . p24 .", still: "3", blame: "3"},
		{looks: "p24 p p . .", still: "3", blame: "3"},
		{looks: "p p p . .", still: "234", blame: "-"},
		{looks: "2 p p p 4 .", still: "3", blame: "23"},
		{looks: "p2 p24 p4 p4 p4", still: "3", blame: "3"}, // 2 needs more time

		{looks: "p234"},
		{looks: "p24 . p24 3"},
		{looks: "p24 p24 p24 p24", still: "3"},                   // the first had too little time
		{looks: ". . . p24 p24 p24 .", still: "3"},               // also after a pause
		{looks: "p24 . . p24 . p24", still: "3"},                 // the third had none
		{looks: "p24 . p24 . . . . . .", still: "3"},             // both may have been lost
		{looks: "24 24 24 24 24 24 24", before: 100, still: "3"}, // to older packets
		{looks: "24 p p p . . .", before: 100, still: "3"},

		{looks: "24 . 2 . 4 . 2 .", still: "3", blame: "3"},
		{looks: "24 . 2 2 4 .", still: "3"}, // that before 2 had too little time
		{looks: "24 . 2 . 2 . . .", still: "3"},
		{looks: "24 . 2 2 4 3"},

		{looks: "p24 p24 p24 p2 p2 / p2 2 2", still: "4", blame: "4"},
		{looks: "p24 p24 p24 p2 p2 / p2 2", still: "4"}, // the second packet had too little time
		{looks: "p24 p24 p24 p2 p2 / p2 4", still: ""},
		{looks: "p24 p24 p24 p2 p2 / p p p . .", still: "24", blame: "-"},
		{looks: "p234 / p24 . p2 . p2 2 / p2 2", still: "4", blame: "4"},

		// What none has answered for longer than one may take is common to all.
		{looks: "2 p p p . 4", still: "3"},
		{looks: "p p p . . / p24", still: "3"},
		{looks: "p p p . . / p24 p24 . p24 .", still: "3", blame: "3"},
		{looks: "p24 p p p . / p2", still: "4"},
		{looks: "p24 . . . . . p24 p24 .", still: "3", blame: "3"},
		{looks: "p24 p . . . . p24 p24 .", still: "3", blame: "3"},
	} {
		counts := group.Counts{Packets: c.before, Answers: map[netip.Addr]group.Answers{f.Receivers[0].Addr: {ACKs: 7}}}
		s, n := group.NewStall(f, false, counts), 3
		for i, word := range strings.Fields(c.looks) {
			if s.Over() != (word == "/") {
				t.Errorf("%s: over %v after %q", c.looks, s.Over(), strings.Fields(c.looks)[:i])
			}
			if word == "/" {
				f := *f
				f.Receivers = slices.DeleteFunc(slices.Clone(f.Receivers), func(r group.Receiver) bool { return slices.Contains(s.Blame(), r.Addr) })
				s, n = s.Resume(&f, false, counts), len(f.Receivers)
				continue
			}
			next := group.Counts{Packets: counts.Packets + uint64(strings.Count(word, "p")), Answers: map[netip.Addr]group.Answers{}}
			var want []netip.Addr
			for i, r := range f.Receivers {
				n := strings.Count(word, string(rune('2'+i)))
				if next.Answers[r.Addr] = (group.Answers{ACKs: counts.Answers[r.Addr].ACKs + uint64(n)}); n > 0 {
					want = append(want, r.Addr)
				}
			}
			if got := s.Look(next); !slices.Equal(got, want) {
				t.Errorf("%s: %v have answered in pause %d, want %v", c.looks, got, i, want)
			}
			counts = next
		}
		still, blame := digits(s.Still()), digits(s.Blame())
		if s.Unheard() {
			blame = "-"
		}
		if still != c.still || blame != c.blame || s.Over() != (blame != "" || still == "") || s.Alive() != (len(still) < n) {
			t.Errorf("%s: %s are still, %s to blame, over %v, alive %v", c.looks, still, blame, s.Over(), s.Alive())
		}
	}
	s, n := group.NewStall(f, false, group.Counts{}), 0
	for range 2 {
		for s = s.Resume(f, false, group.Counts{}); !s.Over() && n < 100; n++ {
			s.Look(group.Counts{})
		}
	}
	if n != 40 || s.Unheard() || s.Alive() {
		t.Errorf("nothing is sent: two checks ended after %d looks, unheard %v", n, s.Unheard())
	}
	// In a long stall, who asks for time in this check is to blame.
	asks := group.Counts{Packets: 1, Answers: map[netip.Addr]group.Answers{f.Receivers[1].Addr: {RNRNAKs: 1}}}
	s = group.NewStall(f, true, group.Counts{})
	if s.Look(asks); digits(s.Blame()) != "3" {
		t.Errorf("%s asks for time", digits(s.Blame()))
	}
	s = s.Resume(f, true, asks)
	if s.Look(asks); len(s.Blame()) > 0 {
		t.Errorf("%s asked before", digits(s.Blame()))
	}
	if s = s.Resume(f, false, asks); s.Look(group.Counts{Packets: 1}) == nil {
		t.Error("in a short stall, a request for time is an answer")
	}
	s = s.Resume(f, false, group.Counts{})
	for i := range uint64(group.LooksEach + 1) {
		s.Look(group.Counts{Packets: i + 1})
	}
	if !s.Unheard() || !s.Over() || s.Resume(f, false, group.Counts{Packets: 9}).Over() {
		t.Error("another check ends before its first look")
	}
	if s.Without(f.Addrs()[:2]); digits(s.Still()) != "4" {
		t.Errorf("the formation still has %s", digits(s.Still()))
	}
	if s = s.Resume(f, false, group.Counts{}); digits(s.Still()) != "234" {
		t.Errorf("the formation has %s again", digits(s.Still()))
	}
}

// digits returns the last digits of addresses.
func digits(list []netip.Addr) (s string) {
	for _, a := range list {
		s += string(rune('0' + a.As4()[3]))
	}
	return s
}
