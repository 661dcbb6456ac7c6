package replica

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// leadEvents keeps what a group that is led reports. It allows each view.
type leadEvents struct {
	isFormed, isAdded bool
	last              uint64 // that all have
}

func (e *leadEvents) formed(*leading, error)                      { e.isFormed = true }
func (e *leadEvents) added(*leading, core.Member, uint64, error)  { e.isAdded = true }
func (e *leadEvents) asked(g *leading, n uint32, _ []core.Member) { g.answer(n, true) }
func (e *leadEvents) completed(_ *leading, index uint64)          { e.last = index }
func (e *leadEvents) durable(*leading, core.Member, uint64)       {}
func (e *leadEvents) ended(*leading, error)                       {}

// TestAddedWithFullRing: entries wait for room in the ring, which a member that is being added takes. They are sent once it is added,
// and wait for no later write.
func TestAddedWithFullRing(t *testing.T) {
	rack := mcrdmatest.Start(t, 3)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const entry, most = 1 << 10, 8
	iv, name := core.Interval{Since: 1}, service(1)
	receiver := func(host string) (address string) { // consumes all that comes
		client := rack.Dial(host)
		ring, err := client.Alloc(most * entry)
		must(err)
		l, err := client.Listen(t.Context(), mcrdma.ListenConfig{Service: name, Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
			return &mcrdma.Grant{Regions: []mcrdma.Piece{ring.All()}, Receives: make([]mcrdma.Piece, 2*depth), Replenish: true}, nil
		}})
		must(err)
		go func() {
			m, err := l.Accept(t.Context())
			if err != nil || m.SetCounter(counterIncarnation, 1) != nil {
				return
			}
			for {
				r, err := m.Recv(t.Context())
				if err != nil {
					return
				}
				e, err := wal.ParseHeader(m.Region(0)[int(r.Imm)*align:][:wal.HeaderSize])
				if err != nil || m.SetCounter(counterConsumed, e.Version.Index) != nil {
					return
				}
			}
		}()
		return client.Address()
	}
	loop := make(chan func(), 1024)
	var wg sync.WaitGroup
	defer wg.Wait()
	client, events := rack.Dial("h1"), &leadEvents{}
	memory := newPool(1<<20, client.Alloc, func() {}, nil)
	g := lead(t.Context(), client, mcrdma.GroupConfig{Service: name}, iv, map[string]core.Member{receiver("h2"): {ID: 2, Incarnation: 1}}, 1, most*entry, &wg, func(f func()) { loop <- f }, events)
	defer g.close()
	until := func(what string, is func() bool) {
		t.Helper()
		for late := time.After(20 * time.Second); !is(); {
			select {
			case f := <-loop:
				f()
			case <-late:
				t.Fatalf("%s: not in time; %d entries wait, all have %d", what, len(g.queue), events.last)
			}
		}
	}
	index := uint64(0)
	write := func() {
		index++
		b, err := memory.get(t.Context(), entry-wal.HeaderSize)
		must(err)
		g.write(item{Entry: wal.Entry{Version: core.Version{Epoch: 1, Index: index}, Kind: wal.Data, Length: entry - wal.HeaderSize, Data: b.Bytes()}, buf: b})
		b.Release()
	}
	until("formed", func() bool { return events.isFormed })
	write()
	until("an entry", func() bool { return events.last == 1 })
	h3 := receiver("h3")
	g.add(h3, core.Member{ID: 3, Incarnation: 1})
	for range 2 * most { // the first ones complete before it is added
		write()
	}
	until("added", func() bool { return events.isAdded })
	until(fmt.Sprint(index, " entries"), func() bool { return events.last == index })
}
