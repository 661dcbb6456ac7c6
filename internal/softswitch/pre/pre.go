// Package pre is the embedded switch's packet replication engine: the multicast
// groups and clone sessions that the control plane sets up and that the pipeline
// looks up for each packet to be copied.
//
//	e := pre.New(pre.Limits{})
//	err := e.InsertGroup(7, []pre.Replica{{Port: 1, Instance: 1}, {Port: 2, Instance: 2}})
//	for _, r := range e.Group(7) { … } // packet path: an index, nothing else
//
// Copies are made in the order in which the control plane listed the replicas.
//
// The package is pure: it only stores groups and sessions, and copies no
// packets. It is not safe for concurrent use; the owner of an Engine locks it.
// It imports the standard library only.
package pre

import (
	"errors"
	"fmt"
	"iter"
	"slices"
)

// Errors that those of this package wrap.
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

// Limits that a zero Limits stands for.
const (
	DefaultGroups   = 32768
	DefaultReplicas = 262144
	DefaultSessions = 1024
)

// A Replica is one copy of a packet.
type Replica struct {
	Port     uint16 // where it goes
	Instance uint16 // its egress_rid
}

// A Session is a clone session.
type Session struct {
	// Replicas are the clones, one for each.
	Replicas []Replica
	// ClassOfService is kept for the control plane to read back; packets do
	// not get it.
	ClassOfService int32
	// PacketLength is how many bytes of the packet a clone keeps; 0: all.
	PacketLength int
}

// Limits bound an Engine. A member that is 0 stands for its default.
type Limits struct {
	Groups   int // multicast groups, at most MaxGroup; default DefaultGroups
	Replicas int // in all multicast groups together; default DefaultReplicas
	Sessions int // clone sessions, at most MaxSession; default DefaultSessions
}

// An Engine holds groups and sessions. What it hands out is immutable: a change
// puts something new in its place.
type Engine struct {
	limits   Limits
	groups   [][]Replica // by group; nil: none
	sessions []*Session  // by session; nil: none
	nGroups  int
	nRepl    int // in all groups
	nSess    int
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
		limits:   Limits{min(l.Groups, MaxGroup), l.Replicas, min(l.Sessions, MaxSession)},
		groups:   make([][]Replica, MaxGroup+1),
		sessions: make([]*Session, MaxSession+1),
	}
}

// Limits returns the limits in force.
func (e *Engine) Limits() Limits { return e.limits }

// Group returns a multicast group's replicas, or nil if there is no such group.
// A group without replicas is empty but not nil.
func (e *Engine) Group(id uint16) []Replica { return e.groups[id] }

// Groups goes through the multicast groups in ascending order.
func (e *Engine) Groups() iter.Seq2[uint32, []Replica] {
	return func(yield func(uint32, []Replica) bool) {
		for id, g := range e.groups {
			if g != nil && !yield(uint32(id), g) {
				return
			}
		}
	}
}

// InsertGroup creates a multicast group. The error wraps ErrInvalid, ErrExists
// or ErrFull.
func (e *Engine) InsertGroup(id uint32, replicas []Replica) error {
	if err := checkGroup(id, replicas); err != nil {
		return err
	}
	if e.groups[id] != nil {
		return fmt.Errorf("pre: multicast group %d: %w; modify it instead", id, ErrExists)
	}
	if e.nGroups >= e.limits.Groups {
		return fmt.Errorf("pre: multicast group %d: %w: there are %d groups, as many as this switch holds",
			id, ErrFull, e.nGroups)
	}
	if err := e.setGroup(id, replicas); err != nil {
		return err
	}
	e.nGroups++
	return nil
}

// ModifyGroup replaces a multicast group's replicas. The error wraps
// ErrInvalid, ErrNotFound or ErrFull, and then the group is as before.
func (e *Engine) ModifyGroup(id uint32, replicas []Replica) error {
	if err := checkGroup(id, replicas); err != nil {
		return err
	}
	if e.groups[id] == nil {
		return fmt.Errorf("pre: multicast group %d: %w; insert it first", id, ErrNotFound)
	}
	return e.setGroup(id, replicas)
}

// DeleteGroup removes a multicast group. The error wraps ErrInvalid or
// ErrNotFound.
func (e *Engine) DeleteGroup(id uint32) error {
	if err := checkGroup(id, nil); err != nil {
		return err
	}
	if e.groups[id] == nil {
		return fmt.Errorf("pre: multicast group %d: %w", id, ErrNotFound)
	}
	e.nRepl -= len(e.groups[id])
	e.groups[id] = nil
	e.nGroups--
	return nil
}

