package mcrdmatest

import (
	"bytes"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// TestRack: groups by the switch and by hosts; a receiver is killed, another's cable cut, and both come back.
// Nothing runs when the test has ended.
func TestRack(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	r := Start(t, 4)
	const size = 10_000
	members := map[string]*mcrdma.Listener{}
	receive := func(host string) {
		t.Helper()
		c := r.Dial(host)
		mem, err := c.Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		members[host], err = c.Listen(t.Context(), mcrdma.ListenConfig{Service: "s", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
			return &mcrdma.Grant{Regions: []mcrdma.Piece{mem.All()}}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range []string{"h2", "h3", "h4"} {
		receive(h)
	}
	sender := r.Dial("h1")
	mem, err := sender.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	for mode, path := range map[mcrdma.Mode]mcrdma.Path{mcrdma.ModeRequire: mcrdma.PathSwitch, mcrdma.ModeOff: mcrdma.PathRelay} {
		g, err := sender.Create(t.Context(), mcrdma.GroupConfig{Service: "s", Receivers: []string{"h2", "h3", "h4"}, Mode: mode, MinSize: 1,
			Regions: []mcrdma.Region{{Length: size}}})
		if err != nil {
			t.Fatal(err)
		}
		write := func(to ...string) {
			t.Helper()
			copy(mem.Bytes(), time.Now().String())
			if err := g.Write(t.Context(), mcrdma.At{}, mem.All()); err != nil {
				t.Fatal(err)
			}
			for _, h := range to {
				m, err := members[h].Accept(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(m.Region(0), mem.Bytes()) {
					t.Errorf("%v: %s does not have what was written", mode, h)
				}
				m.Region(0) // what is written after this comes after that, for the race detector
			}
		}
		write("h2", "h3", "h4")
		if i := g.Info(); i.Path != path {
			t.Errorf("%v: by %v: %q", mode, i.Path, i.Why)
		}
		removed := func(host string) {
			t.Helper()
			for e := range g.Events() {
				if e.Type == mcrdma.EventRemoved {
					if e.Host != host {
						t.Errorf("%v instead of %s", e, host)
					}
					return
				}
			}
			t.Error(g.Err())
		}
		r.Kill("h3")
		removed("h3")
		if path == mcrdma.PathSwitch {
			r.Cut("h4", true)
			write()
			removed("h4")
			r.Cut("h4", false)
		} else {
			r.Close("h4")
			removed("h4")
		}
		write()
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		r.Close("h4")
		receive("h3")
		receive("h4")
	}
	for name, f := range map[string]func(testing.TB){"no host": func(tb testing.TB) { (&Rack{tb: tb}).Dial("h9") }, "too few": func(tb testing.TB) { Start(tb, 1) }} {
		fake := &fatal{TB: t}
		func() {
			defer func() { _ = recover() }()
			f(fake)
		}()
		if !fake.failed {
			t.Errorf("%s: the test goes on", name)
		}
	}
	if err := sender.Close(); err != nil {
		t.Error(err)
	}
}

// fatal is a test that may fail.
type fatal struct {
	testing.TB
	failed bool
}

func (f *fatal) Fatalf(string, ...any) {
	f.failed = true
	panic("it ends here")
}

// TestCloseDuringAccept: a Client closes although the application's Accept hangs, and the sender learns that it has left.
func TestCloseDuringAccept(t *testing.T) {
	rack := Start(t, 2)
	asked, forever := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(forever) })
	receiver := rack.Dial("h2")
	if _, err := receiver.Listen(t.Context(), mcrdma.ListenConfig{Service: "s", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
		close(asked)
		<-forever
		return &mcrdma.Grant{}, nil
	}}); err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	sender := rack.Dial("h1")
	go func() {
		_, err := sender.Create(t.Context(), mcrdma.GroupConfig{Service: "s", Receivers: []string{"h2"}})
		created <- err
	}()
	<-asked
	closed := make(chan error, 1)
	go func() { closed <- receiver.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not close")
	}
	if err := <-created; err == nil {
		t.Error("a group with a receiver that has left")
	}
}
