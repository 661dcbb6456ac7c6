package rdmcfallback

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// next returns a member's next event.
func next(t *testing.T, tr Transport) Event {
	t.Helper()
	var events [1]Event
	if n, err := tr.Events(limited(t), events[:]); n != 1 || err != nil {
		t.Fatalf("%d events, %v", n, err)
	}
	return events[0]
}

func TestPipe(t *testing.T) {
	p := Pipe(2)
	buf := make([]byte, 4)
	if err := p[1].PostRecv(0, buf); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, p[0]); ev.Kind != EventReady || ev.Peer != 1 {
		t.Fatalf("%+v", ev)
	}
	if err := p[0].Send(1, 7, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, p[0]); ev.Kind != EventSent || ev.Peer != 1 {
		t.Fatalf("%+v", ev)
	}
	if ev := next(t, p[1]); ev.Kind != EventReceived || ev.Peer != 0 || ev.Imm != 7 || ev.N != 3 || string(buf[:3]) != "abc" {
		t.Fatalf("%+v", ev)
	}
	if err := p[1].Tell(0, []byte("psst")); err != nil {
		t.Fatal(err)
	}
	if err := p[1].Close(); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, p[0]); ev.Kind != EventTold || string(ev.Msg) != "psst" {
		t.Fatalf("%+v", ev)
	}
	if ev := next(t, p[0]); ev.Kind != EventDown || ev.Err == nil {
		t.Fatalf("%+v", ev)
	}
	// What comes after Down vanishes.
	if err := errors.Join(p[0].Send(1, 1, buf), p[0].Tell(1, buf), p[0].PostRecv(1, buf)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(limited(t))
	cancel()
	if n, err := p[0].Events(ctx, make([]Event, 1)); n != 0 || !errors.Is(err, context.Canceled) {
		t.Fatal(n, err)
	}
	if err := errors.Join(p[0].Close(), p[0].Close()); err != nil {
		t.Fatal(err)
	}
}

// What is against the rules is an error.
func TestPipeMisused(t *testing.T) {
	p := Pipe(2)
	for name, err := range map[string]error{
		"not ready":      p[0].Send(1, 0, nil),
		"no member":      p[0].Send(2, 0, nil),
		"itself":         p[0].Tell(0, []byte("x")),
		"nothing":        p[0].Tell(1, nil),
		"too much":       p[0].Tell(1, make([]byte, MaxTell+1)),
		"from member -1": p[0].PostRecv(-1, nil),
		"no ring":        p[0].(Ring).PutSmall(1, 0, nil),
		"not taken":      p[1].(Ring).FreeSmall(1),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := p[1].PostRecv(0, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	if err := p[0].Send(1, 0, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, p[1]); ev.Kind != EventDown {
		t.Errorf("a block too long: %+v", ev)
	}
	if err := errors.Join(p[0].Close(), p[1].Close()); err != nil {
		t.Error(err)
	}
	if err := p[0].PostRecv(1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("PostRecv after Close: %v", err)
	}
}

// When Close has returned, no goroutine writes to the buffers.
func TestPipeCloseWaits(t *testing.T) {
	for range 50 {
		p := Pipe(2)
		buf, block := make([]byte, 1<<20), make([]byte, 1<<20)
		if err := p[1].PostRecv(0, buf); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p[0].Send(1, 0, block); err != nil {
				t.Error(err)
			}
		})
		if err := p[1].Close(); err != nil {
			t.Fatal(err)
		}
		clear(buf) // the race detector watches
		wg.Wait()
		if err := p[0].Close(); err != nil {
			t.Fatal(err)
		}
	}
}
