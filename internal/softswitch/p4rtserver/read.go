package p4rtserver

import (
	"iter"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// responseSize is about how many entities one ReadResponse carries; replicas,
// members and the like count too, as they make an entity large.
const responseSize = 512

// Read implements p4.v1.P4Runtime. What is read is collected before it is sent,
// so that a slow client delays no other client's Write.
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

// weight is how many parts an entity has.
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

// collect reads all that is asked for, as it is between two Writes. The error
// tells of the requests that failed; without a reader, all did.
func (s *Server) collect(req *p4.ReadRequest) (*reader, error) {
	if err := s.checkDevice(req.GetDeviceId()); err != nil {
		return nil, err
	}
	if name := req.GetRole(); name != "" {
		s.mu.Lock()
		r := s.roles[name]
		s.mu.Unlock()
		if r == nil {
			return nil, fail(codes.NotFound, "there is no %s: no controller has arbitrated for it", &role{name: name})
		}
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

// A reader collects entities. It is given a way to access the state between
// packets, or else has exclusive access already.
type reader struct {
	c       *config
	now     time.Duration
	between func(*config, func())
	out     []piece
	// brief leaves out what a new pipeline has anyway: zero cells, constant
	// entries, default entries that have not been changed.
	brief bool
}

// A piece is one entity, or several that are made when they are needed: arrays
// have very many cells, which as messages would take much memory at once.
type piece struct {
	one  *p4.Entity
	n    int
	make func(i int) *p4.Entity // may return nil
}

// all are the entities that were read.
func (r *reader) all() iter.Seq[*p4.Entity] {
	return func(yield func(*p4.Entity) bool) {
		for _, p := range r.out {
			if p.one != nil && !yield(p.one) {
				return
			}
			for i := range p.n {
				if e := p.make(i); e != nil && !yield(e) {
					return
				}
			}
		}
	}
}

// access calls f with exclusive access.
func (r *reader) access(f func()) {
	if r.between == nil {
		f()
		return
	}
	r.between(r.c, f)
}

// each calls f for n things, a chunk of them between two packets.
func (r *reader) each(n, chunk int, f func(i int)) {
	for at := 0; at < n; at += chunk {
		r.access(func() {
			for i := at; i < min(at+chunk, n); i++ {
				f(i)
			}
		})
	}
}

func (r *reader) add(e *p4.Entity) { r.out = append(r.out, piece{one: e}) }

// cellChunk is how many cells of an array are read while packets wait.
const cellChunk = 1024

// read adds what one request asks for.
func (r *reader) read(e *p4.Entity) error {
	switch x := e.GetEntity().(type) {
	case *p4.Entity_TableEntry:
		return r.tables(x.TableEntry)
	case *p4.Entity_ActionProfileMember:
		return r.members(x.ActionProfileMember)
	case *p4.Entity_ActionProfileGroup:
		return r.groups(x.ActionProfileGroup)
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
			return r.multicast(p.MulticastGroupEntry.GetMulticastGroupId())
		case *p4.PacketReplicationEngineEntry_CloneSessionEntry:
			return r.clones(p.CloneSessionEntry.GetSessionId())
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

// selected are the objects with an id: all if it is 0.
func selected[T any](x *index, kind string, id uint32, all []*T, byID map[uint32]*T) ([]*T, error) {
	if id == 0 {
		return all, nil
	}
	if o := byID[id]; o != nil {
		return []*T{o}, nil
	}
	return nil, x.noSuch(kind, id)
}

func (r *reader) members(m *p4.ActionProfileMember) error {
	list, err := selected(r.c.index, "action profile", m.GetActionProfileId(), r.c.profileList, r.c.profiles)
	if err != nil {
		return err
	}
	if m.GetActionProfileId() == 0 && m.GetMemberId() != 0 {
		return invalid("member id %d without an action profile id", m.GetMemberId())
	}
	for _, p := range list {
		var all []*pipeline.Member
		r.access(func() {
			if id := m.GetMemberId(); id != 0 {
				if one := p.state.Member(id); one != nil {
					all = append(all, one)
				}
				return
			}
			for one := range p.state.Members() {
				all = append(all, one)
			}
		})
		if m.GetMemberId() != 0 && len(all) == 0 {
			return fail(codes.NotFound, "%s: there is no member %d", p, m.GetMemberId())
		}
		r.each(len(all), chunk, func(i int) {
			r.add(&p4.Entity{Entity: &p4.Entity_ActionProfileMember{ActionProfileMember: &p4.ActionProfileMember{
				ActionProfileId: p.id, MemberId: all[i].ID, Action: writeCall(p.actions, all[i].Call),
			}}})
		})
	}
	return nil
}

func (r *reader) groups(g *p4.ActionProfileGroup) error {
	list, err := selected(r.c.index, "action profile", g.GetActionProfileId(), r.c.profileList, r.c.profiles)
	if err != nil {
		return err
	}
	if g.GetActionProfileId() == 0 && g.GetGroupId() != 0 {
		return invalid("group id %d without an action profile id", g.GetGroupId())
	}
	for _, p := range list {
		known := r.c.groups[p]
		if id := g.GetGroupId(); id != 0 && known[id] == nil {
			return fail(codes.NotFound, "%s: there is no group %d", p, id)
		}
		for id, one := range sorted(known) {
			if g.GetGroupId() == 0 || g.GetGroupId() == id {
				r.add(&p4.Entity{Entity: &p4.Entity_ActionProfileGroup{ActionProfileGroup: one}})
			}
		}
	}
	return nil
}

func (r *reader) counters(e *p4.CounterEntry) error {
	list, err := selected(r.c.index, "counter", e.GetCounterId(), r.c.counterList, r.c.counters)
	if err != nil {
		return err
	}
	for _, c := range list {
		from, to, err := cells(c, indexOf(e.GetCounterId(), e.GetIndex()), c.size)
		if err != nil {
			return err
		}
		type counts struct{ packets, octets uint64 }
		values := make([]counts, to-from)
		r.each(len(values), cellChunk, func(i int) {
			values[i].packets, values[i].octets, err = c.state.Get(from + i)
		})
		if err != nil {
			return err
		}
		r.out = append(r.out, piece{n: len(values), make: func(i int) *p4.Entity {
			v := values[i]
			if r.brief && v.packets|v.octets == 0 {
				return nil
			}
			return &p4.Entity{Entity: &p4.Entity_CounterEntry{CounterEntry: &p4.CounterEntry{
				CounterId: c.id, Index: &p4.Index{Index: int64(from + i)}, Data: counterData(v.packets, v.octets),
			}}}
		}})
	}
	return nil
}

// indexOf is the index of a request, which counts only with an id.
func indexOf(id uint32, index *p4.Index) *p4.Index {
	if id == 0 {
		return nil
	}
	return index
}

func counterData(packets, octets uint64) *p4.CounterData {
	return &p4.CounterData{PacketCount: int64(packets), ByteCount: int64(octets)}
}

func (r *reader) meters(e *p4.MeterEntry) error {
	list, err := selected(r.c.index, "meter", e.GetMeterId(), r.c.meterList, r.c.meters)
	if err != nil {
		return err
	}
	if e.GetCounterData() != nil {
		return noColours("meter entry")
	}
	for _, m := range list {
		from, to, err := cells(m, indexOf(e.GetMeterId(), e.GetIndex()), m.size)
		if err != nil {
			return err
		}
		values := make([]pipeline.MeterConfig, to-from)
		r.each(len(values), cellChunk, func(i int) { values[i], err = m.state.Get(from + i) })
		if err != nil {
			return err
		}
		r.out = append(r.out, piece{n: len(values), make: func(i int) *p4.Entity {
			if r.brief && !values[i].Set {
				return nil
			}
			return &p4.Entity{Entity: &p4.Entity_MeterEntry{MeterEntry: &p4.MeterEntry{
				MeterId: m.id, Index: &p4.Index{Index: int64(from + i)}, Config: writeMeter(values[i]),
			}}}
		}})
	}
	return nil
}

func (r *reader) registers(e *p4.RegisterEntry) error {
	list, err := selected(r.c.index, "register", e.GetRegisterId(), r.c.registerList, r.c.registers)
	if err != nil {
		return err
	}
	for _, g := range list {
		from, to, err := cells(g, indexOf(e.GetRegisterId(), e.GetIndex()), g.size)
		if err != nil {
			return err
		}
		n := words(g.bits)
		values := make([]uint64, (to-from)*n)
		r.each(to-from, cellChunk, func(i int) {
			var v match.Value
			v, err = g.state.Get(from + i)
			copy(values[i*n:], v)
		})
		if err != nil {
			return err
		}
		r.out = append(r.out, piece{n: to - from, make: func(i int) *p4.Entity {
			v := match.Value(values[i*n : (i+1)*n])
			if r.brief && isZero(v) {
				return nil
			}
			data, _ := g.data.encode([]match.Value{v})
			return &p4.Entity{Entity: &p4.Entity_RegisterEntry{RegisterEntry: &p4.RegisterEntry{
				RegisterId: g.id, Index: &p4.Index{Index: int64(from + i)}, Data: data,
			}}}
		}})
	}
	return nil
}

func (r *reader) valueSets(e *p4.ValueSetEntry) error {
	list, err := selected(r.c.index, "value set", e.GetValueSetId(), r.c.valueSetList, r.c.valueSets)
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
	list, err := selected(r.c.index, "digest", e.GetDigestId(), r.c.digestList, r.c.digests)
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

func (r *reader) multicast(id uint32) error {
	if id != 0 && r.c.multicast[id] == nil {
		return fail(codes.NotFound, "there is no multicast group %d", id)
	}
	for n, g := range sorted(r.c.multicast) {
		if id == 0 || id == n {
			r.add(&p4.Entity{Entity: &p4.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4.PacketReplicationEngineEntry{
				Type: &p4.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: g},
			}}})
		}
	}
	return nil
}

func (r *reader) clones(id uint32) error {
	if id != 0 && r.c.clones[id] == nil {
		return fail(codes.NotFound, "there is no clone session %d", id)
	}
	for n, c := range sorted(r.c.clones) {
		if id == 0 || id == n {
			r.add(&p4.Entity{Entity: &p4.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4.PacketReplicationEngineEntry{
				Type: &p4.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: c},
			}}})
		}
	}
	return nil
}
