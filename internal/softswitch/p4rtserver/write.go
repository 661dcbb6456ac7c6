package p4rtserver

import (
	"context"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

// chunk is how many updates are applied, or entities read, without letting packets pass.
const chunk = 32

// Write implements p4.v1.P4Runtime.
func (s *Server) Write(_ context.Context, req *p4.WriteRequest) (*p4.WriteResponse, error) {
	release, err := s.asPrimary(req.GetDeviceId(), req.GetRole(), req.GetRoleId(), req.GetElectionId()) //nolint:staticcheck // refused if set
	if err != nil {
		return nil, err
	}
	defer release()
	c, err := s.current()
	if err != nil {
		return nil, err
	}
	x := &txn{c: c, now: s.target.Now(), keep: true}
	atOnce := chunk
	switch a := req.GetAtomicity(); a {
	case p4.WriteRequest_CONTINUE_ON_ERROR:
		x.keep = false
	case p4.WriteRequest_ROLLBACK_ON_ERROR:
	case p4.WriteRequest_DATAPLANE_ATOMIC:
		atOnce = len(req.GetUpdates())
	default:
		return nil, invalid("there is no atomicity %d", a)
	}
	errs, err := s.writeAll(x, req.GetUpdates(), atOnce)
	if x.learned && c.loaded {
		s.digests.configure(c)
	}
	if err != nil {
		return nil, err
	}
	s.countUpdates(errs, len(req.GetUpdates()))
	if err := batchStatus("updates", errs); err != nil {
		return nil, err
	}
	return &p4.WriteResponse{}, nil
}

func (s *Server) countUpdates(errs []error, n int) {
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	s.stats.updateErrors.Add(uint64(failed))
	s.stats.updates.Add(uint64(n - failed))
}

// writeAll applies updates, at most atOnce of them between two packets. If the transaction can be
// undone, the first failing update undoes it, and all others are reported as ABORTED. errs is nil
// if none fails.
func (s *Server) writeAll(x *txn, updates []*p4.Update, atOnce int) (errs []error, err error) {
	for at := 0; at < len(updates) && (errs == nil || !x.keep); at += atOnce {
		s.do(x.c, func() {
			for i := at; i < min(at+atOnce, len(updates)); i++ {
				failed := x.update(updates[i])
				if failed == nil {
					continue
				}
				if errs == nil {
					errs = make([]error, len(updates))
				}
				errs[i] = failed
				if !x.keep {
					continue
				}
				for j := range errs[:i] {
					errs[j] = fail(codes.Aborted, "rolled back, because update %d failed", i)
				}
				for j := i + 1; j < len(errs); j++ {
					errs[j] = fail(codes.Aborted, "not attempted, because update %d failed", i)
				}
				err = x.rollBack()
				return
			}
		})
	}
	return errs, err
}

// update applies one update, or leaves the state unchanged.
func (x *txn) update(u *p4.Update) error {
	kind := u.GetType()
	switch kind {
	case p4.Update_INSERT, p4.Update_MODIFY, p4.Update_DELETE:
	default:
		return invalid("the update's type is %v: it must be INSERT, MODIFY or DELETE", kind)
	}
	switch e := u.GetEntity().GetEntity().(type) {
	case *p4.Entity_TableEntry:
		return x.table(kind, e.TableEntry)
	case *p4.Entity_ActionProfileMember:
		return x.member(kind, e.ActionProfileMember)
	case *p4.Entity_ActionProfileGroup:
		return x.group(kind, e.ActionProfileGroup)
	case *p4.Entity_CounterEntry:
		return x.counter(kind, e.CounterEntry)
	case *p4.Entity_DirectCounterEntry:
		return x.directCounter(kind, e.DirectCounterEntry)
	case *p4.Entity_MeterEntry:
		return x.meter(kind, e.MeterEntry)
	case *p4.Entity_DirectMeterEntry:
		return x.directMeter(kind, e.DirectMeterEntry)
	case *p4.Entity_RegisterEntry:
		return x.register(kind, e.RegisterEntry)
	case *p4.Entity_ValueSetEntry:
		return x.valueSet(kind, e.ValueSetEntry)
	case *p4.Entity_DigestEntry:
		return x.digest(kind, e.DigestEntry)
	case *p4.Entity_PacketReplicationEngineEntry:
		switch r := e.PacketReplicationEngineEntry.GetType().(type) {
		case *p4.PacketReplicationEngineEntry_MulticastGroupEntry:
			return x.c.multicast.write(x, kind, r.MulticastGroupEntry.GetMulticastGroupId(), r.MulticastGroupEntry)
		case *p4.PacketReplicationEngineEntry_CloneSessionEntry:
			return x.c.clones.write(x, kind, r.CloneSessionEntry.GetSessionId(), r.CloneSessionEntry)
		}
		return invalid("the packet replication engine entry is neither a multicast group nor a clone session")
	case *p4.Entity_ExternEntry:
		return noExterns()
	}
	return invalid("the update has no entity")
}
