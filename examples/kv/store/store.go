// Package store is a key-value store that replicates over the library: a primary, and backups that
// have everything that was put. See examples/kv.
package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// MaxEntry is the most bytes of a key and its value together.
const MaxEntry = 4096

const service, slots, slot = "kv", 64, 2 + MaxEntry // entries under way, and the bytes of one

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
	group   *mcrdma.Group
	free    chan mcrdma.Piece
	spare   mcrdma.Piece // of Keep
}

// NewPrimary makes the group with the backups, which are hosts.
func NewPrimary(ctx context.Context, client *mcrdma.Client, cfg mcrdma.GroupConfig, backups ...string) (*Primary, error) {
	memory, err := client.Alloc((slots + 1) * slot)
	if err != nil {
		return nil, err
	}
	p := &Primary{table: table{entries: map[string]string{}}, free: make(chan mcrdma.Piece, slots), spare: memory.Slice(slots*slot, slot)}
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

// Keep takes backups back that were taken out, when their hosts listen again, and sends each what
// was put without it, until ctx ends.
func (p *Primary) Keep(ctx context.Context) {
	complete := map[string]uint64{} // by address, the From of a backup that has been sent what it lacked
	for ; ctx.Err() == nil; <-time.After(time.Second) {
		for _, d := range p.group.Departures() {
			if !slices.ContainsFunc(p.group.Info().Members, func(m mcrdma.Peer) bool { return m.Address == d.Address }) {
				_, _ = p.group.Add(ctx, d.Address) // an error: its host does not listen yet
			}
		}
		for _, m := range p.group.View().Members {
			if m.From > complete[m.Address] && p.catchUp(ctx, m) == nil {
				complete[m.Address] = m.From
			}
		}
	}
}

// catchUp sends a backup all that it may lack: it has the entries from From on. After an error it
// can be called again.
func (p *Primary) catchUp(ctx context.Context, backup mcrdma.Peer) error {
	p.mu.Lock()
	applied := p.applied
	p.mu.Unlock()
	if applied < backup.From {
		return fmt.Errorf("%d of %d entries are in the table yet", applied, backup.From)
	}
	u, err := p.group.Unicast(backup.Address)
	for key, value := range p.All() {
		if err == nil {
			err = u.Send(ctx, encode(p.spare, key, value))
		}
	}
	return err
}

// Close waits for what is under way, and ends the group.
func (p *Primary) Close(ctx context.Context) error { return p.group.Close(ctx) }

// A Backup has what the primary puts.
type Backup struct{ table }

// NewBackup listens. The backup is empty, and is again whenever it joins.
func NewBackup(ctx context.Context, client *mcrdma.Client) (*Backup, error) {
	b := &Backup{table{entries: map[string]string{}}}
	memory, err := client.Alloc(slots * slot)
	if err != nil {
		return nil, err
	}
	grant := &mcrdma.Grant{Replenish: true}
	for i := range slots {
		grant.Receives = append(grant.Receives, memory.Slice(i*slot, slot))
	}
	l, err := client.Listen(ctx, mcrdma.ListenConfig{Service: service, Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
		return grant, nil
	}})
	if err == nil {
		go b.receive(ctx, l)
	}
	return b, err
}

// receive takes groups' entries: what comes to all is newer than what comes to this backup alone.
func (b *Backup) receive(ctx context.Context, l *mcrdma.Listener) {
	for m, err := l.Accept(ctx); err == nil; m, err = l.Accept(ctx) {
		b.mu.Lock()
		clear(b.entries)
		b.mu.Unlock()
		for r, err := m.Recv(ctx); err == nil; r, err = m.Recv(ctx) {
			key, value := decode(r.Bytes())
			b.mu.Lock()
			if _, has := b.entries[key]; !r.Unicast || !has {
				b.entries[key] = value
			}
			b.mu.Unlock()
		}
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
