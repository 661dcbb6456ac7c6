package softroce

import (
	"bytes"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// FuzzReceive gives a device with a connected queue pair, which has requests
// outstanding in both directions, arbitrary packets. Only the memory that they
// may write changes, and what the device answers is well formed (the wire looks
// at it).
//
// The input is a list of packets: a length, a byte of flags that says which
// fields are put right, so that the fuzzer need not guess them, and the packet.
func FuzzReceive(f *testing.F) {
	for _, op := range []rocev2.Opcode{
		rocev2.SendOnly, rocev2.SendOnlyImm, rocev2.SendFirst, rocev2.WriteOnly, rocev2.WriteOnlyImm, rocev2.WriteFirst,
		rocev2.ReadRequest, rocev2.ReadRespFirst, rocev2.ReadRespMiddle, rocev2.ReadRespLast, rocev2.ReadRespOnly, rocev2.Acknowledge, rocev2.CNP, rocev2.CompareSwap, rocev2.SendOnlyInv, rocev2.UDSendOnly,
	} {
		h := rocev2.Headers{BTH: rocev2.BTH{Opcode: op, PKey: rocev2.DefaultPKey, AckReq: true}, RETH: rocev2.RETH{VA: 100, Length: 64}}
		b := h.AppendTo(nil)
		if op != rocev2.ReadRequest {
			b = append(b, make([]byte, 64)...)
		}
		f.Add(fuzzPacket(0xff, b))
		f.Add(append(fuzzPacket(0xff, b), fuzzPacket(0xff, b)...))
		f.Add(append(fuzzPacket(0, b), fuzzPacket(fixAll, b[:h.Len()])...))
	}
	f.Add([]byte{})

	const size, margin = 4096, 8192
	w := newWire()
	d := onLink(f, w, Options{})
	cq := must(d.CreateCQ(1 << 12))(f)
	pd := must(d.AllocPD())(f)
	arena := make([]byte, size+2*margin)
	mr := must(pd.RegMR(arena[margin:margin+size:margin+size], qp.AccessRemoteWrite|qp.AccessRemoteRead))(f)
	secret := must(pd.RegMR(bytes.Repeat([]byte{0x77}, size), qp.AccessLocalWrite))(f)
	q := must(pd.CreateQP(qp.Init{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8}))(f)
	e := &end{t: f, dev: d, pd: pd, cq: cq, mr: mr, qp: q}
	e.attr = qp.Attr{Access: qp.AccessRemoteWrite | qp.AccessRemoteRead, PathMTU: 1024, SQPSN: 100, RQPSN: 200, MaxRdAtomic: 1, MaxDestRdAtomic: 2}

	f.Fuzz(func(t *testing.T, input []byte) {
		for i := range arena {
			arena[i] = 0xa5
		}
		e.t = t
		modify(t, e, qp.StateReset, qp.MaskState)
		e.up(peerAddr, peerQPN)
		e.send(qp.SendWR{ID: 9, Opcode: qp.OpRead, SGEs: []qp.SGE{mr.SGE(0, 1500)}})
		for id := range uint64(4) {
			e.recv(id, mr.SGE(1024*int(id), 512))
			e.send(qp.SendWR{ID: id, Opcode: qp.OpWrite, SGEs: []qp.SGE{secret.SGE(0, 1500)}})
		}
		for len(input) >= 3 {
			n := min(int(input[0])|int(input[1])<<8, len(input)-3)
			flags, packet := input[2], bytes.Clone(input[3:3+n])
			input = input[3+n:]
			sq, rq := rocev2.PSN(0), rocev2.PSN(0)
			if a, err := q.Query(); err == nil {
				sq, rq = a.SQPSN, a.RQPSN
			}
			fix(packet, flags, q.QPN(), sq, rq, mr)
			w.deliver(link.Rx{Src: peerAddr, TOS: flags, Data: packet})
		}
		modify(t, e, qp.StateReset, qp.MaskState) // orders the device's writes before what follows
		for i, v := range arena {
			if v != 0xa5 && (i < margin || i >= margin+size) {
				t.Fatalf("byte %d of the arena is written, the region is %d to %d", i, margin, margin+size)
			}
		}
		for i, v := range secret.Bytes() {
			if v != 0x77 {
				t.Fatalf("byte %d of a region that is not for peers is written", i)
			}
		}
		for _, p := range w.take() {
			if p.dst != peerAddr || p.DestQP != peerQPN {
				t.Fatalf("sent %+v", p)
			}
			if !p.Opcode.IsRequest() && bytes.Contains(p.payload, []byte{0x77, 0x77, 0x77, 0x77}) {
				t.Fatal("a READ response has bytes of a region that is not for peers")
			}
		}
		var wc [64]qp.WC
		for n := 1; n > 0; {
			n = must(cq.Poll(wc[:]))(t)
		}
		for len(d.events) > 0 {
			<-d.events
		}
	})
}

const (
	fixQPN = 1 << iota
	fixPSN // to the expected one; of an acknowledgement, to the last one sent; of a READ response, to the READ's
	fixRKey
	fixVA // relative to the region
	fixVersion
	fixAll = 1<<iota - 1
)

func fuzzPacket(flags byte, b []byte) []byte {
	return append([]byte{byte(len(b)), byte(len(b) >> 8), flags}, b...)
}

// fix changes fields of the packet b in place.
func fix(b []byte, flags byte, qpn rocev2.QPN, sq, rq rocev2.PSN, mr qp.MR) {
	var h rocev2.Headers
	if _, err := h.Parse(b); err != nil {
		return
	}
	if flags&fixQPN != 0 {
		h.DestQP = qpn
	}
	if flags&fixPSN != 0 {
		h.PSN = rq
		if h.Opcode == rocev2.Acknowledge {
			h.PSN = sq.Add(-1)
		} else if !h.Opcode.IsRequest() {
			h.PSN = 100
		}
	}
	if flags&fixRKey != 0 {
		h.RETH.RKey = mr.RKey()
	}
	if flags&fixVA != 0 {
		h.RETH.VA += mr.Addr()
	}
	if flags&fixVersion != 0 {
		h.TVer, h.PKey = 0, rocev2.DefaultPKey
	}
	h.AppendTo(b[:0])
}
