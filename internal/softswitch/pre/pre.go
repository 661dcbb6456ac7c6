// Package pre implements the embedded switch's packet replication engine: the multicast groups and
// clone sessions that the control plane configures, and that the pipeline looks up for each packet
// to be copied.
//
//	e := pre.New(pre.Limits{})
//	err := e.InsertGroup(7, []pre.Replica{{Port: 1, Instance: 1}, {Port: 2, Instance: 2}})
//	for _, r := range e.Group(7) { … } // packet path: an index lookup
//
// Copies are made in the order of the control plane's list of replicas.
//
// The package is pure: it only stores groups and sessions, and copies no
// packets. It is not safe for concurrent use; the owner of an Engine locks it.
package pre

import (
	"errors"
	"fmt"
	"math"
)

// Errors that the errors of this package wrap.
var (
	ErrInvalid  = errors.New("invalid argument")
	ErrExists   = errors.New("already exists")
	ErrNotFound = errors.New("not found")
	ErrFull     = errors.New("no room left")
)

// Bounds of identifiers.
const (
	// MaxPort is the largest port: v1model's ports have 9 bits.
	MaxPort = 511
	// MaxGroup is the largest multicast group: v1model's mcast_grp has 16 bits.
	MaxGroup = 1<<16 - 1
	// MaxSession is the largest clone session, as in bmv2.
	MaxSession = 1<<15 - 1
)

// The limits of a zero Limits.
const (
	DefaultGroups   = 32768
	DefaultReplicas = 262144
	DefaultSessions = 1024
)

// A Replica is one copy of a packet.
type Replica struct {
	Port     uint16 // output port
	Instance uint16 // its egress_rid
}

// A Session is a clone session.
type Session struct {
	// Replicas are the clones, one for each.
	Replicas []Replica
	// ClassOfService is stored only for the control plane to read back; it has no effect on
	// packets.
	ClassOfService int32
	// PacketLength is how many bytes of the packet a clone keeps; 0: all.
	PacketLength int
}

// Limits limit an Engine. 0 means the default.
type Limits struct {
	Groups   int // multicast groups, at most MaxGroup; default DefaultGroups
	Replicas int // in all multicast groups together; default DefaultReplicas
	Sessions int // clone sessions, at most MaxSession; default DefaultSessions
}

// An Engine holds groups and sessions. The values that it returns are immutable: a change replaces
// them.
type Engine struct {
	groups, sessions table

	// Changed, if not nil, is called after a multicast group has changed.
	Changed func(group uint16)
}

// A table holds groups or sessions. A group is a Session with replicas only.
type table struct {
	kind         string     // for messages
	list         []*Session // by number; nil: none
	n, most      int
	replicas     int // total number
	mostReplicas int
}

// New returns an empty Engine.
func New(l Limits) *Engine {
	if l.Groups <= 0 {
		l.Groups = DefaultGroups
	}
	if l.Replicas <= 0 {
		l.Replicas = DefaultReplicas
	}
	if l.Sessions <= 0 {
		l.Sessions = DefaultSessions
	}
	return &Engine{
		groups:   table{kind: "multicast group", list: make([]*Session, MaxGroup+1), most: min(l.Groups, MaxGroup), mostReplicas: l.Replicas},
		sessions: table{kind: "clone session", list: make([]*Session, MaxSession+1), most: min(l.Sessions, MaxSession), mostReplicas: math.MaxInt},
	}
}

// Limits returns the effective limits.
func (e *Engine) Limits() Limits {
	return Limits{e.groups.most, e.groups.mostReplicas, e.sessions.most}
}

// Group returns a multicast group's replicas, or nil if there is no such group.
// A group without replicas is empty but not nil.
func (e *Engine) Group(id uint16) []Replica {
	if g := e.groups.list[id]; g != nil {
		return g.Replicas
	}
	return nil
}

// InsertGroup creates a multicast group. The error wraps ErrInvalid, ErrExists
// or ErrFull.
func (e *Engine) InsertGroup(id uint32, replicas []Replica) error {
	return e.told(id, e.groups.insert(id, Session{Replicas: replicas}))
}

