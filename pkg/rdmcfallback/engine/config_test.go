package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

func TestConfigs(t *testing.T) {
	three := memberNames(3)
	if _, err := New(Config{Members: three, Self: 3}); !strings.Contains(fmt.Sprint(err), "member 3 of 3") {
		t.Error(err)
	}
	for name, c := range map[string]Config{
		"no members":     {},
		"self":           {Members: three, Self: 3},
		"negative self":  {Members: three, Self: -1},
		"twice":          {Members: []string{"a", "b", "a"}},
		"block size":     {Members: three, BlockSize: -1},
		"large blocks":   {Members: three, BlockSize: 1<<30 + 1},
		"algorithm":      {Members: three, Algorithm: 99},
		"no racks":       {Members: three, Algorithm: schedule.Hybrid},
		"racks":          {Members: three, Algorithm: schedule.Hybrid, Racks: []int{1}},
		"unwanted racks": {Members: three, Racks: []int{1, 1, 1}},
		"ahead":          {Members: three, Ahead: 4},
		"have":           {Members: three, Have: -1},
		"too many":       {Members: memberNames(schedule.MaxNodes + 1)},
		"negative ahead": {Members: three, Ahead: -1},
		"small":          {Members: three, SmallMax: -1},
		"large small":    {Members: three, SmallMax: 1<<30 + 1},
		"more racks":     {Members: three, Algorithm: schedule.Hybrid, Racks: []int{1, 1, 1, 1}},
		"racks of one":   {Members: memberNames(1), Algorithm: schedule.Hybrid, Racks: []int{1, 1}},
		"racks alone":    {Members: memberNames(1), Racks: []int{1}},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []Config{
		{Members: three, Self: 2, BlockSize: 1, Ahead: 3},
		{Members: three, BlockSize: 1 << 30, SmallMax: 1 << 30, Have: 1<<63 - 1},
		{Members: memberNames(schedule.MaxNodes), Self: schedule.MaxNodes - 1},
		{Members: memberNames(1), Algorithm: schedule.Hybrid},
	} {
		if e, err := New(c); err != nil || e.BlockSize() != c.BlockSize && e.BlockSize() != 1<<20 {
			t.Errorf("%d members, %+v: %v", len(c.Members), c.BlockSize, err)
		}
	}
}

// Names that run together, in another order, or of another root are not the same, and neither
// are racks.
func TestDigests(t *testing.T) {
	seen := map[hello]string{}
	for _, c := range []struct {
		members []string
		racks   []int
	}{
		{[]string{"a", "bc"}, nil},
		{[]string{"ab", "c"}, nil},
		{[]string{"a", "b", "c"}, nil},
		{[]string{"a", "c", "b"}, nil},
		{[]string{"a", "bc"}, []int{0, 1}},
		{[]string{"a", "bc"}, []int{1, 0}},
		{[]string{"a", "bc"}, []int{0, 0}},
	} {
		var h hello
		h.digest(c.members, c.racks)
		name := fmt.Sprint(c)
		if seen[h] != "" {
			t.Errorf("%s is the same as %s", name, seen[h])
		}
		seen[h] = name
	}
}

// A greeting that differs says in what, and what differs most comes first.
func TestDiffers(t *testing.T) {
	mine := hello{Nodes: 2, BlockSize: 4, Algorithm: 1, SmallMax: 9, Root: [8]byte{1}, Racks: [8]byte{2}, Members: [32]byte{3}}
	other := mine
	other.Self, other.Counts, other.Have = 1, 1, 7
	if d := mine.differs(&other); d != "" {
		t.Error(d)
	}
	for _, c := range []struct {
		change func(h *hello)
		want   string
	}{
		{func(h *hello) { h.Racks[7]++ }, "other racks"},
		{func(h *hello) { h.SmallMax++ }, "small messages of up to 9 and 10 bytes"},
		{func(h *hello) { h.Algorithm++ }, "algorithms 1 and 2"},
		{func(h *hello) { h.BlockSize++ }, "block sizes 4 and 5"},
		{func(h *hello) { h.Members[31]++ }, "other members, or the same in another order"},
		{func(h *hello) { h.Root[7]++ }, "another root"},
		{func(h *hello) { h.Nodes++ }, "2 members and 3"},
	} {
		if c.change(&other); mine.differs(&other) != c.want {
			t.Errorf("%q, want %q", mine.differs(&other), c.want)
		}
	}
}
