package framelink

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

type (
	macAddr = [6]byte
	ipAddr  = [4]byte
)

var broadcast = macAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// The ARP machine's figures.
const (
	arpLen       = 28              // an ARP packet for Ethernet and IPv4
	arpTries     = 3               // requests before giving up
	arpInterval  = time.Second     // between them; RFC 1122 §2.3.2.1 allows no more than one a second
	arpFresh     = time.Minute     // how long an answer is believed without asking again; RFC 1122 §2.3.2.1
	arpAnnounces = 2               // announcements on start; RFC 5227 §1.1
	arpAnnounceI = 2 * time.Second // between them; RFC 5227 §1.1
	arpCache     = 256             // neighbors
	arpHeldEach  = 64              // frames waiting for one neighbor
	arpHeldAll   = 512             // frames waiting altogether

	arpRequest, arpReply = 1, 2

	never = time.Duration(1<<63 - 1)
)

// An arp is the ARP machine of one address on one Ethernet (RFC 826, with RFC
// 1122 §2.3.2 and RFC 5227's announcements). It is pure: its inputs are calls
// with the time since any fixed moment, its outputs the frames that take
// returns and the figures in stats. Time must not go backward.
//
// While frames for a neighbor wait, up to three broadcast requests a second
// apart ask for it. Its answer holds for a minute. If the address was used
// meanwhile, up to three unicast requests then confirm it, and it stays in use
// until the last of these has gone unanswered; if not, it is forgotten.
type arp struct {
	mac    macAddr
	ip     ipAddr
	prefix netip.Prefix

	neighbors  map[ipAddr]*neighbor
	held       int // frames in all neighbors
	announces  int // still to make
	announceAt time.Duration
	out        [][]byte
	stats      arpStats
}

type arpStats struct {
	requests, replies, announces uint64 // sent
	malformed                    uint64 // packets refused
	conflicts                    uint64 // another host used our address
	failed                       uint64 // neighbors given up
	dropped                      uint64 // held frames given up, or refused for lack of room
}

type neighbor struct {
	mac   macAddr
	known bool // mac is right, as far as we know
	used  bool // looked up since it was last confirmed
	tries int  // requests sent in this round; 0 = none under way
	due   time.Duration
	held  [][]byte
}

func newARP(mac macAddr, prefix netip.Prefix) *arp {
	return &arp{mac: mac, ip: prefix.Addr().As4(), prefix: prefix.Masked(), neighbors: map[ipAddr]*neighbor{}}
}

// announce tells the network about our address, now and once more later.
func (a *arp) announce(now time.Duration) {
	a.announces, a.announceAt = arpAnnounces, now
	a.tick(now)
}

// lookup returns the MAC address of ip, if it is known.
func (a *arp) lookup(ip ipAddr) (macAddr, bool) {
	n := a.neighbors[ip]
	if n == nil || !n.known {
		return macAddr{}, false
	}
	n.used = true
	return n.mac, true
}

// hold keeps a copy of frame, whose destination MAC is to be filled in, until
// ip, which lookup did not know, is resolved, and asks for ip. If too many
// wait, the oldest for ip is dropped.
func (a *arp) hold(ip ipAddr, frame []byte, now time.Duration) {
	n := a.neighbors[ip]
	if n == nil {
		if !a.makeRoom() {
			a.stats.dropped++
			return
		}
		n = &neighbor{}
		a.neighbors[ip] = n
	}
	if n.tries == 0 {
		a.ask(ip, n, now)
	}
	if len(n.held) == arpHeldEach || a.held == arpHeldAll {
		a.stats.dropped++
		if len(n.held) == 0 {
			return
		}
		n.held = slices.Delete(n.held, 0, 1)
		a.held--
	}
	n.held = append(n.held, bytes.Clone(frame))
	a.held++
}

// ask sends one more request for n.
func (a *arp) ask(ip ipAddr, n *neighbor, now time.Duration) {
	dst := broadcast
	if n.known {
		dst = n.mac
	}
	n.tries++
	n.due = now + arpInterval
	a.stats.requests++
	a.emit(dst, arpRequest, macAddr{}, ip)
}

// makeRoom makes room for one more neighbor and reports whether it could. It
// forgets the one that is least likely to be missed, never one that is being
// asked for.
func (a *arp) makeRoom() bool {
	if len(a.neighbors) < arpCache {
		return true
	}
	var victim ipAddr
	var v *neighbor
	for ip, n := range a.neighbors {
		if n.tries != 0 {
			continue
		}
		if v == nil || lessMissed(n, v) || !lessMissed(v, n) && bytes.Compare(ip[:], victim[:]) < 0 {
			victim, v = ip, n
		}
	}
	delete(a.neighbors, victim)
	return v != nil
}

