package fanout

import "testing"

// TestFanout: each watcher is told what it may see, in order; one that is too slow is told no
// more, and holds up no other.
func TestFanout(t *testing.T) {
	var f Fanout[int]
	f.Tell(1) // there is no watcher
	even, end := f.Watch(func(n int) bool { return n%2 == 0 })
	slow, endSlow := f.Watch(func(int) bool { return true })
	for n := range 2 * Queue {
		f.Tell(n)
		if n%2 == 0 {
			if got := <-even.Events; got != n {
				t.Fatalf("%d instead of %d", got, n)
			}
		}
	}
	for n := range Queue {
		if got, ok := <-slow.Events; !ok || got != n {
			t.Fatalf("%d, %v instead of %d", got, ok, n)
		}
	}
	if _, ok := <-slow.Events; ok {
		t.Error("the slow one is told more")
	}
	end()
	endSlow()
	f.Tell(2)
	select {
	case n := <-even.Events:
		t.Errorf("told %d after its end", n)
	default:
	}
}
