package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/tests/chaos/history"
	"github.com/mcrdma/mcrdma/tests/chaos/orders"
)

// receives is the number of messages for which a member has posted receives.
const receives = 16

// A member is this application's part in a group in which it receives.
type member struct {
	a       *app
	journal *journal
	regions []*mcrdma.Memory
	places  *mcrdma.Memory
	largest int
	joined  bool
	ended   chan struct{} // closed when the membership has ended
}

func (a *app) listen(args orders.ListenArgs) (any, error) {
	ctx, cancel := wait(10_000)
	defer cancel()
	l, err := a.client.Listen(ctx, mcrdma.ListenConfig{Service: args.Group.Name, Accept: func(r *mcrdma.Request) (*mcrdma.Grant, error) {
		return a.grant(&args, r)
	}})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			m, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			a.mu.Lock()
			x := a.members[args.Group.Name]
			x.joined = true
			a.mu.Unlock()
			x.journal.put(history.Entry{What: history.Joined, Text: m.Info().ID.String()})
			go x.receive(m)
		}
	}()
	return nil, nil
}

// grant gives memory in files, whose content survives the process.
func (a *app) grant(args *orders.ListenArgs, r *mcrdma.Request) (*mcrdma.Grant, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := args.Group.Name
	if a.members[name] != nil {
		return nil, errors.New("there has been such a group")
	}
	j, err := a.journal(orders.MemberFile(name, a.args.Host, a.args.Life))
	if err != nil {
		return nil, err
	}
	x := &member{a: a, journal: j, largest: args.Group.Largest, ended: make(chan struct{})}
	g := &mcrdma.Grant{}
	for i, region := range r.Regions {
		b, err := mapped(filepath.Join(a.args.Dir, orders.RegionFile(name, a.args.Host, a.args.Life, i)), int(region.Length)) //nolint:gosec // a small one
		if err != nil {
			return nil, err
		}
		m, err := a.client.Register(b)
		if err != nil {
			return nil, err
		}
		x.regions = append(x.regions, m)
		g.Regions = append(g.Regions, m.All())
	}
	if x.places, err = a.client.Alloc(receives * x.largest); err != nil {
		return nil, err
	}
	for i := range receives {
		g.Receives = append(g.Receives, x.places.Slice(i*x.largest, x.largest))
	}
	a.members[name] = x
	return g, nil
}

// mapped maps a file's memory. It stays mapped: the process is short-lived.
func mapped(name string, n int) ([]byte, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(n)); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) //nolint:gosec // a descriptor
	return b, os.NewSyscallError("mmap", err)
}

var kindNames = map[mcrdma.Kind]string{mcrdma.OpWrite: history.Write, mcrdma.OpWriteImm: history.WriteImm,
	mcrdma.OpSend: history.Send, mcrdma.OpSendImm: history.SendImm}

// receive takes messages until the membership has ended.
func (x *member) receive(m *mcrdma.Member) {
	defer close(x.ended)
	go func() {
		for e := range m.Events() {
			x.journal.put(history.Entry{What: history.Note, Text: e.String()})
		}
	}()
	for {
		r, err := m.Recv(context.Background())
		if err != nil {
			x.journal.put(history.Entry{What: history.Ended, Text: err.Error()})
			break
		}
		e := history.Entry{What: history.Receive, Kind: kindNames[r.Kind], Size: r.N, Imm: r.Imm}
		if r.Kind != mcrdma.OpWriteImm {
			e.Sum = history.Sum(r.Bytes())
		}
		x.journal.put(e)
		_ = m.PostRecv(r.Piece) // Recv reports errors of this
	}
	_ = m.Close()
	for _, mem := range append(x.regions, x.places) {
		if err := mem.Close(); err != nil {
			x.journal.put(history.Entry{What: "bad", Text: fmt.Sprint("memory: ", err)})
		}
	}
}

func (a *app) settle(args orders.FinishArgs) (any, error) {
	a.mu.Lock()
	x := a.members[args.Name]
	joined := x != nil && x.joined
	a.mu.Unlock()
	if !joined {
		return nil, nil
	}
	select {
	case <-x.ended:
	case <-time.After(time.Duration(args.Millis) * time.Millisecond):
	}
	return nil, nil
}
