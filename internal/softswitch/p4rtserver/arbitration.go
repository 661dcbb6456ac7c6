package p4rtserver

import (
	"fmt"
	"sync"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
)

// An electionID is the 128-bit election id of a controller.
type electionID struct{ high, low uint64 }

func newElectionID(u *p4.Uint128) *electionID {
	if u == nil {
		return nil
	}
	return &electionID{u.GetHigh(), u.GetLow()}
}

func (e electionID) less(f electionID) bool {
	return e.high < f.high || e.high == f.high && e.low < f.low
}

// below is less, where no election id is the lowest.
func (e *electionID) below(f *electionID) bool {
	return f != nil && (e == nil || e.less(*f))
}

func (e electionID) String() string {
	if e.high == 0 {
		return fmt.Sprint(e.low)
	}
	return fmt.Sprintf("(%d, %d)", e.high, e.low)
}

// A role is a set of controllers with at most one primary.
type role struct {
	name string

	// change serializes operations that may change the primary, from start to end.
	change sync.Mutex
	// writes is held for reading by the primary's Writes. A new primary is accepted only after
	// those of the previous one.
	writes sync.RWMutex

	// Guarded by Server.mu:
	streams map[*stream]struct{}
	primary *stream
	highest *electionID // highest of all primaries so far; nil: there was none
}

// String returns the role's name for messages.
func (r *role) String() string {
	if r.name == "" {
		return "the default role"
	}
	return fmt.Sprintf("role %q", r.name)
}

// roleName checks and returns the role name of an arbitration message.
func roleName(m *p4.Role) (string, error) {
	switch {
	case m.GetConfig() != nil:
		return "", invalid("role.config is set (%s), but no scheme for it has been agreed on: every role of this switch has full access, leave role.config unset",
			m.GetConfig().GetTypeUrl())
	case m.GetId() != 0: //nolint:staticcheck // refused because it is deprecated
		return "", invalid("roles have names; the deprecated numeric role id is not supported")
	}
	return m.GetName(), nil
}

// arbitrate handles a MasterArbitrationUpdate ("Rules for Handling
// MasterArbitrationUpdate Messages"). An error ends the stream.
func (s *Server) arbitrate(st *stream, m *p4.MasterArbitrationUpdate) error {
	r, err := s.roleFor(st, m)
	if err != nil {
		return err
	}
	r.change.Lock()
	defer r.change.Unlock()

	s.mu.Lock()
	id := newElectionID(m.GetElectionId())
	if err := s.join(r, st, id); err != nil {
		s.mu.Unlock()
		return err
	}
	was := r.primary == st
	if id == nil || r.highest != nil && id.less(*r.highest) {
		if was {
			s.resign(r)
		} else {
			s.tell(r, st)
		}
		s.mu.Unlock()
		return nil
	}
	// st becomes or stays the primary. Until the Writes of the others have ended, no stream's
	// Writes are accepted.
	r.primary, r.highest = nil, id
	s.publish()
	for o := range r.streams {
		if o != st {
			o.control(s.advice(r, codes.AlreadyExists))
		}
	}
	s.mu.Unlock()

	r.writes.Lock()
	s.mu.Lock()
	r.primary = st
	s.publish()
	st.control(s.advice(r, codes.OK))
	s.mu.Unlock()
	r.writes.Unlock()
	return nil
}

// roleFor checks the device and role of an arbitration message and returns the role.
func (s *Server) roleFor(st *stream, m *p4.MasterArbitrationUpdate) (*role, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkDevice(m.GetDeviceId()); err != nil {
		if st.role != nil {
			return nil, fail(codes.FailedPrecondition, "this stream belongs to device %d and cannot change to device %d: open another stream",
				s.opt.DeviceID, m.GetDeviceId())
		}
		return nil, err
	}
	name, err := roleName(m.GetRole())
	if err != nil {
		return nil, err
	}
	if st.role != nil && st.role.name != name {
		return nil, fail(codes.FailedPrecondition, "this stream belongs to %s and cannot change to %s: open another stream", st.role, &role{name: name})
	}
	r := s.roles[name]
	if r == nil {
		if len(s.roles) >= maxRoles {
			return nil, fail(codes.ResourceExhausted, "there are %d roles already, as many as this switch remembers", len(s.roles))
		}
		r = &role{name: name, streams: map[*stream]struct{}{}}
		s.roles[name] = r
	}
	return r, nil
}