// setGroup puts replicas in the place of what the group had.
func (e *Engine) setGroup(id uint32, replicas []Replica) error {
	n := e.nRepl - len(e.groups[id]) + len(replicas)
	if n > e.limits.Replicas {
		return fmt.Errorf("pre: multicast group %d: %w: %d replicas in all groups would be more than the %d that this switch holds",
			id, ErrFull, n, e.limits.Replicas)
	}
	e.nRepl = n
	e.groups[id] = append(make([]Replica, 0, len(replicas)), replicas...) // not nil if empty
	return nil
}

func checkGroup(id uint32, replicas []Replica) error {
	what := fmt.Sprintf("multicast group %d", id)
	if id == 0 || id > MaxGroup {
		return fmt.Errorf("pre: %s: %w: groups have numbers from 1 to %d (0 means no multicast)", what, ErrInvalid, MaxGroup)
	}
	return checkReplicas(what, replicas)
}

func checkReplicas(what string, replicas []Replica) error {
	seen := make(map[Replica]bool, len(replicas))
	for _, r := range replicas {
		if r.Port > MaxPort {
			return fmt.Errorf("pre: %s: %w: a replica goes to port %d; the largest port is %d", what, ErrInvalid, r.Port, MaxPort)
		}
		if seen[r] {
			return fmt.Errorf("pre: %s: %w: two replicas go to port %d with instance %d; give one of them another instance",
				what, ErrInvalid, r.Port, r.Instance)
		}
		seen[r] = true
	}
	return nil
}

// Session returns a clone session, or nil if there is none.
func (e *Engine) Session(id uint16) *Session {
	if id > MaxSession {
		return nil
	}
	return e.sessions[id]
}

// Sessions goes through the clone sessions in ascending order.
func (e *Engine) Sessions() iter.Seq2[uint32, *Session] {
	return func(yield func(uint32, *Session) bool) {
		for id, s := range e.sessions {
			if s != nil && !yield(uint32(id), s) {
				return
			}
		}
	}
}

// InsertSession creates a clone session. The error wraps ErrInvalid, ErrExists
// or ErrFull.
func (e *Engine) InsertSession(id uint32, s Session) error {
	if err := checkSession(id, s); err != nil {
		return err
	}
	if e.sessions[id] != nil {
		return fmt.Errorf("pre: clone session %d: %w; modify it instead", id, ErrExists)
	}
	if e.nSess >= e.limits.Sessions {
		return fmt.Errorf("pre: clone session %d: %w: there are %d sessions, as many as this switch holds", id, ErrFull, e.nSess)
	}
	e.setSession(id, s)
	e.nSess++
	return nil
}

// ModifySession replaces a clone session. The error wraps ErrInvalid or
// ErrNotFound, and then the session is as before.
func (e *Engine) ModifySession(id uint32, s Session) error {
	if err := checkSession(id, s); err != nil {
		return err
	}
	if e.sessions[id] == nil {
		return fmt.Errorf("pre: clone session %d: %w; insert it first", id, ErrNotFound)
	}
	e.setSession(id, s)
	return nil
}

// DeleteSession removes a clone session. The error wraps ErrInvalid or
// ErrNotFound.
func (e *Engine) DeleteSession(id uint32) error {
	if err := checkSession(id, Session{}); err != nil {
		return err
	}
	if e.sessions[id] == nil {
		return fmt.Errorf("pre: clone session %d: %w", id, ErrNotFound)
	}
	e.sessions[id] = nil
	e.nSess--
	return nil
}

func (e *Engine) setSession(id uint32, s Session) {
	s.Replicas = slices.Clone(s.Replicas)
	e.sessions[id] = &s
}

func checkSession(id uint32, s Session) error {
	what := fmt.Sprintf("clone session %d", id)
	switch {
	case id == 0 || id > MaxSession:
		return fmt.Errorf("pre: %s: %w: sessions have numbers from 1 to %d", what, ErrInvalid, MaxSession)
	case s.PacketLength < 0:
		return fmt.Errorf("pre: %s: %w: a packet length of %d bytes (0 means the whole packet)", what, ErrInvalid, s.PacketLength)
	}
	return checkReplicas(what, s.Replicas)
}
