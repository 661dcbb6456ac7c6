package traffic

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// newLimitsRig runs a program that takes a packet's priority from its second byte, and writes what
// the packet saw of its queue after the fourth byte. All packets leave by port 1.
func newLimitsRig(t *testing.T, c Config) *rig {
	r := newRigOf(t, c)
	data, err := os.ReadFile("../pipeline/testdata/limits.json")
	r.must(err)
	prog, err := program.Load(data)
	r.must(err)
	r.pipe, err = pipeline.New(prog, pipeline.Options{PRE: r.pre})
	r.must(err)
	r.Load(r.pipe)
	return r
}

// asking is a packet of n bytes for a class.
func asking(class byte, n int) []byte {
	return append([]byte{14, class, 0xff, 0xff}, make([]byte, n-4)...)
}

// saw returns a packet's class and what it says of its queue.
func (o *output) saw() string {
	v := uint64(0)
	for _, b := range o.frame[28:33] {
		v = v<<8 | uint64(b)
	}
	return fmt.Sprint(o.frame[1], " ", v>>21, " ", v>>2&MaxDepth)
}

// TestPriorities: standard_metadata.priority chooses the class, of which the highest
// goes first; one that there is not has the packet dropped.
func TestPriorities(t *testing.T) {
	for _, c := range []struct {
		classes int
		want    []string
		none    uint64
	}{{0, []string{"0 0 0", "1 0 1", "1 1 0", "0 0 1", "0 1 0"}, 1}, {1, []string{"0 0 0", "0 0 1", "0 1 0"}, 3},
		{8, []string{"0 0 0", "7 0 0", "1 0 1", "1 1 0", "0 0 1", "0 1 0"}, 0}} {
		r := newLimitsRig(t, Config{Classes: c.classes})
		r.must(r.SetRate(1, Rate{PerSecond: 1000}))
		for _, class := range []byte{0, 0, 1, 0, 7, 1} {
			r.Arrive(r.now, 2, asking(class, 60))
		}
		r.run()
		var got []string
		for _, o := range r.out {
			got = append(got, o.saw())
		}
		if !slices.Equal(got, c.want) || r.Stats().NoClass != c.none {
			t.Errorf("%d classes: got %q and %d drops, want %q and %d", c.classes, got, r.Stats().NoClass, c.want, c.none)
		}
	}
}

// TestDepthUnit: depths are in packets or in units of bytes, of which a part counts
// as one, and never more than the field holds.
func TestDepthUnit(t *testing.T) {
	for unit, want := range map[int][]string{
		0:  {"0 0 0", "0 0 2", "0 1 1", "0 2 0"},
		64: {"0 0 0", "0 0 24", "0 2 8", "0 18 0"},
		1:  {"0 0 0", "0 0 524287", "0 100 524287", "0 1100 0"},
	} {
		r := newLimitsRig(t, Config{Unit: unit})
		r.must(r.SetRate(1, Rate{PerSecond: 1000}))
		last := 500
		if unit == 1 {
			last = MaxDepth + 1000
		}
		for _, n := range []int{60, 100, 1000, last} {
			r.Arrive(r.now, 2, asking(0, n))
		}
		r.run()
		var got []string
		for _, o := range r.out {
			got = append(got, o.saw())
		}
		if !slices.Equal(got, want) {
			t.Errorf("unit %d: got %q, want %q", unit, got, want)
		}
	}
}
