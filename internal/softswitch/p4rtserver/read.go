package p4rtserver

import (
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// responseSize is the approximate number of entities per ReadResponse. Replicas, members and
// similar parts count too, because they make an entity large.
const responseSize = 512

// Read implements p4.v1.P4Runtime. It collects all entities before it sends them, so that a slow
// client does not delay another client's Write.
func (s *Server) Read(req *p4.ReadRequest, g p4.P4Runtime_ReadServer) error {
	r, err := s.collect(req)
	if r == nil {
		return err
	}
	m, size := &p4.ReadResponse{}, 0
	for e := range r.all() {
		m.Entities = append(m.Entities, e)
		if size += weight(e); size >= responseSize {
			if err := g.Send(m); err != nil {
				return err
			}
			m, size = &p4.ReadResponse{}, 0
		}
	}
	if size > 0 {
		if err := g.Send(m); err != nil {
			return err
		}
	}
	return err
}

// weight returns the number of parts of an entity.
func weight(e *p4.Entity) int {
	switch x := e.GetEntity().(type) {
	case *p4.Entity_PacketReplicationEngineEntry:
		r := x.PacketReplicationEngineEntry
		return 1 + len(r.GetMulticastGroupEntry().GetReplicas()) + len(r.GetCloneSessionEntry().GetReplicas())
	case *p4.Entity_ActionProfileGroup:
		return 1 + len(x.ActionProfileGroup.GetMembers())
	case *p4.Entity_TableEntry:
		return 1 + len(x.TableEntry.GetAction().GetActionProfileActionSet().GetActionProfileActions())
	case *p4.Entity_ValueSetEntry:
		return 1 + len(x.ValueSetEntry.GetMembers())
	}
	return 1
}

// collect reads all requested entities, as of between two Writes. The error lists the requests that
// failed; without a reader, all did.
func (s *Server) collect(req *p4.ReadRequest) (*reader, error) {
	if err := s.checkDevice(req.GetDeviceId()); err != nil {
		return nil, err
	}
	if _, err := s.named(req.GetRole()); err != nil {
		return nil, err
	}
	s.state.RLock()
	defer s.state.RUnlock()
	c, err := s.current()
	if err != nil {
		return nil, err
	}
	r := &reader{c: c, now: s.target.Now(), between: s.do}
	var errs []error
	for i, e := range req.GetEntities() {
		if err := r.read(e); err != nil {
			if errs == nil {
				errs = make([]error, len(req.GetEntities()))
			}
			errs[i] = err
		}
	}
	return r, batchStatus("requests", errs)
}

// cellChunk is how many cells of an array are read without letting packets pass.
const cellChunk = 1024

// read adds the entities of one request.
func (r *reader) read(e *p4.Entity) error {
	switch x := e.GetEntity().(type) {
	case *p4.Entity_TableEntry:
		return r.tables(x.TableEntry)
	case *p4.Entity_ActionProfileMember:
		return r.profiles("member", x.ActionProfileMember.GetActionProfileId(), x.ActionProfileMember.GetMemberId(),
			func(p *profile, id uint32) error { return p.members.readTo(r, id) })
	case *p4.Entity_ActionProfileGroup:
		return r.profiles("group", x.ActionProfileGroup.GetActionProfileId(), x.ActionProfileGroup.GetGroupId(),
			func(p *profile, id uint32) error { return p.groups.readTo(r, id) })
	case *p4.Entity_CounterEntry:
		return r.counters(x.CounterEntry)
	case *p4.Entity_DirectCounterEntry:
		return r.directCounters(x.DirectCounterEntry)
	case *p4.Entity_MeterEntry:
		return r.meters(x.MeterEntry)
	case *p4.Entity_DirectMeterEntry:
		return r.directMeters(x.DirectMeterEntry)
	case *p4.Entity_RegisterEntry:
		return r.registers(x.RegisterEntry)
	case *p4.Entity_ValueSetEntry:
		return r.valueSets(x.ValueSetEntry)
	case *p4.Entity_DigestEntry:
		return r.digests(x.DigestEntry)
	case *p4.Entity_PacketReplicationEngineEntry:
		switch p := x.PacketReplicationEngineEntry.GetType().(type) {
		case *p4.PacketReplicationEngineEntry_MulticastGroupEntry:
			return r.c.multicast.readTo(r, p.MulticastGroupEntry.GetMulticastGroupId())
		case *p4.PacketReplicationEngineEntry_CloneSessionEntry:
			return r.c.clones.readTo(r, p.CloneSessionEntry.GetSessionId())
		}
		return invalid("the packet replication engine entry is neither a multicast group nor a clone session")
	case *p4.Entity_ExternEntry:
		if x.ExternEntry.GetExternTypeId() == 0 && x.ExternEntry.GetExternId() == 0 {
			return nil // all externs: there are none
		}
		return noExterns()
	}
	return invalid("the request has no entity; say which kind of entity is to be read")
}

// profiles makes add read members or groups of action profiles.
func (r *reader) profiles(what string, profileID, id uint32, add func(*profile, uint32) error) error {
	list, err := r.c.profiles.selected(profileID)
	if err != nil {
		return err
	}
	if profileID == 0 && id != 0 {
		return invalid("%s id %d without an action profile id", what, id)
	}
	for _, p := range list {
		if err := add(p, id); err != nil {
			return in(p.String(), err)
		}
	}
	return nil
}

// readArrays adds cells of the array with an id, or of all arrays if id is 0: the cell of the
// index, or all cells. An index only counts with an id. cell may return nil.
func readArrays[A, V any](r *reader, all *objects[A], id uint32, index *p4.Index, array func(*A) *array[V], cell func(*A, *p4.Index, V) *p4.Entity) error {
	list, err := all.selected(id)
	if err != nil {
		return err
	}
	if id == 0 {
		index = nil
	}
	for _, x := range list {
		a := array(x)
		from, to, err := a.cells(index)
		if err != nil {
			return err
		}
		values := make([]V, to-from)
		r.each(len(values), cellChunk, func(i int) {
			values[i], _ = a.state.Get(from + i) // the cell exists
		})
		r.out = append(r.out, piece{n: len(values), make: func(i int) *p4.Entity {
			return cell(x, &p4.Index{Index: int64(from + i)}, values[i])
		}})
	}
	return nil
}

func (r *reader) counters(e *p4.CounterEntry) error {
	return readArrays(r, &r.c.counters, e.GetCounterId(), e.GetIndex(), func(c *counter) *array[pipeline.Counts] { return &c.array },
		func(c *counter, i *p4.Index, v pipeline.Counts) *p4.Entity {
			if r.brief && v == (pipeline.Counts{}) {
				return nil
			}
			return &p4.Entity{Entity: &p4.Entity_CounterEntry{CounterEntry: &p4.CounterEntry{CounterId: c.id, Index: i, Data: counterData(v)}}}
		})
}

func (r *reader) meters(e *p4.MeterEntry) error {
	if e.GetCounterData() != nil {
		return noColors("meter entry")
	}
	return readArrays(r, &r.c.meters, e.GetMeterId(), e.GetIndex(), func(m *meter) *array[pipeline.MeterConfig] { return &m.array },
		func(m *meter, i *p4.Index, v pipeline.MeterConfig) *p4.Entity {
			if r.brief && !v.Set {
				return nil
			}
			return &p4.Entity{Entity: &p4.Entity_MeterEntry{MeterEntry: &p4.MeterEntry{MeterId: m.id, Index: i, Config: writeMeter(v)}}}
		})
}

func (r *reader) registers(e *p4.RegisterEntry) error {
	return readArrays(r, &r.c.registers, e.GetRegisterId(), e.GetIndex(), func(g *register) *array[match.Value] { return &g.array },
		func(g *register, i *p4.Index, v match.Value) *p4.Entity {
			if r.brief && v.IsZero() {
				return nil
			}
			data, _ := g.data.encode([]match.Value{v})
			return &p4.Entity{Entity: &p4.Entity_RegisterEntry{RegisterEntry: &p4.RegisterEntry{RegisterId: g.id, Index: i, Data: data}}}
		})
}

func (r *reader) valueSets(e *p4.ValueSetEntry) error {
	list, err := r.c.valueSets.selected(e.GetValueSetId())
	if err != nil {
		return err
	}
	for _, v := range list {
		entry := &p4.ValueSetEntry{ValueSetId: v.id}
		r.access(func() {
			for _, m := range v.state.Get() {
				entry.Members = append(entry.Members, &p4.ValueSetMember{Match: writeKey(v.key.spec, v.key.byID, m)})
			}
		})
		if r.brief && len(entry.Members) == 0 {
			continue
		}
		r.add(&p4.Entity{Entity: &p4.Entity_ValueSetEntry{ValueSetEntry: entry}})
	}
	return nil
}

func (r *reader) digests(e *p4.DigestEntry) error {
	list, err := r.c.digests.selected(e.GetDigestId())
	if err != nil {
		return err
	}
	for _, d := range list {
		config := r.c.learning[d.id]
		if config == nil {
			if e.GetDigestId() != 0 {
				return fail(codes.NotFound, "%s is not enabled", d)
			}
			continue
		}
		r.add(&p4.Entity{Entity: &p4.Entity_DigestEntry{DigestEntry: &p4.DigestEntry{DigestId: d.id, Config: config}}})
	}
	return nil
}
