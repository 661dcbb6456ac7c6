package group_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/internal/group"
)

// TestStallExplorer goes through all stalls of three receivers of any kinds, long ones and short
// ones, with packets in all of the first twelve pauses, or in up to three of eight, and with a switch
// that counts them or not.
func TestStallExplorer(t *testing.T) {
	n, err := exploreStalls("")
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d stalls", n)
}

// TestStallExplorerMistakes: the explorer finds each of these in the counters.
func TestStallExplorerMistakes(t *testing.T) {
	for _, m := range []string{"a request for time is an acknowledgement", "an acknowledgement is a request for time",
		"requests for time are those of the call before", "packets that lack others are not answers", "packets are counted twice, now and later", "nothing is counted"} {
		if _, err := exploreStalls(m); err == nil {
			t.Errorf("not found: %s", m)
		} else {
			t.Logf("%s: %v", m, err)
		}
	}
}

// A stallKind is how a receiver answers packets.
type stallKind struct {
	name  string
	delay int // pauses, between a packet and its answer
	lost  int // packets at first that do not arrive
	asks  int // answers at first that ask for time
	until int // the pause from which on it answers no packets; 0: it always does
	kind  byte
}

const always = 1000

var stallKinds = []stallKind{{name: "dead", lost: always}, {name: "well"}, {name: "late", delay: 1}, {name: "slow", delay: group.LooksEach},
	{name: "loses two", lost: 2}, {name: "loses one, late", lost: 1, delay: 1}, {name: "not ready", asks: always}, {name: "slow, not ready", asks: always, delay: group.LooksEach},
	{name: "ready at last", asks: 1}, {name: "stops", until: 3}, {name: "lacks packets", kind: 'n'}}

// A stallCase is a stall: after the packets of a pause come the counters.
type stallCase struct {
	kinds   [3]stallKind
	packets uint // 1<<i: one in pause i+1
	counted bool // by the switch
	long    bool
}

func (c *stallCase) String() string {
	return fmt.Sprintf("%q, %q and %q, packets %012b, counted %v, long %v", c.kinds[0].name, c.kinds[1].name, c.kinds[2].name, c.packets, c.counted, c.long)
}

func exploreStalls(mistake string) (n int, err error) {
	sent := []uint{0, 1<<12 - 1}
	for i := range 8 {
		sent = append(sent, 1<<i)
		for j := range i {
			sent = append(sent, 1<<i|1<<j)
			for k := range j {
				sent = append(sent, 1<<i|1<<j|1<<k)
			}
		}
	}
	for i, a := range stallKinds {
		for j, b := range stallKinds[i:] {
			for _, c := range stallKinds[i+j:] {
				for _, packets := range sent {
					for flags := range 4 {
						n++
						x := stallCase{[3]stallKind{a, b, c}, packets, flags&1 > 0, flags&2 > 0}
						if err := x.run(mistake); err != nil {
							return n, fmt.Errorf("%v: %w", &x, err)
						}
					}
				}
			}
		}
	}
	return n, nil
}

// counts returns the counters after a pause; 0: before the first. Each receiver has asked for time,
// acknowledged and lacked packets before.
func (c *stallCase) counts(f *group.Formation, pause int) group.Counts {
	out := group.Counts{Answers: map[netip.Addr]group.Answers{}}
	if c.counted {
		out.Packets = 9
	}
	for i, k := range c.kinds {
		x, n := group.Answers{ACKs: 3, SequenceNAKs: 2, RNRNAKs: 5}, 0
		for p := 1; p <= pause; p++ {
			if c.packets>>(p-1)&1 == 0 {
				continue
			}
			if n++; n <= k.lost || p+k.delay > pause || k.until > 0 && p >= k.until {
				continue
			}
			switch {
			case n-k.lost <= k.asks:
				x.RNRNAKs++
			case k.kind == 'n':
				x.SequenceNAKs++
			default:
				x.ACKs++
			}
		}
		if out.Answers[f.Receivers[i].Addr] = x; c.counted {
			out.Packets = 9 + uint64(n) //nolint:gosec // not negative
		}
	}
	return out
}

