package groups

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// TestNumbersAgainstSet compares numbers with a set that is searched linearly.
func TestNumbersAgainstSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.OneOf(rapid.IntRange(1, 200), rapid.SampledFrom([]int{63, 64, 65, 127, 128, 65535})).Draw(t, "limit")
		n := newNumbers("things", limit)
		used := map[int]bool{}
		type span struct{ first, count int }
		var given []span
		find := func(count int) int {
			for i, run := 1, 0; i <= limit; i++ {
				if run++; used[i] {
					run = 0
				}
				if run == count {
					return i - count + 1
				}
			}
			return 0
		}
		mark := func(first, count int, to bool) {
			for i := first; i < first+count; i++ {
				if delete(used, i); to {
					used[i] = true
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				count := rapid.OneOf(rapid.IntRange(1, 16), rapid.IntRange(1, limit)).Draw(t, "count")
				want := find(count)
				got, err := n.take(count)
				if int(got) != want || (want == 0) != errors.Is(err, ErrLimit) {
					t.Fatalf("take(%d): %d, %v; want %d", count, got, err, want)
				}
				if want > 0 {
					mark(want, count, true)
					given = append(given, span{want, count})
				}
			},
			"give": func(t *rapid.T) {
				if len(given) == 0 {
					t.Skip("nothing is given")
				}
				i := rapid.IntRange(0, len(given)-1).Draw(t, "which")
				s := given[i]
				given = append(given[:i], given[i+1:]...)
				n.give(uint16(s.first), s.count)
				mark(s.first, s.count, false)
			},
			"keep": func(t *rapid.T) {
				first, count := rapid.IntRange(1, limit).Draw(t, "first"), rapid.IntRange(1, 16).Draw(t, "count")
				n.keep(uint16(first), count)
				if first+count-1 > limit {
					return // not what this switch has numbers for
				}
				for i := first; i < first+count; i++ {
					if !used[i] {
						given = append(given, span{i, 1})
					}
				}
				mark(first, count, true)
			},
			"free": func(t *rapid.T) {
				first, count := rapid.IntRange(1, limit).Draw(t, "first"), rapid.IntRange(1, 16).Draw(t, "count")
				want := first+count-1 <= limit
				for i := first; i < first+count; i++ {
					want = want && !used[i]
				}
				if got := n.free(uint16(first), count); got != want {
					t.Fatalf("free(%d, %d): %t", first, count, got)
				}
			},
			"": func(t *rapid.T) {
				if n.count != len(used) {
					t.Fatalf("%d are in use, and it says %d", len(used), n.count)
				}
			},
		})
	})
}

func TestNumbersGiveNothing(t *testing.T) {
	n := newNumbers("things", 10)
	n.give(0, 3) // of what was not installed
	if first, err := n.take(10); first != 1 || err != nil {
		t.Errorf("%d, %v", first, err)
	}
	if _, err := n.take(1); !errors.Is(err, ErrLimit) || err.Error() != "limit reached: the switch has 10 things, and 10 are in use; 1 more are needed" {
		t.Error(err)
	}
}