// join adds the stream to the role, with an election id that no other stream has. Where there are as many
// as may be, the one with the lowest has to go. The caller holds s.mu.
func (s *Server) join(r *role, st *stream, id *electionID) error {
	if st.gone {
		return fail(codes.Canceled, "the stream has ended")
	}
	for o := range r.streams {
		if o != st && id != nil && o.election != nil && *o.election == *id {
			return invalid("election id %v is already that of another controller of %s", *id, r)
		}
	}
	if _, ok := r.streams[st]; !ok && len(r.streams) >= s.opt.MaxStreams {
		last, full := st, fail(codes.ResourceExhausted, "%s has %d controllers already, as many as this switch accepts, none with a lower election id", r, len(r.streams))
		st.election = id
		for o := range r.streams {
			if o.election.below(last.election) {
				last = o
			}
		}
		if last == st {
			return full
		}
		last.stop(full)
		last.gone = true
		delete(r.streams, last)
	}
	r.streams[st] = struct{}{}
	st.role, st.election = r, id
	return nil
}

// leave removes an ended stream from the arbitration.
func (s *Server) leave(st *stream) {
	s.mu.Lock()
	st.gone = true
	r := st.role
	s.mu.Unlock()
	if r == nil {
		return
	}
	r.change.Lock()
	defer r.change.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(r.streams, st)
	if r.primary == st {
		s.resign(r)
	}
}

// resign leaves a role without a primary. The caller holds s.mu.
func (s *Server) resign(r *role) {
	r.primary = nil
	s.publish()
	for st := range r.streams {
		s.tell(r, st)
	}
}

// publish updates the list of primaries for the senders of notifications. The caller holds s.mu.
func (s *Server) publish() {
	list := []*stream{}
	for _, r := range s.roles {
		if r.primary != nil {
			list = append(list, r.primary)
		}
	}
	s.primaries.Store(&list)
}

// tell sends a backup of a role the applicable advice. The caller holds s.mu.
func (s *Server) tell(r *role, st *stream) {
	code := codes.AlreadyExists
	if r.primary == nil {
		code = codes.NotFound
	}
	st.control(s.advice(r, code))
}

// advice is the notification of "Client Arbitration Notifications".
func (s *Server) advice(r *role, code codes.Code) *p4.StreamMessageResponse {
	text := map[codes.Code]string{
		codes.OK:            "you are the primary",
		codes.AlreadyExists: "you are a backup: another controller is the primary",
		codes.NotFound:      "you are a backup: there is no primary",
	}[code]
	m := &p4.MasterArbitrationUpdate{DeviceId: s.opt.DeviceID, Status: &spb.Status{Code: int32(code), Message: text}}
	if r.name != "" {
		m.Role = &p4.Role{Name: r.name}
	}
	if r.highest != nil {
		m.ElectionId = &p4.Uint128{High: r.highest.high, Low: r.highest.low}
	}
	return &p4.StreamMessageResponse{Update: &p4.StreamMessageResponse_Arbitration{Arbitration: m}}
}

func (s *Server) checkDevice(id uint64) error {
	if id != s.opt.DeviceID {
		return fail(codes.NotFound, "there is no device %d here; this is device %d", id, s.opt.DeviceID)
	}
	return nil
}

// named returns the role of that name; the default role may be missing.
func (s *Server) named(name string) (*role, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roles[name]
	if r == nil && name != "" {
		return nil, fail(codes.NotFound, "there is no %s: no controller has arbitrated for it", &role{name: name})
	}
	return r, nil
}

// asPrimary checks that a call comes from the primary of its role. Until the returned function is
// called, the primary is not replaced, and s.state is locked.
func (s *Server) asPrimary(device uint64, name string, numeric uint64, id *p4.Uint128) (func(), error) {
	if err := s.checkDevice(device); err != nil {
		return nil, err
	}
	if numeric != 0 {
		return nil, fail(codes.NotFound, "there is no role with the number %d: roles have names, the deprecated role_id is not supported", numeric)
	}
	r, err := s.named(name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fail(codes.PermissionDenied, "there is no primary: send a MasterArbitrationUpdate on a StreamChannel first")
	}
	r.writes.RLock() // waits while the primary is being replaced
	if err := s.checkPrimary(r, newElectionID(id)); err != nil {
		r.writes.RUnlock()
		return nil, err
	}
	s.state.Lock()
	return func() {
		s.state.Unlock()
		r.writes.RUnlock()
	}, nil
}

func (s *Server) checkPrimary(r *role, id *electionID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch p := r.primary; {
	case p == nil:
		return fail(codes.PermissionDenied, "%s has no primary now: send a MasterArbitrationUpdate on a StreamChannel", r)
	case id == nil:
		return fail(codes.PermissionDenied, "no election id is given; the primary of %s has %v", r, *p.election)
	case *id != *p.election:
		return fail(codes.PermissionDenied, "election id %v is not that of the primary of %s, which is %v", *id, r, *p.election)
	}
	return nil
}

// mustBePrimary returns an error unless the stream is the primary.
func (s *Server) mustBePrimary(st *stream, what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.role == nil || st.role.primary != st {
		return fail(codes.PermissionDenied, "only the primary may send a %s", what)
	}
	return nil
}