// ModifyGroup replaces a multicast group's replicas. The error wraps ErrInvalid, ErrNotFound or
// ErrFull; then the group is unchanged.
func (e *Engine) ModifyGroup(id uint32, replicas []Replica) error {
	return e.told(id, e.groups.modify(id, Session{Replicas: replicas}))
}

// DeleteGroup removes a multicast group. The error wraps ErrInvalid or
// ErrNotFound.
func (e *Engine) DeleteGroup(id uint32) error { return e.told(id, e.groups.remove(id)) }

func (e *Engine) told(id uint32, err error) error {
	if err == nil && e.Changed != nil {
		e.Changed(uint16(id))
	}
	return err
}

// Session returns a clone session, or nil if there is none.
func (e *Engine) Session(id uint16) *Session {
	if id > MaxSession {
		return nil
	}
	return e.sessions.list[id]
}

// InsertSession creates a clone session. The error wraps ErrInvalid, ErrExists
// or ErrFull.
func (e *Engine) InsertSession(id uint32, s Session) error { return e.sessions.insert(id, s) }

// ModifySession replaces a clone session. The error wraps ErrInvalid or ErrNotFound; then the
// session is unchanged.
func (e *Engine) ModifySession(id uint32, s Session) error { return e.sessions.modify(id, s) }

// DeleteSession removes a clone session. The error wraps ErrInvalid or
// ErrNotFound.
func (e *Engine) DeleteSession(id uint32) error { return e.sessions.remove(id) }

func (t *table) insert(id uint32, s Session) error {
	if err := t.check(id, s); err != nil {
		return err
	}
	if t.list[id] != nil {
		return fmt.Errorf("pre: %s %d: %w; modify it instead", t.kind, id, ErrExists)
	}
	if t.n >= t.most {
		return fmt.Errorf("pre: %s %d: %w: there are %d, as many as this switch holds", t.kind, id, ErrFull, t.n)
	}
	if err := t.put(id, s, 0); err != nil {
		return err
	}
	t.n++
	return nil
}

func (t *table) modify(id uint32, s Session) error {
	if err := t.check(id, s); err != nil {
		return err
	}
	old := t.list[id]
	if old == nil {
		return fmt.Errorf("pre: %s %d: %w; insert it first", t.kind, id, ErrNotFound)
	}
	return t.put(id, s, len(old.Replicas))
}

func (t *table) remove(id uint32) error {
	if err := t.check(id, Session{}); err != nil {
		return err
	}
	old := t.list[id]
	if old == nil {
		return fmt.Errorf("pre: %s %d: %w", t.kind, id, ErrNotFound)
	}
	t.replicas -= len(old.Replicas)
	t.list[id] = nil
	t.n--
	return nil
}

// put stores a copy of s, in place of a session with had replicas.
func (t *table) put(id uint32, s Session, had int) error {
	n := t.replicas - had + len(s.Replicas)
	if n > t.mostReplicas {
		return fmt.Errorf("pre: %s %d: %w: %d replicas in all groups would be more than the %d that this switch holds",
			t.kind, id, ErrFull, n, t.mostReplicas)
	}
	t.replicas = n
	s.Replicas = append(make([]Replica, 0, len(s.Replicas)), s.Replicas...) // not nil if empty
	t.list[id] = &s
	return nil
}

func (t *table) check(id uint32, s Session) error {
	switch {
	case id == 0 || int64(id) >= int64(len(t.list)):
		return fmt.Errorf("pre: %s %d: %w: they have numbers from 1 to %d", t.kind, id, ErrInvalid, len(t.list)-1)
	case s.PacketLength < 0:
		return fmt.Errorf("pre: %s %d: %w: a packet length of %d bytes (0 means the whole packet)", t.kind, id, ErrInvalid, s.PacketLength)
	}
	seen := make(map[Replica]bool, len(s.Replicas))
	for _, r := range s.Replicas {
		if r.Port > MaxPort {
			return fmt.Errorf("pre: %s %d: %w: a replica goes to port %d; the largest port is %d", t.kind, id, ErrInvalid, r.Port, MaxPort)
		}
		if seen[r] {
			return fmt.Errorf("pre: %s %d: %w: two replicas go to port %d with instance %d; give one of them another instance",
				t.kind, id, ErrInvalid, r.Port, r.Instance)
		}
		seen[r] = true
	}
	return nil
}
