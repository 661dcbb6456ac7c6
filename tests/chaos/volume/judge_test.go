package volume

import (
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

func write(v uint64, call, ret int64) Op { return Op{Kind: Write, Value: v, Call: call, Return: ret} }
func read(v uint64, call, ret int64) Op  { return Op{Kind: Read, Value: v, Call: call, Return: ret} }
func flushed(call, ret int64) Op         { return Op{Kind: Flush, Call: call, Return: ret} }
func fua(v uint64, call, ret int64) Op {
	return Op{Kind: Write, FUA: true, Value: v, Call: call, Return: ret}
}

// TestCheck: histories that keep the promises pass, and those that break them slightly do not.
func TestCheck(t *testing.T) {
	for _, x := range []struct {
		name   string
		ops    []Op
		losses []int64
		ok     bool
	}{
		{"the last write is read", []Op{write(1, 1, 2), write(2, 3, 4), read(2, 5, 6)}, nil, true},
		{"a stale read", []Op{write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)}, nil, false},
		{"a read that began before the write had ended", []Op{write(1, 1, 2), write(2, 3, 6), read(1, 4, 7), read(2, 8, 9)}, nil, true},
		{"a write that has not ended takes effect late", []Op{write(1, 1, Never), read(0, 2, 3), read(1, 4, 5)}, nil, true},
		{"and is gone again", []Op{write(1, 1, Never), read(1, 2, 3), read(0, 4, 5)}, nil, false},
		{"a value that no client wrote", []Op{write(1, 1, 2), read(7, 3, 4)}, nil, false},
		{"a loss forgets what was not flushed", []Op{write(1, 1, 2), write(2, 3, 4), read(0, 11, 12)}, []int64{10}, true},
		{"but not what was", []Op{write(1, 1, 2), flushed(3, 4), write(2, 5, 6), read(0, 11, 12)}, []int64{10}, false},
		{"it keeps that", []Op{write(1, 1, 2), flushed(3, 4), write(2, 5, 6), read(1, 11, 12)}, []int64{10}, true},
		{"or what came later", []Op{write(1, 1, 2), flushed(3, 4), write(2, 5, 6), read(2, 11, 12)}, []int64{10}, true},
		{"and then keeps to it", []Op{write(1, 1, 2), flushed(3, 4), write(2, 5, 6), read(2, 11, 12), read(1, 13, 14)}, []int64{10}, false},
		{"a flush that was begun before covers nothing", []Op{flushed(1, 4), write(1, 2, 3), read(0, 11, 12)}, []int64{10}, true},
		{"a write with FUA is flushed", []Op{fua(1, 1, 2), read(0, 11, 12)}, []int64{10}, false},
		{"what was overwritten and flushed does not come back", []Op{write(1, 1, 2), fua(2, 3, 4), read(1, 11, 12)}, []int64{10}, false},
		{"what was under way may", []Op{write(1, 1, Never), fua(2, 3, 4), read(1, 11, 12)}, []int64{10}, true},
		{"a write that is made again after the loss", []Op{fua(2, 3, 4), write(1, 5, 14), read(2, 11, 12), read(1, 15, 16)}, []int64{10}, true},
		{"and again after it was read", []Op{write(1, 1, Never), read(1, 2, 3), read(1, 11, 12), write(2, 13, 14), read(2, 15, 16), read(1, 17, 18)}, []int64{10}, true},
		{"read before it was written", []Op{read(1, 1, 2), write(1, 3, Never)}, nil, false},
		{"two losses", []Op{fua(1, 1, 2), write(2, 11, 12), read(1, 21, 22)}, []int64{10, 20}, true},
		{"the first one's flush counts after the second", []Op{fua(1, 1, 2), write(2, 11, 12), read(0, 21, 22)}, []int64{10, 20}, false},
		{"without a loss nothing is forgotten", []Op{write(1, 1, 2), read(0, 11, 12)}, nil, false},
	} {
		if bad := Check(x.ops, x.losses); (len(bad) == 0) != x.ok {
			t.Errorf("%s: %q", x.name, bad)
		}
	}
}

// TestCheckPending: writes that have not returned do not make the search for an order long,
// whatever the verdict.
func TestCheckPending(t *testing.T) {
	var ops []Op
	for i := range 60 {
		v := uint64(i + 1)
		ops = append(ops, write(v, int64(i), Never))
		if at := int64(100 + 2*i); i%2 == 0 {
			ops = append(ops, read(v, at, at+1))
		}
	}
	stale := append(ops[:len(ops):len(ops)], read(1, 300, 301))
	if bad := Check(ops, nil); len(bad) > 0 {
		t.Errorf("all in order: %q", bad)
	}
	if bad := Check(stale, nil); len(bad) != 1 || !strings.Contains(bad[0], "no order") {
		t.Errorf("a value that was overwritten comes back: %q", bad)
	}
}

// TestLosses: a map without any previous member is a loss, which requires that all of them have
// ended.
func TestLosses(t *testing.T) {
	a := func(list ...core.Member) core.Map { return core.Map{Acting: list} }
	m := func(id core.ID, i uint64) core.Member { return core.Member{ID: id, Incarnation: i} }
	maps := []core.Map{a(m(1, 0), m(2, 0)), a(m(1, 11), m(2, 12)), a(m(2, 12)), a(m(2, 12), m(1, 31)), a(m(1, 51), m(2, 52))}
	lives := []Life{{1, 10, 30}, {2, 10, 50}, {1, 30, 40}, {2, 50, 0}, {1, 50, 0}}
	at, bad := Losses(maps, lives)
	if len(bad) > 0 || len(at) != 1 || at[0] != 50 {
		t.Errorf("%v %q", at, bad)
	}
	lives[1].End = 0
	if _, bad := Losses(maps, lives); len(bad) != 1 || !strings.HasPrefix(bad[0], "revived:") {
		t.Errorf("a member that lives: %q", bad)
	}
}
