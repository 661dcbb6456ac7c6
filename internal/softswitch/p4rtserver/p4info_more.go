package p4rtserver

import (
	"cmp"
	"slices"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// newIndex resolves a P4Info against its pipeline. The error lists the mismatches, by name.
func newIndex(info *p4cfg.P4Info, pipe *pipeline.Pipeline) (*index, error) {
	x := &index{
		kinds:    map[uint32]string{},
		actions:  map[uint32]*action{},
		byState:  map[*pipeline.Table]*table{},
		byDigest: make([]*digest, len(pipe.Program().Digests)),
	}
	x.tables = newObjects[table](x, "table")
	x.profiles = newObjects[profile](x, "action profile")
	x.counters = newObjects[counter](x, "counter")
	x.meters = newObjects[meter](x, "meter")
	x.registers = newObjects[register](x, "register")
	x.valueSets = newObjects[valueSet](x, "value set")
	x.digests = newObjects[digest](x, "digest")
	b := &indexer{index: x, info: info, pipe: pipe, prog: pipe.Program(), dropped: map[uint32]bool{}}
	b.common()
	b.readActions()
	resolve(b, &x.profiles, info.GetActionProfiles(), pipe.Profile, b.readProfile)
	resolve(b, &x.tables, info.GetTables(), pipe.Table, b.readTable)
	b.checkDropped()
	b.finishProfiles()
	b.readArrays()
	b.readDirect()
	resolve(b, &x.valueSets, info.GetValueSets(), pipe.ValueSet, b.readValueSet)
	resolve(b, &x.digests, info.GetDigests(), b.findDigest, b.readDigest)
	b.readPacketHeaders()
	return x, b.result()
}

// resolve reads the P4Info's objects of one kind. find finds the program's object of that name, or
// returns nil; read combines the two, or returns nil on a mismatch.
func resolve[I interface{ GetPreamble() *p4cfg.Preamble }, S, T any](b *indexer, to *objects[T], list []I, find func(string) *S, read func(object, I, *S) *T) {
	for _, info := range list {
		o, ok := b.declare(to.kind, info.GetPreamble())
		if !ok {
			continue
		}
		s := find(o.name)
		if s == nil {
			b.missing(o)
			continue
		}
		if x := read(o, info, s); x != nil {
			to.byID[o.id] = x
			to.list = append(to.list, x)
		}
	}
}

// missing handles an object that is not in the program. Compilers remove tables that are never
// applied, and objects that only they use, from the program but not from the P4Info.
func (b *indexer) missing(o object) {
	if o.kind != b.tables.kind && o.kind != b.profiles.kind {
		b.problem("%s is not in the program", o)
		return
	}
	b.kinds[o.id] += ", which is not in the program"
	b.dropped[o.id] = true
}

// checkDropped rejects a P4Info that is another program's, or empty: it has no table of the program, which has some.
func (b *indexer) checkDropped() {
	if len(b.tables.list) > 0 {
		return
	}
	for _, t := range b.prog.Tables {
		switch {
		case len(t.Key) == 0: // the P4Info need not have those that the compiler made
		case len(b.info.GetTables()) == 0:
			b.problem("the P4Info has no tables, and the program has the table %s", t.Name)
			return
		default:
			b.problem("none of its tables is in the program, which has the table %s", t.Name)
			return
		}
	}
}

func (b *indexer) readProfile(o object, p *p4cfg.ActionProfile, state *pipeline.Profile) *profile {
	x := &profile{
		object:    o,
		selector:  p.GetWithSelector(),
		maxGroup:  p.GetMaxGroupSize(),
		byMembers: p.GetSumOfMembers() != nil,
		maxWeight: p.GetSumOfMembers().GetMaxMemberWeight(),
		state:     state,
	}
	x.members, x.groups = profileMembers(x), profileGroups(x)
	switch {
	case state.Info().Selector != x.selector:
		b.problem("%s: only one of P4Info and program has a selector for it", x)
	case p.GetSize() < 0 || x.maxGroup < 0 || x.maxWeight < 0:
		b.problem("%s has a negative size in the P4Info", x)
	case p.GetWeightsDisallowed():
		b.problem("%s: this switch has no weights of its own to choose members by (weights_disallowed)", x)
	}
	return x
}

// finishProfiles sets the actions of each profile to those of its tables.
func (b *indexer) finishProfiles() {
	for _, p := range b.profiles.list {
		for i, t := range p.tables {
			if i == 0 {
				p.actions = t.actions
				continue
			}
			if !sameActions(p.actions, t.actions) {
				b.problem("%s: its tables %s and %s have different actions", p, p.tables[0].name, t.name)
			}
		}
	}
}

// sameActions reports whether two tables have the same actions, in any order.
func sameActions(a, b []tableAction) bool {
	for _, x := range a {
		if findAction(b, x.id) == nil {
			return false
		}
	}
	return len(a) == len(b)
}

func (b *indexer) readArrays() {
	resolve(b, &b.counters, b.info.GetCounters(), b.findCounter, func(o object, c *p4cfg.Counter, state *pipeline.Counter) *counter {
		b.sameSize(o, c.GetSize(), state.Len())
		return &counter{array[pipeline.Counts]{o, state}}
	})
	resolve(b, &b.meters, b.info.GetMeters(), b.findMeter, func(o object, m *p4cfg.Meter, state *pipeline.Meter) *meter {
		b.sameSize(o, m.GetSize(), state.Len())
		b.meterSpec(o, m.GetSpec(), state.Info().Bytes)
		return &meter{array[pipeline.MeterConfig]{o, state}, m.GetSpec().GetType()}
	})
	resolve(b, &b.registers, b.info.GetRegisters(), b.pipe.Register, func(o object, r *p4cfg.Register, state *pipeline.Register) *register {
		b.sameSize(o, int64(r.GetSize()), state.Len())
		data := b.dataType(o.String(), r.GetTypeSpec(), []int{state.Info().Bits})
		return &register{array[match.Value]{o, state}, data}
	})
}

// findCounter finds an indexed counter.
func (b *indexer) findCounter(name string) *pipeline.Counter {
	if c := b.pipe.Counter(name); c != nil && c.Info().Table == program.None {
		return c
	}
	return nil
}

// findMeter finds an indexed meter.
func (b *indexer) findMeter(name string) *pipeline.Meter {
	if m := b.pipe.Meter(name); m != nil && m.Info().Table == program.None {
		return m
	}
	return nil
}

func (b *indexer) sameSize(what object, info int64, prog int) {
	if info != int64(prog) {
		b.problem("%s has %d cells in the P4Info and %d in the program", what, info, prog)
	}
}

func (b *indexer) meterSpec(what object, spec *p4cfg.MeterSpec, inBytes bool) {
	if inBytes != (spec.GetUnit() == p4cfg.MeterSpec_BYTES) {
		b.problem("%s counts %v in the P4Info, but not in the program", what, spec.GetUnit())
	}
	if spec.GetType() == p4cfg.MeterSpec_SINGLE_RATE_THREE_COLOR {
		b.problem("%s is of type SINGLE_RATE_THREE_COLOR; the meters of this switch have two rates", what)
	}
}

func (b *indexer) readDirect() {
	known := map[uint32]bool{}
	// read returns a resource and its table, or nil on a mismatch; have returns the name of the
	// program's resource of the table.
	read := func(kind string, pre *p4cfg.Preamble, id uint32, have func(*program.Table) string) (*resource, *table) {
		o, ok := b.declare("direct "+kind, pre)
		t := b.tables.byID[id]
		switch {
		case !ok:
			return nil, nil
		case t == nil && b.dropped[id]:
			known[o.id] = true
			return nil, nil
		case t == nil:
			b.problem("%s: its table with id %d is %s", o, id, kindOf(b.kinds, id))
			return nil, nil
		case have(t.state.Info()) != o.name:
			b.problem("%s: %s has no such %s in the program", o, t, kind)
			return nil, nil
		}
		known[o.id] = true
		return &resource{object: o}, t
	}
	for _, c := range b.info.GetDirectCounters() {
		x, t := read("counter", c.GetPreamble(), c.GetDirectTableId(), func(p *program.Table) string {
			if p.Counter == program.None {
				return ""
			}
			return b.prog.Counters[p.Counter].Name
		})
		if x != nil {
			t.counter = x
		}
	}
	for _, m := range b.info.GetDirectMeters() {
		x, t := read("meter", m.GetPreamble(), m.GetDirectTableId(), func(p *program.Table) string {
			if p.Meter == program.None {
				return ""
			}
			return b.prog.Meters[p.Meter].Name
		})
		if x != nil {
			x.kind = m.GetSpec().GetType()
			b.meterSpec(x.object, m.GetSpec(), b.prog.Meters[t.state.Info().Meter].Bytes)
			t.meter = x
		}
	}
	for _, t := range b.info.GetTables() {
		for _, id := range t.GetDirectResourceIds() {
			if !known[id] {
				b.problem("table %s: its direct resource with id %d is %s", t.GetPreamble().GetName(), id, kindOf(b.kinds, id))
			}
		}
	}
}

func (b *indexer) readValueSet(o object, v *p4cfg.ValueSet, state *pipeline.ValueSet) *valueSet {
	x := &valueSet{object: o, state: state}
	x.key.of = x
	p := state.Info()
	if int(v.GetSize()) != p.Size {
		b.problem("%s has room for %d members in the P4Info and %d in the program", x, v.GetSize(), p.Size)
	}
	if len(v.GetMatch()) != len(p.Bits) {
		b.problem("%s has %d fields in the P4Info and %d in the program", x, len(v.GetMatch()), len(p.Bits))
		return nil
	}
	for i, m := range v.GetMatch() {
		f := field{id: m.GetId(), name: cmp.Or(m.GetName(), x.name), kind: m.GetMatchType()}
		if f.id == 0 || findField(x.key.spec, x.key.byID, f.id) >= 0 {
			b.problem("%s: field %s has the id %d, which is none or another's", x, f.name, f.id)
		}
		if _, ok := programKind[f.kind]; !ok {
			b.problem("%s: field %s has no match type of v1model", x, f.name)
		}
		f.bits = b.width(x.String()+": field "+f.name, int(m.GetBitwidth()), m.GetTypeName(), p.Bits[i])
		x.key.words += 2 * match.Words(f.bits)
		x.key.spec = append(x.key.spec, f)
		x.key.byID = append(x.key.byID, i)
	}
	return x
}

// findDigest finds the first of the program's digests of that name: there is one for every call of
// digest() with its type.
func (b *indexer) findDigest(name string) *program.Digest {
	if at := slices.IndexFunc(b.prog.Digests, func(d program.Digest) bool { return d.Name == name }); at >= 0 {
		return &b.prog.Digests[at]
	}
	return nil
}

func (b *indexer) readDigest(o object, d *p4cfg.Digest, _ *program.Digest) *digest {
	x := &digest{object: o}
	for at, q := range b.prog.Digests {
		if q.Name != x.name {
			continue
		}
		x.bits = x.bits[:0]
		for _, f := range q.Fields {
			width := 1 // a header's validity
			if f.Field != program.Valid {
				width = b.prog.Headers[f.Header].Fields[f.Field].Bits
			}
			x.bits = append(x.bits, width)
		}
		x.data = b.dataType(x.String(), d.GetTypeSpec(), x.bits)
		b.byDigest[at] = x
	}
	return x
}

// maxHeaderBits limits the header of packets to and from controllers.
const maxHeaderBits = 8 * 1024

func (b *indexer) readPacketHeaders() {
	for _, h := range b.info.GetControllerPacketMetadata() {
		o, ok := b.declare("packet metadata", h.GetPreamble())
		if !ok {
			continue
		}
		x := newPacketHeader(o, h)
		switch {
		case x.bits > maxHeaderBits:
			b.problem("%s is %d bits long; a header that a packet can have has %d at most", x, x.bits, maxHeaderBits)
			continue
		case x.bits%8 != 0:
			b.problem("%s is %d bits long, not whole bytes", x, x.bits)
		case o.name == "packet_in" && b.packetIn == nil:
			b.packetIn = x
		case o.name == "packet_out" && b.packetOut == nil:
			b.packetOut = x
		default:
			b.problem("there is packet metadata called %s; known are one packet_in and one packet_out", o.name)
		}
		seen := map[uint32]bool{}
		for _, f := range x.fields {
			if f.id == 0 || seen[f.id] {
				b.problem("%s: field %s has the id %d, which is none or another's", x, f.name, f.id)
			}
			if f.bits <= 0 {
				b.problem("%s: field %s has a width of %d bits", x, f.name, f.bits)
			}
			seen[f.id] = true
		}
	}
}
