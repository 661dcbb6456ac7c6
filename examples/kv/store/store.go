// Package store is a key-value store that replicates over the library: a primary, and backups that
// have everything that was put. See examples/kv.
package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// MaxEntry is the most bytes of a key and its value together.
const MaxEntry = 4096

const (
	service, catchUp = "kv", "kv.catchup" // by the second a backup gets what was put before it joined
	slots, slot      = 64, 2 + MaxEntry   // entries under way, and the bytes of one
)

// A table is what a primary or a backup has.
type table struct {
	mu      sync.Mutex // never held while an entry is on its way
	entries map[string]string
}

// Get returns the value of a key here.
func (t *table) Get(key string) (value string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, ok = t.entries[key]
	return value, ok
}

// All returns all that is here.
func (t *table) All() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.entries)
}

// A Primary puts entries at all backups.
type Primary struct {
	table
	applied uint64 // entries
	client  *mcrdma.Client
	group   *mcrdma.Group
	free    chan mcrdma.Piece
}

// NewPrimary makes the group with the backups, which are hosts.
func NewPrimary(ctx context.Context, client *mcrdma.Client, cfg mcrdma.GroupConfig, backups ...string) (*Primary, error) {
	p := &Primary{table: table{entries: map[string]string{}}, client: client, free: make(chan mcrdma.Piece, slots)}
	memory, err := client.Alloc(slots * slot)
	if err != nil {
		return nil, err
	}
	for i := range slots {
		p.free <- memory.Slice(i*slot, slot)
	}
	cfg.Service, cfg.Receivers, cfg.Depth = service, backups, slots
	p.group, err = client.Create(ctx, cfg)
	return p, err
}

// Put returns when all backups that are in the group have the entry. Any number of callers may put
// at once: of one key, the last value that was submitted stays, everywhere. If ctx ends before, the
// entry may still be put.
func (p *Primary) Put(ctx context.Context, key, value string) error {
	if len(key)+len(value) > MaxEntry {
		return fmt.Errorf("an entry of %d bytes; at most %d", len(key)+len(value), MaxEntry)
	}
	var piece mcrdma.Piece
	select {
	case piece = <-p.free:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	op := &mcrdma.Op{Kind: mcrdma.OpSend, Pieces: []mcrdma.Piece{encode(piece, key, value)}, Done: func(op *mcrdma.Op) {
		if op.Err == nil { // one after the other, in the order of the group
			p.mu.Lock()
			p.entries[key], p.applied = value, op.Number+1
			p.mu.Unlock()
		}
		p.free <- piece
		done <- op.Err
	}}
	if err := p.group.Submit(ctx, op); err != nil {
		p.free <- piece
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Keep takes backups back that were taken out, when their hosts listen again, until ctx ends.
func (p *Primary) Keep(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(time.Second) {
		for _, d := range p.group.Departures() {
			if slices.ContainsFunc(p.group.View().Members, func(m mcrdma.Peer) bool { return m.Address == d.Address }) {
				continue
			}
			if cut, err := p.group.Add(ctx, d.Address); err == nil {
				_ = p.catchUp(ctx, d.Address, cut) // with an error it is out again
			}
		}
	}
}

// catchUp sends a backup all that it may lack: it has the entries from cut on.
func (p *Primary) catchUp(ctx context.Context, backup string, cut uint64) error {
	for applied := uint64(0); applied < cut; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		applied = p.applied
		p.mu.Unlock()
	}
	g, err := p.client.Create(ctx, mcrdma.GroupConfig{Service: catchUp, Receivers: []string{backup}})
	if err != nil {
		return err
	}
	memory, err := p.client.Alloc(slot)
	for key, value := range p.All() {
		if err == nil {
			err = g.Send(ctx, encode(memory.All(), key, value))
		}
	}
	return errors.Join(err, g.Close(ctx), memory.Close())
}

// Close waits for what is under way, and ends the group.
func (p *Primary) Close(ctx context.Context) error { return p.group.Close(ctx) }

// A Backup has what the primary puts.
type Backup struct{ table }

// NewBackup listens. The backup is empty, and is again whenever it joins.
func NewBackup(ctx context.Context, client *mcrdma.Client) (*Backup, error) {
	b := &Backup{table{entries: map[string]string{}}}
	return b, errors.Join(b.listen(ctx, client, service, true), b.listen(ctx, client, catchUp, false))
}

func (b *Backup) listen(ctx context.Context, client *mcrdma.Client, service string, live bool) error {
	l, err := client.Listen(ctx, mcrdma.ListenConfig{Service: service, Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
		if live {
			b.mu.Lock()
			clear(b.entries)
			b.mu.Unlock()
		}
		memory, err := client.Alloc(slots * slot)
		g := &mcrdma.Grant{}
		for i := 0; err == nil && i < slots; i++ {
			g.Receives = append(g.Receives, memory.Slice(i*slot, slot))
		}
		return g, err
	}})
	if err == nil {
		go func() {
			for m, err := l.Accept(ctx); err == nil; m, err = l.Accept(ctx) {
				go b.receive(ctx, m, live)
			}
		}()
	}
	return err
}

// receive takes a group's entries: what comes live is newer than what is caught up.
func (b *Backup) receive(ctx context.Context, m *mcrdma.Member, live bool) {
	for r, err := m.Recv(ctx); err == nil; r, err = m.Recv(ctx) {
		key, value := decode(r.Bytes())
		b.mu.Lock()
		if _, has := b.entries[key]; live || !has {
			b.entries[key] = value
		}
		b.mu.Unlock()
		_ = m.PostRecv(r.Piece) // an error: the group has ended
	}
}

func encode(p mcrdma.Piece, key, value string) mcrdma.Piece {
	b := p.Bytes()
	binary.BigEndian.PutUint16(b, uint16(len(key))) //nolint:gosec // at most MaxEntry
	n := 2 + copy(b[2:], key)
	return p.Slice(0, n+copy(b[n:], value))
}

func decode(b []byte) (key, value string) {
	n := 2 + binary.BigEndian.Uint16(b)
	return string(b[2:n]), string(b[n:])
}
