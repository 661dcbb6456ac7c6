package replica

import (
	"sync"
	"testing"
)

// TestMailbox: what is posted is carried out one at a time and in order, also when it posts itself; nothing is lost, nor done after close.
func TestMailbox(t *testing.T) {
	for _, inline := range []bool{true, false} {
		const posters, each = 4, 2000
		done, after := [posters][]int{}, 0 // the race detector sees two at a time
		m := newMailbox(inline, func() { after++ })
		m.post(func() {}) // before run
		ended := make(chan struct{})
		go func() {
			m.run()
			close(ended)
		}()
		var wg sync.WaitGroup
		for p := range posters {
			wg.Go(func() {
				for i := range each {
					m.post(func() {
						done[p] = append(done[p], 2*i)
						m.post(func() { after++ })
					})
				}
			})
		}
		wg.Wait()
		m.close()
		m.close()
		m.post(func() { t.Error("it was closed") })
		<-ended
		for p := range posters {
			for i, x := range done[p] {
				if x != 2*i {
					t.Fatalf("%d comes at place %d", x, i)
				}
			}
			if len(done[p]) != each {
				t.Errorf("%d of %d", len(done[p]), each)
			}
		}
		if least := 1 + posters*each; after < least {
			t.Errorf("after was called %d times, and not %d", after, least)
		}
	}
}

// TestMailboxInline: a caller carries out its own, and is not held up while another does.
func TestMailboxInline(t *testing.T) {
	m := newMailbox(true, func() {})
	ended := make(chan struct{})
	go func() {
		m.run()
		close(ended)
	}()
	begun, goOn := make(chan struct{}), make(chan struct{})
	go m.post(func() {
		close(begun)
		<-goOn
	})
	<-begun
	done := false
	m.post(func() { done = true }) // returns, though the first one has not
	close(goOn)
	m.close()
	if <-ended; !done {
		t.Error("what came meanwhile was not carried out")
	}
}
