package softroce

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

// A bad network loses, repeats, delays and damages frames, each with a
// probability in percent.
type badNetwork struct{ lose, repeat, delay, damage float64 }

// impair returns the network's way with frames, which depends on the seed only.
// ARP has no check sequence to find damage by: it comes through.
func (n badNetwork) impair(seed uint64) pipe.Impairment {
	r := rand.New(rand.NewPCG(seed, 1))
	hit := func(percent float64) bool { return r.Float64()*100 < percent }
	return func(_ uint64, frame []byte) (f pipe.Outcome) {
		if frame[12] != rocev2.EtherTypeIPv4>>8 || frame[13] != rocev2.EtherTypeIPv4&0xff {
			return f
		}
		f.Drop = hit(n.lose)
		if hit(n.repeat) {
			f.Dups = 1 + r.IntN(3)
		}
		if hit(n.delay) {
			f.Late = 1 + r.IntN(20)
		}
		if hit(n.damage) {
			for range 1 + r.IntN(3) {
				frame[rocev2.EthernetLen+r.IntN(len(frame)-rocev2.EthernetLen)] ^= 1 << r.IntN(8)
			}
		}
		return f
	}
}

// Whatever a network does, each message arrives once, whole and in order.
func TestBadNetworks(t *testing.T) {
	for _, n := range []badNetwork{
		{lose: 2}, {lose: 20}, {repeat: 30}, {delay: 5}, {damage: 3}, {3, 5, 3, 2}, {8, 20, 10, 5},
	} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%+v/seed %d", n, seed), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					cable := pipe.Config{Impair: [2]pipe.Impairment{n.impair(seed), n.impair(seed + 1000)}}
					a, b := piped(t, cable, Options{Window: 32}, 256<<10, qp.Init{},
						func(x *qp.Attr) { x.PathMTU, x.Timeout, x.MinRNRTimer = 1024, 10, 12 })
					r := rand.New(rand.NewPCG(seed, 2))
					exchange(t, r, a, b)
					exchange(t, r, b, a)
					if n.lose+n.damage < 10 { // a try of a READ has one packet there and one back: eight tries may fail
						readAll(t, r, a, b)
					}
					if n.lose > 0 && a.dev.Counters()["tx_retransmits"] == 0 {
						t.Error("nothing was sent twice")
					}
				})
			})
		}
	}
}

// readAll reads all of the peer's memory in pieces of random size, in random order, several at once.
func readAll(t *testing.T, r *rand.Rand, from, to *end) {
	t.Helper()
	fillPattern(to.buf, int(r.Uint32()))
	clear(from.buf)
	var at []int
	for off := 0; off < len(to.buf); off += r.IntN(16<<10) + 1 {
		at = append(at, off)
	}
	ends := append(at[1:len(at):len(at)], len(to.buf))
	packets := uint64(0)
	for i := range at {
		packets += uint64(ends[i]-at[i]+1023) / 1024
	}
	for batch := range slices.Chunk(r.Perm(len(at)), 64) {
		for id, i := range batch {
			from.send(qp.SendWR{ID: uint64(id), Opcode: qp.OpRead, SGEs: []qp.SGE{from.mr.SGE(at[i], ends[i]-at[i])},
				RemoteAddr: to.mr.Addr() + uint64(at[i]), RKey: to.mr.RKey()})
		}
		for id := range batch {
			if wc := from.want(uint64(id), qp.StatusSuccess); wc.Opcode != qp.WCRead {
				t.Errorf("completion %+v", wc)
			}
		}
	}
	if !bytes.Equal(from.buf, to.buf) {
		t.Error("data differ")
	}
	got, sent := from.dev.Counters()["rc_read_responses_received"], to.dev.Counters()["rc_read_responses_sent"]
	if got != packets || sent < packets {
		t.Errorf("%d responses taken, %d sent, want %d", got, sent, packets)
	}
}

// exchange sends messages of random kind and size, several at once, and
// compares memory afterward. SENDs land in the lower half, WRITEs in the upper.
func exchange(t *testing.T, r *rand.Rand, from, to *end) {
	t.Helper()
	half := len(to.buf) / 2
	fillPattern(from.buf, int(r.Uint32()))
	clear(to.buf)
	const messages = 40
	ends := [2]int{0, half}
	imms := []uint32{}
	for id := range uint64(messages) {
		n := r.IntN(2 * half / messages)
		op := qp.Opcode(r.IntN(4))
		if id == messages-1 {
			op = qp.OpSendImm
		}
		at := &ends[0]
		if op.IsWrite() {
			at = &ends[1]
		}
		n = min(n, half-*at%half)
		sge := from.mr.SGE(*at, n)
		if !op.IsWrite() {
			to.recv(uint64(len(imms)), to.mr.SGE(*at, n))
			imms = append(imms, 0)
		}
		if op == qp.OpWriteImm {
			to.recv(uint64(len(imms)))
			imms = append(imms, 0)
		}
		if op.HasImm() {
			imms[len(imms)-1] = uint32(id) + 1
		}
		from.send(qp.SendWR{ID: id, Opcode: op, SGEs: []qp.SGE{sge}, Imm: uint32(id) + 1,
			RemoteAddr: to.mr.Addr() + uint64(*at), RKey: to.mr.RKey()})
		*at += n
	}
	for id := range uint64(messages) {
		from.want(id, qp.StatusSuccess)
	}
	for id, imm := range imms {
		if wc := to.want(uint64(id), qp.StatusSuccess); wc.HasImm != (imm != 0) || wc.HasImm && wc.Imm != imm {
			t.Errorf("completion %+v, want immediate data %d", wc, imm)
		}
	}
	if !bytes.Equal(from.buf[:ends[0]], to.buf[:ends[0]]) || !bytes.Equal(from.buf[half:ends[1]], to.buf[half:ends[1]]) {
		t.Error("data differ")
	}
	for _, b := range append(to.buf[ends[0]:half:half], to.buf[ends[1]:]...) {
		if b != 0 {
			t.Fatal("memory was written that no message names")
		}
	}
}
