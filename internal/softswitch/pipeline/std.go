package pipeline

import "github.com/mcrdma/mcrdma/internal/softswitch/program"

// A stdField is a field of standard metadata. A field that the program does not declare has no
// mask: writes have no effect, and it reads as 0.
type stdField struct {
	w    int
	mask uint64
}

func (f stdField) set(pk *Packet, v uint64) {
	if f.mask != 0 {
		pk.w[f.w] = v & f.mask
	}
}

func (f stdField) get(pk *Packet) uint64 { return pk.w[f.w] & f.mask }

// std is the standard metadata, by program.StdIngressPort etc.
type std [len(program.Std{})]stdField

// Instance types, which programs see as standard_metadata.instance_type.
const (
	instanceNormal       = 0
	instanceIngressClone = 1
	instanceEgressClone  = 2
	instanceRecirculated = 4
	instanceReplica      = 5
	instanceResubmitted  = 6
)

func (l *layout) standard(s *program.Std) (out std) {
	for i, r := range s {
		out[i] = l.stdField(r)
	}
	return out
}

func (l *layout) stdField(r program.FieldRef) stdField {
	if r == program.NoField {
		return stdField{}
	}
	s := l.slot(r)
	return stdField{s.w, maskOf(s.bits)}
}

// metadata returns the range of the metadata's words.
func (l *layout) metadata(p *program.Program) (at [2]int) {
	for i, h := range p.Headers {
		if !h.Metadata {
			continue
		}
		if at[0] == 0 {
			at[0] = l.heads[i].lo
		}
		at[1] = l.heads[i].hi
	}
	return at
}

// Stats are counters of packets and errors.
type Stats struct {
	Received uint64 // frames passed to Ingress
	Emitted  uint64 // frames returned by Egress

	// The program dropped the packet.
	IngressDrops, EgressDrops uint64
	// The parser ended with an error. That alone drops no packet.
	ParserErrors uint64
	// A checksum was wrong. That alone drops no packet.
	ChecksumErrors uint64
	// A multicast group is unknown or empty: the packet is dropped.
	NoGroup uint64
	// A clone session is unknown or empty: there is no clone.
	NoSession uint64
	// A packet was resubmitted, recirculated or cloned too often, including its ancestors: it is
	// dropped.
	TooManyPasses uint64
	// One frame resulted in more packets than Process accepts: the others are dropped.
	TooManyCopies uint64
	// An index of a register, counter or meter was out of range: nothing is written or counted, and
	// the destination of a read stays unchanged.
	BadIndex uint64
	// The same for an index of a header stack.
	BadStackIndex uint64
	// A division by 0, with result 0.
	DivisionByZero uint64
	// assert() or assume() failed: the packet is dropped.
	AssertionFailed uint64
	// An action looped endlessly and was aborted.
	EndlessLoop uint64
	// The control plane did not take digests in time.
	DigestsDropped uint64
}

// Stats returns the counters.
func (p *Pipeline) Stats() Stats {
	s := p.stats
	s.BadIndex, s.DigestsDropped = p.badIndex, p.digests.dropped
	return s
}
