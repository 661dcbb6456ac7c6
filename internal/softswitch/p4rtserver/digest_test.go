package p4rtserver

import (
	"testing"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// newLearner is a digester with one digest of 8 bits, id 1, enabled.
func newLearner(c *p4.DigestEntry_Config) *digester {
	d := newDigester()
	x := &digest{object: object{"digest", 1, "d"}, bits: []int{8}, data: &dataType{kind: dataBits, bits: 8}}
	d.reset(&config{
		index:    &index{digests: objects[digest]{byID: map[uint32]*digest{1: x}}, byDigest: []*digest{x, nil}},
		learning: map[uint32]*p4.DigestEntry_Config{1: c},
	})
	return d
}

func (d *digester) learned(values ...uint64) {
	for _, v := range values {
		d.put([]pipeline.Digest{{Values: []match.Value{{v}}}})
	}
}

func TestDigester(t *testing.T) {
	d := newLearner(&p4.DigestEntry_Config{MaxListSize: 3, MaxTimeoutNs: 100, AckTimeoutNs: 1000})
	run := func(now time.Duration, next time.Duration, sizes ...int) []*p4.DigestList {
		t.Helper()
		lists, got := d.run(now, true)
		ok := got == next && len(lists) == len(sizes)
		for i := range min(len(lists), len(sizes)) {
			ok = ok && len(lists[i].GetData()) == sizes[i]
		}
		if !ok {
			t.Fatalf("at %d: lists %v, next %v; want sizes %v, next %v", now, lists, got, sizes, next)
		}
		return lists
	}
	run(0, never)
	d.learned(1, 1, 2)
	run(10, 110) // duplicates are left out; two wait
	d.learned(2)
	run(50, 110)
	run(109, 110)
	run(110, 1110, 2) // the time-out of the oldest
	d.learned(1, 2, 3, 4, 5, 6)
	lists := run(200, 300, 3) // 1 and 2 are known; 3, 4, 5 are a list
	d.learned(3, 6)
	run(250, 300)
	if err := d.ack(&p4.DigestListAck{DigestId: 1, ListId: lists[0].GetListId()}); err != nil {
		t.Fatal(err)
	}
	d.learned(3)
	run(299, 300)
	run(300, 1110, 2) // 6, and 3 once more
	d.learned(1)
	run(1109, 1110)    // still in the first list, which is not acknowledged
	run(1110, 1300)    // that is forgotten now
	d.learned(1)       // so it is new
	run(1111, 1211)    //
	run(1211, 1300, 1) //
	run(1300, 2211)    // the list of 300 is forgotten
	d.learned(6)       //
	run(1300, 1400)    //
	d.reset(&config{index: d.index, learning: map[uint32]*p4.DigestEntry_Config{}})
	run(5000, never)
}

func TestDigesterAtOnce(t *testing.T) {
	for _, c := range []*p4.DigestEntry_Config{{}, {MaxListSize: 1, MaxTimeoutNs: 1000}} {
		d := newLearner(c)
		d.learned(1, 1, 2)
		// Without ack_timeout_ns, nothing is remembered.
		if lists, next := d.run(5, true); len(lists) != 3 || next != never {
			t.Errorf("%v: lists %v, next %v", c, lists, next)
		}
	}
}

func TestDigesterUnheard(t *testing.T) {
	d := newLearner(&p4.DigestEntry_Config{MaxListSize: 1, AckTimeoutNs: 1000})
	d.learned(1)
	if lists, _ := d.run(5, false); len(lists) != 1 {
		t.Errorf("lists %v", lists)
	}
	d.learned(1) // no controller got it: it comes again
	if lists, _ := d.run(6, true); len(lists) != 1 {
		t.Errorf("lists %v", lists)
	}
	d.learned(1)
	if lists, _ := d.run(7, true); len(lists) != 0 {
		t.Errorf("lists %v", lists)
	}
}

// Digests of another program, or of one that the P4Info does not have, do no
// harm.
func TestDigesterStrangers(t *testing.T) {
	d := newLearner(&p4.DigestEntry_Config{})
	d.put([]pipeline.Digest{{Index: 1}, {Index: 2}, {Index: -1}, {}, {Values: []match.Value{{256}}}, {Values: []match.Value{{1}, {1}}}})
	if lists, next := d.run(0, true); len(lists) != 0 || next != never {
		t.Errorf("lists %v, next %v", lists, next)
	}
	expectError(t, d.ack(&p4.DigestListAck{DigestId: 2}), codes.InvalidArgument, "there is no digest with id 2")
	if err := d.ack(&p4.DigestListAck{DigestId: 1, ListId: 99}); err != nil {
		t.Error(err)
	}
	expectError(t, newDigester().ack(&p4.DigestListAck{}), codes.InvalidArgument, "there is no digest")
}

func TestDigesterBounds(t *testing.T) {
	d := newLearner(&p4.DigestEntry_Config{MaxTimeoutNs: 1 << 62, AckTimeoutNs: 1 << 62})
	dropped := 0
	for range digestInbox + 5 {
		dropped += d.put([]pipeline.Digest{{Values: []match.Value{{1}}}})
	}
	if dropped != 5 {
		t.Errorf("%d dropped", dropped)
	}
	d.learn[1].digest.bits[0], d.learn[1].digest.data.bits = 32, 32
	for i := range uint64(3 * digestCache) {
		d.learned(i)
		d.run(time.Duration(i), true)
	}
	if n := len(d.learn[1].seen); n > digestCache+digestList {
		t.Errorf("%d digests are remembered", n)
	}
}