func lessMissed(n, m *neighbor) bool {
	if n.used != m.used {
		return m.used
	}
	return n.due < m.due
}

// input takes an ARP packet, the payload of an Ethernet frame.
func (a *arp) input(p []byte, now time.Duration) {
	if len(p) < arpLen || [6]byte(p) != [6]byte{0, 1, 8, 0, 6, 4} {
		a.stats.malformed++ // not Ethernet and IPv4
		return
	}
	op := binary.BigEndian.Uint16(p[6:])
	sha, spa, tpa := macAddr(p[8:]), ipAddr(p[14:]), ipAddr(p[24:])
	switch {
	case op != arpRequest && op != arpReply, sha[0]&1 != 0, sha == macAddr{}:
		a.stats.malformed++
		return
	case spa == a.ip:
		if sha != a.mac {
			a.stats.conflicts++
		}
		return
	case spa == ipAddr{}: // a probe: a host without an address asks whether this one is free
	case !isHost(a.prefix, spa):
		a.stats.malformed++
		return
	default:
		a.merge(spa, sha, tpa == a.ip, now)
	}
	if op == arpRequest && tpa == a.ip {
		a.stats.replies++
		a.emit(sha, arpReply, sha, spa)
	}
}

// merge learns that ip is at mac. As in RFC 826, an existing entry is updated,
// but a new one is added only for a host that talks to us (forUs).
func (a *arp) merge(ip ipAddr, mac macAddr, forUs bool, now time.Duration) {
	n := a.neighbors[ip]
	if n == nil {
		if !forUs || !a.makeRoom() {
			return
		}
		n = &neighbor{}
		a.neighbors[ip] = n
	}
	n.mac, n.known, n.used, n.tries, n.due = mac, true, len(n.held) > 0, 0, now+arpFresh
	for _, f := range n.held {
		copy(f, mac[:])
		a.out = append(a.out, f)
	}
	a.held -= len(n.held)
	n.held = nil
}

// tick does what is due.
func (a *arp) tick(now time.Duration) {
	for a.announces > 0 && now >= a.announceAt {
		a.announces--
		a.announceAt += arpAnnounceI
		a.stats.announces++
		a.emit(broadcast, arpRequest, macAddr{}, a.ip)
	}
	var due []ipAddr
	for ip, n := range a.neighbors {
		if now >= n.due {
			due = append(due, ip)
		}
	}
	slices.SortFunc(due, func(x, y ipAddr) int { return bytes.Compare(x[:], y[:]) })
	for _, ip := range due {
		n := a.neighbors[ip]
		switch {
		case n.tries == 0 && !n.used:
			delete(a.neighbors, ip)
		case n.tries < arpTries:
			a.ask(ip, n, now)
		default:
			a.stats.failed++
			a.stats.dropped += uint64(len(n.held))
			a.held -= len(n.held)
			delete(a.neighbors, ip)
		}
	}
}

// deadline returns when tick has something to do next, or never.
func (a *arp) deadline() time.Duration {
	d := never
	if a.announces > 0 {
		d = a.announceAt
	}
	for _, n := range a.neighbors {
		d = min(d, n.due)
	}
	return d
}

// take returns the frames to send, in order.
func (a *arp) take() [][]byte {
	out := a.out
	a.out = nil
	return out
}

func (a *arp) emit(dst macAddr, op uint16, tha macAddr, tpa ipAddr) {
	eth := rocev2.Ethernet{Dst: dst, Src: a.mac, EtherType: rocev2.EtherTypeARP}
	f := eth.AppendTo(make([]byte, 0, rocev2.EthernetLen+arpLen))
	f = append(f, 0, 1, 8, 0, 6, 4, byte(op>>8), byte(op))
	f = append(f, a.mac[:]...)
	f = append(f, a.ip[:]...)
	f = append(f, tha[:]...)
	a.out = append(a.out, append(f, tpa[:]...))
}

// isHost reports whether ip can be the address of one host in prefix: it is
// inside, and neither its network nor its broadcast address. Networks of two
// addresses have neither (RFC 3021).
func isHost(prefix netip.Prefix, ip ipAddr) bool {
	if !prefix.Contains(netip.AddrFrom4(ip)) || ip[0] == 0 || ip[0] == 127 || ip[0] >= 224 {
		return false
	}
	host := uint32(1)<<(32-prefix.Bits()) - 1
	low := binary.BigEndian.Uint32(ip[:]) & host
	return prefix.Bits() >= 31 || low != 0 && low != host
}
