package p4rt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// Role is what a session is to its switch.
type Role uint8

// Roles of sessions.
const (
	Primary  Role = iota + 1
	Backup        // another session is the primary
	Orphaned      // there is no primary
)

func (r Role) String() string {
	return [...]string{"unknown", "primary", "backup", "backup without a primary"}[r]
}

// An ElectionID decides who is the primary: the highest. Low is the agent's own
// number, by which two agents of one switch differ; High is raised to follow a
// primary that has left.
type ElectionID struct{ High, Low uint64 }

func (e ElectionID) less(o ElectionID) bool {
	return e.High < o.High || e.High == o.High && e.Low < o.Low
}

func (e ElectionID) String() string { return fmt.Sprintf("%d.%d", e.High, e.Low) }

func (e ElectionID) wire() *p4.Uint128 { return &p4.Uint128{High: e.High, Low: e.Low} }

// A PacketIn is a frame that the switch sent to the agent.
type PacketIn struct {
	Port  uint16 // that it came in on
	Frame []byte
}

// An ARPDigest is what an ARP packet said of its sender.
type ARPDigest struct {
	Port uint16
	MAC  switchspec.MAC
	Addr netip.Addr
}

// A Session is a stream to a switch, from Open until the stream is lost or
// closed. Its methods may be called concurrently.
type Session struct {
	c      *Client
	stream p4.P4Runtime_StreamChannelClient
	life   context.Context // of the stream, and all calls
	end    context.CancelFunc
	send   sync.Mutex // one Send at a time
	work   sync.WaitGroup

	mu      sync.Mutex
	id      ElectionID
	role    Role // 0: the switch has not answered yet
	orphans int  // how often in turn it has answered that there is no primary
	highest ElectionID
	changed chan struct{}
	err     error
	said    Said

	done    chan struct{}
	packets chan PacketIn
	digests chan ARPDigest
}

// Done is closed when the stream has been lost or closed.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the session has ended, or nil. It wraps ErrStreamLost.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// PacketIns are the frames from the switch. What is not taken in time is dropped.
func (s *Session) PacketIns() <-chan PacketIn { return s.packets }

// Digests are those of ARP packets, after EnableDigests. Lists are acknowledged
// when they are in the channel; one that does not fit comes again.
func (s *Session) Digests() <-chan ARPDigest { return s.digests }

// Role returns the session's role, and a channel that is closed when it changes.
func (s *Session) Role() (Role, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.role, s.changed
}

// ElectionID is the present one; to follow a primary it is raised.
func (s *Session) ElectionID() ElectionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// WaitPrimary waits until the session is the primary. Errors are ctx's, or wrap
// ErrStreamLost.
func (s *Session) WaitPrimary(ctx context.Context) error {
	return s.wait(ctx, func() bool { return s.role == Primary })
}

// wait waits for a condition, which is called with s.mu held.
func (s *Session) wait(ctx context.Context, ok func() bool) error {
	for {
		s.mu.Lock()
		met, changed, err := ok(), s.changed, s.err
		s.mu.Unlock()
		switch {
		case err != nil:
			return err
		case met:
			return nil
		}
		select {
		case <-changed:
		case <-s.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Takeover arbitrates again, with an election id above all that the switch has
// reported. WaitPrimary and Role show the outcome. An error that wraps
// ErrElection says that there is none above.
func (s *Session) Takeover(above ElectionID) error {
	s.mu.Lock()
	id := s.id
	if id.less(above) {
		id.High = above.High + 1
		if above.High == math.MaxUint64 {
			id.High = above.High
		}
	}
	if id.less(above) || id == above && id != s.id {
		s.mu.Unlock()
		return fmt.Errorf("p4rt: %s: %w: it has had a primary with %v, and this controller's Low is %d", s.c.cfg.Target, ErrElection, above, id.Low)
	}
	s.id = id
	s.mu.Unlock()
	return s.arbitrate(id)
}

// Renew has the primary arbitrate again with an election id that the switch has not seen, and waits until it is the
// primary with that. The switch refuses writes then that a former session with the same id has sent, and that are still on their way.
func (s *Session) Renew(ctx context.Context) error {
	s.mu.Lock()
	if s.id.High < math.MaxUint64 {
		s.id.High++
	}
	id := s.id
	s.role = Backup
	s.mu.Unlock()
	if err := s.arbitrate(id); err != nil {
		return err
	}
	return s.WaitPrimary(ctx)
}

// primary returns the session's election id if it is the primary.
func (s *Session) primary() (ElectionID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.id, s.err
	case s.role != Primary:
		return s.id, fmt.Errorf("%w: this session is a %v", ErrNotPrimary, s.role)
	}
	return s.id, nil
}

// during is a context for a call, which ends with the session.
func (s *Session) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// call does one Write, if the session is the primary.
func (s *Session) call(ctx context.Context, updates []*p4.Update) error {
	id, err := s.primary()
	if err != nil {
		return err
	}
	ctx, cancel := s.during(ctx)
	defer cancel()
	ctx, late := context.WithTimeout(ctx, callTime)
	defer late()
	_, err = s.c.rpc.Write(ctx, &p4.WriteRequest{DeviceId: s.c.cfg.DeviceID, ElectionId: id.wire(), Updates: updates,
		Atomicity: p4.WriteRequest_CONTINUE_ON_ERROR})
	if status.Code(err) == codes.PermissionDenied {
		return fmt.Errorf("%w: %w", ErrNotPrimary, err)
	}
	return err
}

func (s *Session) arbitrate(id ElectionID) error {
	return s.write(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Arbitration{
		Arbitration: &p4.MasterArbitrationUpdate{DeviceId: s.c.cfg.DeviceID, ElectionId: id.wire()}}})
}

func (s *Session) write(m *p4.StreamMessageRequest) error {
	s.send.Lock()
	defer s.send.Unlock()
	if err := s.stream.Send(m); err != nil {
		<-s.done // Recv has the reason
		return s.Err()
	}
	return nil
}

// closeTime is how long a switch has to take what was sent to it before Close.
const closeTime = time.Second

// Close ends the session, once the switch has taken what was sent, and waits for its
// goroutines.
func (s *Session) Close() {
	defer time.AfterFunc(closeTime, s.end).Stop()
	s.send.Lock()
	_ = s.stream.CloseSend() // if it fails, Recv fails too
	s.send.Unlock()
	<-s.done
	s.work.Wait()
}

// PacketOut sends a frame out of a port of the switch.
func (s *Session) PacketOut(port uint16, frame []byte) error {
	return s.write(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Packet{Packet: &p4.PacketOut{Payload: frame,
		Metadata: []*p4.PacketMetadata{{MetadataId: 1, Value: number(uint64(port))}, {MetadataId: 2, Value: []byte{0}}}}}})
}

