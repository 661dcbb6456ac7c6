package library

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// number is a message that says which one it is.
func (tm *team) number(n int) error {
	p := tm.mem.Slice(8*(n%64), 8)
	binary.BigEndian.PutUint64(p.Bytes(), uint64(n))
	return tm.g.Send(tm.t.Context(), p)
}

// counted takes messages until the member's end, and says from which to which they
// went, if there was none missing, twice or out of order.
func (a *app) counted(t *testing.T) (first, last int) {
	const room, size = 32, 8
	for i := range room {
		if err := a.m.PostRecv(a.mem.Slice(a.region+i*size, size)); err != nil {
			t.Error(err)
		}
	}
	first, last = -1, -1
	for {
		r, err := a.m.Recv(t.Context())
		if errors.Is(err, mcrdma.ErrClosed) || errors.Is(err, mcrdma.ErrRemoved) {
			return first, last
		}
		if err != nil {
			t.Errorf("%s: %v", a.h.name, err)
			return first, last
		}
		n := int(binary.BigEndian.Uint64(r.Bytes()))
		if first < 0 {
			first = n
		} else if n != last+1 {
			t.Errorf("%s: message %d follows %d", a.h.name, n, last)
		}
		last = n
		_ = a.m.PostRecv(r.Piece)
	}
}

// TestAdd: a receiver dies, and another takes its place while messages are sent: those
// that stay miss nothing, and the new one begins where it is said that it does.
func TestAdd(t *testing.T) {
	ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
		cfg.MinSize = 2
		tm := l.group("s", l.hosts[0], l.hosts[1:3], 1024, 4096, cfg)
		spare := l.hosts[3].receive("s", 1024, 4096)
		stop := make(chan struct{})
		sent := 0
		var wg, sender sync.WaitGroup
		sender.Go(func() {
			for ; ; sent++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := tm.number(sent); err != nil {
					t.Errorf("message %d: %v", sent, err)
					return
				}
			}
		})
		var first, last [2]int
		wg.Go(func() { first[0], last[0] = tm.apps[0].counted(t) })
		go func() { _, _ = tm.apps[1].m.Recv(t.Context()) }() // it posts nothing: its place is taken before it can hold all up
		for _, bad := range []struct {
			name string
			want error
		}{{l.hosts[1].name, &mcrdma.Error{Reason: mcrdmav1.Reason_DUPLICATE_ADDRESS}}, {"missing", &mcrdma.Error{Reason: mcrdmav1.Reason_NO_SUCH_HOST}}} {
			if _, err := tm.g.Add(t.Context(), bad.name); !errors.Is(err, bad.want) {
				t.Errorf("to add %s: %v", bad.name, err)
			}
		}
		l.hosts[2].kill()
		removed := event(t, tm.g.Events(), mcrdma.EventRemoved)
		if removed.Host != l.hosts[2].name {
			t.Errorf("%v", removed)
		}
		seen := tm.g.Info().Stats.Completed
		eventually(t, "messages", func() bool { return tm.g.Info().Stats.Completed > seen+20 })
		cut, err := tm.g.Add(t.Context(), l.hosts[3].name)
		l.must(err)
		added := event(t, tm.g.Events(), mcrdma.EventAdded)
		if added.Address != l.hosts[3].addr.String() || len(tm.g.Info().Members) != 2 {
			t.Errorf("%v; %+v", added, tm.g.Info().Members)
		}
		if v := tm.g.View(); cut != added.Operation || v.Members[1].From != cut && v.Members[0].From != cut {
			t.Errorf("the cut is %d, the event says %d, and the view %+v", cut, added.Operation, v)
		}
		if d := tm.g.Departures(); len(d) != 1 || d[0].Address != removed.Address || d[0].Operation != removed.Operation || d[0].Why == "" {
			t.Errorf("%+v is listed, the event was %+v", d, removed)
		}
		spare.m, err = spare.l.Accept(t.Context())
		l.must(err)
		wg.Go(func() { first[1], last[1] = spare.counted(t) })
		seen = tm.g.Info().Stats.Completed
		eventually(t, "messages", func() bool { return tm.g.Info().Stats.Completed > seen+20 })
		close(stop)
		sender.Wait()
		if err := tm.g.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if first[0] != 0 || last[0] != sent-1 {
			t.Errorf("the member that stayed had messages %d to %d of %d", first[0], last[0], sent)
		}
		if first[1] != int(added.Operation) || last[1] != sent-1 {
			t.Errorf("the member that joined had messages %d to %d of %d, and was to begin with %d", first[1], last[1], sent, added.Operation)
		}
		if _, err := tm.g.Add(t.Context(), l.hosts[2].name); !errors.Is(err, mcrdma.ErrClosed) {
			t.Errorf("to a group that is closed: %v", err)
		}
	})
}
