package pipeline

import (
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// maxPasses bounds how many more times a packet passes through ingress or egress, by resubmission,
// recirculation, or as a clone.
const maxPasses = 16

// fresh initializes a packet's header and metadata values.
func (p *Pipeline) fresh(pk *Packet) {
	for _, r := range p.kept {
		clear(pk.w[r[0]:r[1]])
	}
	pk.w[0] = 1
	pk.length = uint64(pk.inLen)
}

// again reports whether a packet may make another pass.
func (p *Pipeline) again(pk *Packet) bool {
	if pk.passes++; pk.passes < maxPasses {
		return true
	}
	p.stats.TooManyPasses++
	return false
}

// list returns the fields of a field list, or none.
func (p *Pipeline) list(i int) []slot {
	if i < 0 {
		return nil
	}
	return p.lists[i]
}

// save saves the values of fields, and returns the number of their words; restore restores them.
func (p *Pipeline) save(pk *Packet, fields []slot) (n int) {
	for _, s := range fields {
		n += copy(p.saved[n:], pk.w[s.w:s.w+s.n])
	}
	return n
}

func (p *Pipeline) restore(pk *Packet, fields []slot) {
	n := 0
	for _, s := range fields {
		n += copy(pk.w[s.w:s.w+s.n], p.saved[n:])
	}
}

// runIngress runs parser and ingress on a packet, repeatedly if it is resubmitted. It adds the
// resulting packets to p.ready.
func (p *Pipeline) runIngress(pk *Packet) {
	for {
		code := p.parser.parse(pk)
		if code != p.errs.none {
			p.stats.ParserErrors++
		}
		p.std[program.StdParserError].set(pk, uint64(code))
		p.std[program.StdChecksumError].set(pk, p.checksums(pk))
		p.ingress.apply(pk)
		pk.exited = false
		if pk.failed {
			p.pool.release(pk)
			return
		}
		asked := pk.requests
		if asked.clone >= 0 {
			pk.clone, pk.cloneList = noRequests.clone, noRequests.cloneList
			p.cloneIngress(pk, asked)
		}
		if asked.digest >= 0 {
			p.report(pk, asked.digest)
		}
		if asked.resubmit < 0 {
			break
		}
		if !p.again(pk) {
			p.pool.release(pk)
			return
		}
		list := p.list(asked.resubmit - 1)
		p.save(pk, list)
		p.fresh(pk)
		p.restore(pk, list)
		p.std[program.StdInstanceType].set(pk, instanceResubmitted)
		p.std[program.StdPacketLength].set(pk, pk.length)
		pk.pos, pk.keep, pk.requests = 0, keepAll, noRequests
	}
	p.route(pk)
}

// checksums verifies checksums, and returns whether one is wrong.
func (p *Pipeline) checksums(pk *Packet) uint64 {
	wrong := uint64(0)
	for _, ok := range p.verify {
		if !ok(pk) {
			wrong = 1
		}
	}
	p.stats.ChecksumErrors += wrong
	return wrong
}

// route forwards a packet after ingress: to a multicast group, or to a port.
func (p *Pipeline) route(pk *Packet) {
	if grp := p.std[program.StdMcastGrp].get(pk); grp != 0 {
		p.std[program.StdInstanceType].set(pk, instanceReplica)
		p.replicate(pk, p.pre.Group(uint16(grp)), &p.stats.NoGroup)
		return
	}
	to := p.std[program.StdEgressSpec].get(pk)
	if to == uint64(p.opt.DropPort) {
		p.stats.IngressDrops++
		p.pool.release(pk)
		return
	}
	p.std[program.StdInstanceType].set(pk, instanceNormal)
	p.enqueue(pk, uint16(to))
}

// enqueue adds a packet to p.ready.
func (p *Pipeline) enqueue(pk *Packet, port uint16) {
	pk.port, pk.priority = port, int(p.std[program.StdPriority].get(pk))
	p.ready = append(p.ready, pk)
}

// replicate makes a copy for each replica; the packet itself becomes the last one. Copies are
// complete and carry no requests.
func (p *Pipeline) replicate(pk *Packet, to []pre.Replica, none *uint64) {
	if len(to) == 0 {
		*none++
		p.pool.release(pk)
		return
	}
	pk.keep, pk.requests = keepAll, noRequests
	for i, r := range to {
		out := pk
		if i < len(to)-1 {
			out = p.copyOf(pk)
		}
		p.std[program.StdEgressRid].set(out, uint64(r.Instance))
		p.enqueue(out, r.Port)
	}
}

// copyOf copies a packet. The frame is shared.
func (p *Pipeline) copyOf(pk *Packet) *Packet {
	out := p.pool.packet()
	w := out.w
	*out = *pk
	out.w = w
	for _, r := range p.kept {
		copy(w[r[0]:r[1]], pk.w[r[0]:r[1]])
	}
	pk.buf.refs++
	return out
}

// cloneIngress makes the clones requested by ingress: of the packet as received, parsed again.
func (p *Pipeline) cloneIngress(pk *Packet, asked requests) {
	out := p.pool.packet()
	p.pool.share(out, pk)
	out.pos, out.inPort, out.inLen, out.now = 0, pk.inPort, pk.inLen, pk.now
	out.passes = pk.passes
	p.fresh(out)
	p.std[program.StdIngressPort].set(out, uint64(pk.inPort))
	p.parser.parse(out)
	p.finishClone(out, pk, asked, instanceIngressClone)
}

// finishClone sets a clone's metadata and forwards it.
func (p *Pipeline) finishClone(out, pk *Packet, asked requests, kind uint64) {
	clear(out.w[p.meta[0]:p.meta[1]])
	list := p.list(asked.cloneList)
	p.save(pk, list)
	p.restore(out, list)
	p.std[program.StdInstanceType].set(out, kind)
	out.length = pk.length
	if kind == instanceIngressClone {
		out.length = uint64(pk.inLen)
	}
	out.exited, out.failed = false, false
	s := p.pre.Session(uint16(asked.clone))
	if s == nil {
		p.stats.NoSession++
		p.pool.release(out)
		return
	}
	if !p.again(out) {
		p.pool.release(out)
		return
	}
	first := len(p.ready)
	p.replicate(out, s.Replicas, &p.stats.NoSession)
	if s.PacketLength > 0 {
		for _, c := range p.ready[first:] {
			c.keep = s.PacketLength
		}
	}
}

// report queues a digest.
func (p *Pipeline) report(pk *Packet, index int) {
	p.state.digest(index, p.saved[:p.save(pk, p.reports[index])])
}

// runEgress runs egress and deparser on a packet, and releases it. It adds further resulting
// packets to p.ready.
func (p *Pipeline) runEgress(pk *Packet, q Queue) (frame []byte) {
	p.std[program.StdEnqTimestamp].set(pk, micros(q.EnqTime))
	p.std[program.StdEnqQdepth].set(pk, uint64(q.EnqDepth))
	p.std[program.StdDeqTimedelta].set(pk, micros(pk.now)-p.std[program.StdEnqTimestamp].get(pk))
	p.std[program.StdDeqQdepth].set(pk, uint64(q.DeqDepth))
	p.std[program.StdEgressTimestamp].set(pk, micros(pk.now))
	p.std[program.StdEgressPort].set(pk, uint64(pk.port))
	p.std[program.StdEgressSpec].set(pk, uint64(p.opt.DropPort)+1) // any value except the drop port
	p.std[program.StdPacketLength].set(pk, pk.length)
	p.egress.apply(pk)
	if asked := pk.requests; asked.clone >= 0 && !pk.failed {
		p.finishClone(p.copyOf(pk), pk, asked, instanceEgressClone) // of the packet as it is now
	}
	if pk.failed || p.std[program.StdEgressSpec].get(pk) == uint64(p.opt.DropPort) {
		if !pk.failed {
			p.stats.EgressDrops++
		}
		p.pool.release(pk)
		return nil
	}
	frame = p.out.deparse(pk)
	if pk.recirculate >= 0 {
		p.recirculate(pk, p.out.whole())
		return nil
	}
	p.stats.Emitted++
	p.pool.release(pk)
	return frame
}

// micros returns a time in the unit that programs see.
func micros(t time.Duration) uint64 { return uint64(t / time.Microsecond) }

// recirculate passes a deparsed packet to the parser again, untruncated.
func (p *Pipeline) recirculate(pk *Packet, frame []byte) {
	if !p.again(pk) {
		p.pool.release(pk)
		return
	}
	list := p.list(pk.recirculate - 1)
	p.save(pk, list)
	p.pool.drop(pk)
	p.pool.fill(pk, frame)
	pk.inLen, pk.keep, pk.requests, pk.exited = len(frame), keepAll, noRequests, false
	p.fresh(pk)
	p.restore(pk, list)
	p.std[program.StdInstanceType].set(pk, instanceRecirculated)
	p.std[program.StdPacketLength].set(pk, pk.length)
	p.runIngress(pk)
}