// receive is the goroutine of what the switch sends.
func (s *Session) receive() {
	defer close(s.done)
	defer s.end()
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.lose(fmt.Errorf("p4rt: %s: %w: %w", s.c.cfg.Target, ErrStreamLost, failure.Plain(err)))
			return
		}
		switch u := m.GetUpdate().(type) {
		case *p4.StreamMessageResponse_Arbitration:
			s.arbitrated(u.Arbitration)
		case *p4.StreamMessageResponse_Packet:
			s.packetIn(u.Packet)
		case *p4.StreamMessageResponse_Digest:
			s.digest(u.Digest)
		}
	}
}

// lose records why the session has ended; the first reason stays.
func (s *Session) lose(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.role = Backup
	close(s.changed)
	s.changed = make(chan struct{})
}

// maxOrphans is how often in turn a session follows a primary that has left. Others may follow, and leave, too; but a switch
// that never has a primary must not be asked without end.
const maxOrphans = 16

func (s *Session) arbitrated(m *p4.MasterArbitrationUpdate) {
	role := Backup
	switch codes.Code(m.GetStatus().GetCode()) { //nolint:gosec // an unknown code is none of these
	case codes.OK:
		role = Primary
	case codes.NotFound:
		role = Orphaned
	}
	highest := ElectionID{m.GetElectionId().GetHigh(), m.GetElectionId().GetLow()}
	s.mu.Lock()
	s.role, s.highest = role, highest
	if s.orphans++; role != Orphaned {
		s.orphans = 0
	}
	vain := s.orphans > maxOrphans
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if vain {
		s.lose(fmt.Errorf("p4rt: %s: %w: it has no primary, and does not make this controller one", s.c.cfg.Target, ErrStreamLost))
		s.end()
		return
	}
	if role == Orphaned {
		// Sending must not block receiving. If it fails, Recv fails too.
		go func() {
			if err := s.Takeover(highest); errors.Is(err, ErrElection) {
				s.lose(err)
				s.end()
			}
		}()
	}
}

func (s *Session) packetIn(m *p4.PacketIn) {
	p := PacketIn{Frame: m.GetPayload()}
	for _, d := range m.GetMetadata() {
		if d.GetMetadataId() == 1 {
			v, _ := value(d.GetValue(), 64)
			p.Port = uint16(v) //nolint:gosec // 9 bits
		}
	}
	select {
	case s.packets <- p:
	default: // the agent is too slow
	}
}

func (s *Session) digest(m *p4.DigestList) {
	if cap(s.digests)-len(s.digests) < len(m.GetData()) { // only this goroutine adds
		return
	}
	for _, d := range m.GetData() {
		var v [3]uint64
		members := d.GetStruct().GetMembers()
		for i := range min(len(members), len(v)) {
			v[i], _ = value(members[i].GetBitstring(), 64)
		}
		s.digests <- ARPDigest{uint16(v[0]), mac(v[1]), addr(v[2])} //nolint:gosec // 9 bits
	}
	ack := &p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_DigestAck{
		DigestAck: &p4.DigestListAck{DigestId: m.GetDigestId(), ListId: m.GetListId()}}}
	s.send.Lock()
	defer s.send.Unlock()
	_ = s.stream.Send(ack) // if it fails, Recv fails too
}

// EnableDigests has the switch send digests of ARP packets.
func (s *Session) EnableDigests(ctx context.Context) error {
	e := &p4.DigestEntry{DigestId: s.c.schema.info.GetDigests()[0].GetPreamble().GetId(), Config: &p4.DigestEntry_Config{
		MaxTimeoutNs: int64(time.Millisecond), MaxListSize: 64, AckTimeoutNs: int64(time.Second)}}
	entity := &p4.Entity{Entity: &p4.Entity_DigestEntry{DigestEntry: e}}
	err := s.call(ctx, []*p4.Update{{Type: p4.Update_INSERT, Entity: entity}})
	if pe := perUpdate(err, 1); pe != nil && codes.Code(pe[0].GetCanonicalCode()) == codes.AlreadyExists { //nolint:gosec // a code
		err = s.call(ctx, []*p4.Update{{Type: p4.Update_MODIFY, Entity: entity}})
	}
	if pe := perUpdate(err, 1); pe != nil {
		err = status.Error(codes.Code(pe[0].GetCanonicalCode()), pe[0].GetMessage()) //nolint:gosec // a code
	}
	if err != nil {
		return fmt.Errorf("p4rt: enabling digests: %w", err)
	}
	return nil
}
