package p4rtserver

import (
	"slices"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"

	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

func (b *indexer) readProfiles() {
	for _, p := range b.info.GetActionProfiles() {
		if !b.declare("action profile", p.GetPreamble()) {
			continue
		}
		x := &profile{
			id:        p.GetPreamble().GetId(),
			name:      p.GetPreamble().GetName(),
			selector:  p.GetWithSelector(),
			size:      p.GetSize(),
			maxGroup:  p.GetMaxGroupSize(),
			byMembers: p.GetSumOfMembers() != nil,
			maxWeight: p.GetSumOfMembers().GetMaxMemberWeight(),
			noWeights: p.GetWeightsDisallowed(),
		}
		at := slices.IndexFunc(b.prog.Profiles, func(q program.Profile) bool { return q.Name == x.name })
		switch {
		case at < 0:
			b.problem("%s is not in the program", x)
			continue
		case b.prog.Profiles[at].Selector != x.selector:
			b.problem("%s: only one of P4Info and program has a selector for it", x)
		case x.size < 0 || x.maxGroup < 0 || x.maxWeight < 0:
			b.problem("%s has a negative size in the P4Info", x)
		case x.noWeights:
			b.problem("%s: this switch has no weights of its own to choose members by (weights_disallowed)", x)
		}
		b.profiles[x.id] = x
		b.profileList = append(b.profileList, x)
	}
}

// finishProfiles gives each profile the actions of its tables.
func (b *indexer) finishProfiles() {
	for _, p := range b.profileList {
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
	for _, c := range b.info.GetCounters() {
		if !b.declare("counter", c.GetPreamble()) {
			continue
		}
		x := &array{id: c.GetPreamble().GetId(), name: c.GetPreamble().GetName()}
		at := slices.IndexFunc(b.prog.Counters, func(q program.Counter) bool { return q.Name == x.name && q.Table == program.None })
		if at < 0 {
			b.problem("%s is not in the program", x)
			continue
		}
		x.size = b.prog.Counters[at].Size
		b.sameSize(x.String(), c.GetSize(), x.size)
		b.counters[x.id] = x
		b.counterList = append(b.counterList, x)
	}
	for _, m := range b.info.GetMeters() {
		if !b.declare("meter", m.GetPreamble()) {
			continue
		}
		x := &meter{id: m.GetPreamble().GetId(), name: m.GetPreamble().GetName(), kind: m.GetSpec().GetType()}
		at := slices.IndexFunc(b.prog.Meters, func(q program.Meter) bool { return q.Name == x.name && q.Table == program.None })
		if at < 0 {
			b.problem("%s is not in the program", x)
			continue
		}
		x.size = b.prog.Meters[at].Size
		b.sameSize(x.String(), m.GetSize(), x.size)
		b.meterSpec(x.String(), m.GetSpec(), &b.prog.Meters[at])
		b.meters[x.id] = x
		b.meterList = append(b.meterList, x)
	}
}

func (b *indexer) sameSize(what string, info int64, prog int) {
	if info != int64(prog) {
		b.problem("%s has %d cells in the P4Info and %d in the program", what, info, prog)
	}
}

func (b *indexer) meterSpec(what string, spec *p4cfg.MeterSpec, m *program.Meter) {
	if inBytes := spec.GetUnit() == p4cfg.MeterSpec_BYTES; inBytes != m.Bytes {
		b.problem("%s counts %v in the P4Info, but not in the program", what, spec.GetUnit())
	}
	if spec.GetType() == p4cfg.MeterSpec_SINGLE_RATE_THREE_COLOR {
		b.problem("%s is of type SINGLE_RATE_THREE_COLOR; the meters of this switch have two rates", what)
	}
}

func (b *indexer) readDirect() {
	for _, c := range b.info.GetDirectCounters() {
		if !b.declare("direct counter", c.GetPreamble()) {
			continue
		}
		name := c.GetPreamble().GetName()
		x := &resource{id: c.GetPreamble().GetId(), what: "direct counter " + name}
		t := b.tables[c.GetDirectTableId()]
		if t == nil {
			b.problem("%s: its table with id %d is %s", x.what, c.GetDirectTableId(), b.kindOf(c.GetDirectTableId()))
			continue
		}
		if at := b.prog.Tables[t.prog].Counter; at == program.None || b.prog.Counters[at].Name != name {
			b.problem("%s: %s has no such counter in the program", x.what, t)
			continue
		}
		t.counter = x
		b.direct[x.id] = x
	}
	for _, m := range b.info.GetDirectMeters() {
		if !b.declare("direct meter", m.GetPreamble()) {
			continue
		}
		name := m.GetPreamble().GetName()
		x := &resource{id: m.GetPreamble().GetId(), what: "direct meter " + name, kind: m.GetSpec().GetType()}
		t := b.tables[m.GetDirectTableId()]
		if t == nil {
			b.problem("%s: its table with id %d is %s", x.what, m.GetDirectTableId(), b.kindOf(m.GetDirectTableId()))
			continue
		}
		at := b.prog.Tables[t.prog].Meter
		if at == program.None || b.prog.Meters[at].Name != name {
			b.problem("%s: %s has no such meter in the program", x.what, t)
			continue
		}
		b.meterSpec(x.what, m.GetSpec(), &b.prog.Meters[at])
		t.meter = x
		b.direct[x.id] = x
	}
	for _, t := range b.info.GetTables() {
		for _, id := range t.GetDirectResourceIds() {
			if b.direct[id] == nil {
				b.problem("table %s: its direct resource with id %d is %s", t.GetPreamble().GetName(), id, b.kindOf(id))
			}
		}
	}
}

func (b *indexer) readValueSets() {
	for _, v := range b.info.GetValueSets() {
		if !b.declare("value set", v.GetPreamble()) {
			continue
		}
		x := &valueSet{id: v.GetPreamble().GetId(), name: v.GetPreamble().GetName()}
		x.key.of = x
		at := slices.IndexFunc(b.prog.ValueSets, func(q program.ValueSet) bool { return q.Name == x.name })
		if at < 0 {
			b.problem("%s is not in the program", x)
			continue
		}
		p := &b.prog.ValueSets[at]
		x.size = p.Size
		if int(v.GetSize()) != p.Size {
			b.problem("%s has room for %d members in the P4Info and %d in the program", x, v.GetSize(), p.Size)
		}
		if len(v.GetMatch()) != len(p.Bits) {
			b.problem("%s has %d fields in the P4Info and %d in the program", x, len(v.GetMatch()), len(p.Bits))
			continue
		}
		for i, m := range v.GetMatch() {
			f := field{id: m.GetId(), name: m.GetName(), kind: m.GetMatchType()}
			if f.name == "" {
				f.name = x.name
			}
			if f.id == 0 || findField(x.key.spec, x.key.byID, f.id) >= 0 {
				b.problem("%s: field %s has the id %d, which is none or another's", x, f.name, f.id)
			}
			if _, ok := programKind[f.kind]; !ok {
				b.problem("%s: field %s has no match type of v1model", x, f.name)
			}
			f.bits = b.width(x.String()+": field "+f.name, m.GetBitwidth(), m.GetTypeName(), p.Bits[i])
			x.key.words += 2 * words(f.bits)
			x.key.spec = append(x.key.spec, f)
			x.key.byID = append(x.key.byID, i)
		}
		b.valueSets[x.id] = x
		b.valueSetList = append(b.valueSetList, x)
	}
}

func (b *indexer) readRegisters() {
	for _, r := range b.info.GetRegisters() {
		if !b.declare("register", r.GetPreamble()) {
			continue
		}
		x := &register{id: r.GetPreamble().GetId(), name: r.GetPreamble().GetName()}
		at := slices.IndexFunc(b.prog.Registers, func(q program.Register) bool { return q.Name == x.name })
		if at < 0 {
			b.problem("%s is not in the program", x)
			continue
		}
		p := &b.prog.Registers[at]
		x.size, x.bits = p.Size, p.Bits
		b.sameSize(x.String(), int64(r.GetSize()), p.Size)
		x.data = b.dataType(x.String(), r.GetTypeSpec(), []int{p.Bits})
		b.registers[x.id] = x
		b.registerList = append(b.registerList, x)
	}
}

func (b *indexer) readDigests() {
	for _, d := range b.info.GetDigests() {
		if !b.declare("digest", d.GetPreamble()) {
			continue
		}
		x := &digest{id: d.GetPreamble().GetId(), name: d.GetPreamble().GetName()}
		// Every call of digest() with this type is one of the program's digests.
		found := false
		for at, q := range b.prog.Digests {
			if q.Name != x.name {
				continue
			}
			found = true
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
		if !found {
			b.problem("%s is not in the program", x)
			continue
		}
		b.digests[x.id] = x
		b.digestList = append(b.digestList, x)
	}
}

// maxHeaderBits bounds the header of packets to and from controllers.
const maxHeaderBits = 8 * 1024

func (b *indexer) readPacketHeaders() {
	for _, h := range b.info.GetControllerPacketMetadata() {
		if !b.declare("packet metadata", h.GetPreamble()) {
			continue
		}
		x := newPacketHeader(h)
		switch name := h.GetPreamble().GetName(); {
		case x.bits > maxHeaderBits:
			b.problem("%s is %d bits long; a header that a packet can have has %d at most", x.name, x.bits, maxHeaderBits)
			continue
		case x.bits%8 != 0:
			b.problem("%s is %d bits long, not whole bytes", x.name, x.bits)
		case name == "packet_in" && b.packetIn == nil:
			b.packetIn = x
		case name == "packet_out" && b.packetOut == nil:
			b.packetOut = x
		default:
			b.problem("there is packet metadata called %s; known are one packet_in and one packet_out", name)
		}
		seen := map[uint32]bool{}
		for _, f := range x.fields {
			if f.id == 0 || seen[f.id] {
				b.problem("%s: field %s has the id %d, which is none or another's", x.name, f.name, f.id)
			}
			if f.bits <= 0 {
				b.problem("%s: field %s has a width of %d bits", x.name, f.name, f.bits)
			}
			seen[f.id] = true
		}
	}
}