// mistaken returns the counters as a mistake shows them.
func (c *stallCase) mistaken(f *group.Formation, pause int, mistake string) group.Counts {
	out := c.counts(f, pause)
	for a, x := range out.Answers {
		switch mistake {
		case "a request for time is an acknowledgement":
			x.ACKs, x.RNRNAKs = x.ACKs+x.RNRNAKs, 0
		case "an acknowledgement is a request for time":
			x.ACKs, x.RNRNAKs = 0, x.ACKs+x.RNRNAKs
		case "requests for time are those of the call before":
			x.RNRNAKs = c.counts(f, max(0, pause-1)).Answers[a].RNRNAKs
		case "packets that lack others are not answers":
			x.SequenceNAKs = 0
		case "nothing is counted":
			x = group.Answers{}
		}
		out.Answers[a] = x
	}
	if mistake == "packets are counted twice, now and later" && c.counted {
		out.Packets += c.counts(f, max(0, pause-1)).Packets
	}
	return out
}

// run checks who is to blame, by what each receiver has answered until then.
func (c *stallCase) run(mistake string) error {
	f := &group.Formation{}
	for i := range c.kinds {
		f.Receivers = append(f.Receivers, group.Receiver{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})})
	}
	s, pause := group.NewStall(f, c.long, c.mistaken(f, 0, mistake)), 0
	for ; !s.Over(); pause++ {
		if pause == 20 {
			return fmt.Errorf("it is not over")
		}
		s.Look(c.mistaken(f, pause+1, mistake))
	}
	first, last := c.counts(f, 0), c.counts(f, pause)
	var silent, asking []netip.Addr
	acked, prompt := false, false // a receiver has acknowledged; one answers everything at once
	for i, r := range f.Receivers {
		k, x := c.kinds[i], last.Answers[r.Addr]
		acks, answers := x.ACKs-first.Answers[r.Addr].ACKs, x.SequenceNAKs+x.RNRNAKs-first.Answers[r.Addr].SequenceNAKs-first.Answers[r.Addr].RNRNAKs
		if acked = acked || acks > 0; acks > 0 || !c.long && answers > 0 {
			prompt = prompt || k.lost == 0 && k.delay == 0 && k.asks == 0 && k.until == 0
		} else {
			silent = append(silent, r.Addr)
		}
		if x.RNRNAKs > first.Answers[r.Addr].RNRNAKs {
			asking = append(asking, r.Addr)
		}
	}
	blamed := s.Blame()
	for i, r := range f.Receivers {
		k, b := c.kinds[i], slices.Contains(blamed, r.Addr)
		switch patient := k.lost < 3 && (k.lost == 0 || k.delay == 0) && k.until == 0; {
		case b && !slices.Contains(silent, r.Addr) && k.until == 0:
			return fmt.Errorf("%s is to blame, and has answered", k.name)
		case b && patient && !c.long && c.counted:
			return fmt.Errorf("%s is to blame, and had too little time", k.name)
		case b && patient && k.asks == 0 && k.kind == 0 && c.counted:
			return fmt.Errorf("%s is to blame, and would have acknowledged", k.name)
		}
	}
	packets := 0 // that leave time for answers
	for i := range 12 {
		packets += int(c.packets >> i & 1)
	}
	switch {
	case c.long && !acked && !slices.Equal(blamed, asking):
		return fmt.Errorf("none acknowledges: %v are to blame, %v ask for time", blamed, asking)
	case c.counted && prompt && packets > 2 && slices.ContainsFunc(silent, func(a netip.Addr) bool { return !slices.Contains(blamed, a) }):
		return fmt.Errorf("%v are to blame, %v do not answer", blamed, silent)
	case len(blamed) == 0 || c.packets != 1<<12-1 || !c.counted || !prompt:
		return nil
	}
	return c.next(f, s, pause, mistake)
}

// next checks that those that have stopped meanwhile are to blame sooner than a first check would find them.
func (c *stallCase) next(f *group.Formation, s *group.Stall, pause int, mistake string) error {
	rest, stopped := &group.Formation{}, false
	for i, r := range f.Receivers {
		if !slices.Contains(s.Blame(), r.Addr) {
			rest.Receivers = append(rest.Receivers, r)
			stopped = stopped || c.kinds[i].until > 0
		}
	}
	if !stopped {
		return nil
	}
	s = s.Resume(rest, c.long, c.mistaken(f, pause, mistake))
	for range group.LooksEach - 1 {
		pause++
		s.Look(c.mistaken(f, pause, mistake))
	}
	for i, r := range f.Receivers {
		if rest.Has(r.Addr) && slices.Contains(s.Blame(), r.Addr) != (c.kinds[i].until > 0) {
			return fmt.Errorf("%s: pause %d of another check: %v are to blame", c.kinds[i].name, pause, s.Blame())
		}
	}
	return nil
}
