package engine

import "testing"

// TestMayStart: one transfer more than Ahead may be in flight with any peers, and two with one
// peer.
func TestMayStart(t *testing.T) {
	for _, c := range []struct {
		ahead  int
		others []int // peers
		peer   int
		want   bool
	}{
		{0, nil, 1, true}, {0, []int{1}, 1, true}, {0, []int{2}, 1, false}, {0, []int{1, 1}, 1, false},
		{1, []int{2}, 1, true}, {1, []int{2, 3}, 1, false}, {1, []int{1, 1}, 1, false},
		{3, []int{2, 3, 4}, 1, true}, {3, []int{1, 1, 1, 1}, 1, false},
	} {
		e := &Engine{cfg: Config{Ahead: c.ahead}}
		var others []transfer
		for _, p := range c.others {
			others = append(others, transfer{peer: p})
		}
		if got := e.mayStart(others, c.peer); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
