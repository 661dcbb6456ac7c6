package vm

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// An Impairment is what the network does to RoCEv2 frames; all others pass
// untouched, so that the tests' control connections stay up.
type Impairment struct {
	Loss    float64 // probability that a frame is lost
	Corrupt float64 // probability that one bit of it is flipped
	Hold    bool    // requests are held back, until the next impairment
	// Frames to an address are rewritten as a switch does in mode neutral, with their ICRC left
	// alone. Half of those that are corrupted are so before it, half behind it.
	To      [4]byte
	Rewrite rocev2.HeaderChange // of QPN and rkey
	Seed    uint64
}

// Stats counts RoCEv2 frames, before anything was done to them.
type Stats struct {
	Frames, Lost, Corrupted, Held, Rewritten uint64
	// Inward are those that were delivered from the port that was there first: to a guest, if it is
	// the guest's cable. Wrong are those of them whose ICRC is wrong.
	Inward, Wrong uint64
	// Acknowledgements that say "receiver not ready" and "out of sequence".
	RNRNaks, SequenceNaks uint64
}

// An impairer applies an Impairment. It is safe for concurrent use.
type impairer struct {
	mu    sync.Mutex
	imp   Impairment
	rng   *rand.Rand
	stats Stats
	held  []heldFrame
}

// A heldFrame is held back.
type heldFrame struct {
	from  *ethPort
	frame []byte
}

// set changes the impairment, restarts its random numbers and returns the
// counts since the last change.
func (im *impairer) set(i Impairment) Stats {
	im.mu.Lock()
	defer im.mu.Unlock()
	old := im.stats
	im.imp, im.rng, im.stats = i, rand.New(rand.NewPCG(i.Seed, 0)), Stats{}
	return old
}

// hold reports whether the frame is held back.
func (im *impairer) hold(from *ethPort, frame []byte) bool {
	im.mu.Lock()
	defer im.mu.Unlock()
	if !im.imp.Hold || !isRoCE(frame) || rocev2.Opcode(frame[ethLen+ipLen+udpLen]) == rocev2.Acknowledge {
		return false
	}
	im.held = append(im.held, heldFrame{from, bytes.Clone(frame)})
	im.stats.Frames++
	im.stats.Held++
	return true
}

// release returns the frames that were held back.
func (im *impairer) release() []heldFrame {
	im.mu.Lock()
	defer im.mu.Unlock()
	held := im.held
	im.held = nil
	return held
}

// inward counts a frame that is delivered from the first port.
func (im *impairer) inward(frame []byte) {
	if !isRoCE(frame) {
		return
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	im.stats.Inward++
	if !rocev2.VerifyICRC(frame[ethLen:]) {
		im.stats.Wrong++
	}
}

// count returns the counts since the last set.
func (im *impairer) count() Stats {
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.stats
}

// apply changes the frame in place and reports whether it is to be delivered.
func (im *impairer) apply(frame []byte) bool {
	if !isRoCE(frame) {
		return true
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	im.stats.Frames++
	if bth := frame[ethLen+ipLen+udpLen:]; len(bth) > rocev2.BTHLen && rocev2.Opcode(bth[0]) == rocev2.Acknowledge {
		switch s := rocev2.Syndrome(bth[rocev2.BTHLen]); {
		case s.IsRNR():
			im.stats.RNRNaks++
		case s == rocev2.NakSequence:
			im.stats.SequenceNaks++
		}
	}
	ip := frame[ethLen:]
	turned := im.imp.To != [4]byte{} && [4]byte(ip[16:]) == im.imp.To
	early, late := false, false
	switch {
	case im.imp.Loss > 0 && im.rng.Float64() < im.imp.Loss:
		im.stats.Lost++
		return false
	case im.imp.Corrupt > 0 && im.rng.Float64() < im.imp.Corrupt:
		im.stats.Corrupted++
		early = turned && im.rng.IntN(2) == 0
		late = !early
	}
	if early {
		flip(ip, im.rng)
		if rocev2.Checksum(ip[:ipLen]) != 0 {
			return false // a switch checks it
		}
	}
	if turned {
		rewrite(ip, im.imp.Rewrite)
		im.stats.Rewritten++
	}
	if late {
		flip(ip, im.rng)
	}
	return true
}

const (
	ethLen  = 14
	ipLen   = 20
	udpLen  = 8
	ipv4    = 0x0800
	roceUDP = 4791
)

// isRoCE reports whether the Ethernet frame is an IPv4 packet without options
// to RoCEv2's UDP port, as all RoCEv2 packets in the tests are.
func isRoCE(f []byte) bool {
	return len(f) >= ethLen+ipLen+udpLen && binary.BigEndian.Uint16(f[12:]) == ipv4 &&
		f[ethLen] == 0x45 && f[ethLen+9] == 17 &&
		binary.BigEndian.Uint16(f[ethLen+ipLen+2:]) == roceUDP
}

// rewrite changes a packet's QPN and rkey, and what keeps its ICRC right then. The UDP
// checksum, which IPv4 can do without, goes.
func rewrite(ip []byte, c rocev2.HeaderChange) {
	be, bth := binary.BigEndian, ip[ipLen+udpLen:]
	if len(bth) < rocev2.BTHLen {
		return
	}
	if len(bth) < rocev2.BTHLen+rocev2.RETHLen || !rocev2.Opcode(bth[0]).HasRETH() {
		c.RKey = 0
	} else {
		be.PutUint32(bth[rocev2.BTHLen+8:], be.Uint32(bth[rocev2.BTHLen+8:])^c.RKey)
	}
	be.PutUint32(bth[4:], be.Uint32(bth[4:])^uint32(c.QPN))
	n := rocev2.NeutralOf(c)
	be.PutUint16(ip[4:], be.Uint16(ip[4:])^n.ID())
	be.PutUint16(ip[ipLen:], be.Uint16(ip[ipLen:])^n.SrcPort())
	be.PutUint16(ip[ipLen+6:], 0)
	be.PutUint16(ip[10:], 0)
	be.PutUint16(ip[10:], rocev2.Checksum(ip[:ipLen]))
}

// flip inverts one bit of the IP packet. All of it is covered by the ICRC, by
// the IP header's checksum or by both, but for what routers may change
// without recomputing the ICRC and no other checksum covers: the UDP checksum
// and byte 4 of the BTH (FECN and BECN). Those are left alone, because no
// receiver could notice.
func flip(ip []byte, rng *rand.Rand) {
	const udpSum, bthResv = ipLen + 6, ipLen + udpLen + 4
	for {
		at := rng.IntN(len(ip))
		if at == udpSum || at == udpSum+1 || at == bthResv {
			continue
		}
		ip[at] ^= 1 << rng.IntN(8)
		return
	}
}
