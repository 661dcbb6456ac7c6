package udplink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	rxBuffer = 1 << 16 // holds any IP packet
	// yieldEvery is the number of futile polls after which other goroutines
	// get a turn: some microseconds.
	yieldEvery = 64
	// minUDP is the shortest UDP payload of a RoCEv2 packet.
	minUDP = rocev2.BTHLen + rocev2.ICRCLen
	// ourIDs is one past the largest IP identification that package udplink
	// sends.
	ourIDs = maxSegments
)

// A receiver reads messages from a socket and cuts them into packets.
type receiver struct {
	link *Link
	sock *socket

	msgs    []mmsghdr
	iovs    []unix.Iovec
	names   []unix.RawSockaddrInet4
	control []rxControl
	bufs    [][]byte

	take  int // messages to ask for
	flags uintptr
	n     int // messages received
	next  int // first of them that is not begun
	errno unix.Errno
	read  func(fd uintptr) bool // r.try, bound once
	spin  spinner

	cut      cutter
	sizeHint int    // of the payload of what the message split last began with
	idHint   uint16 // identification expected next, mode RXUDP
}

func (r *receiver) init(l *Link, s *socket) {
	n := l.opt.Batch
	*r = receiver{
		link: l, sock: s,
		msgs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n), names: make([]unix.RawSockaddrInet4, n),
		control: make([]rxControl, n), bufs: make([][]byte, n), sizeHint: 4096, spin: spinner{limit: l.opt.Poll, opened: time.Now()},
	}
	r.read = r.try
	for i := range r.msgs {
		r.bufs[i] = make([]byte, rxBuffer)
		r.iovs[i] = unix.Iovec{Base: &r.bufs[i][0], Len: rxBuffer}
		r.msgs[i].hdr.Iov, r.msgs[i].hdr.Iovlen = &r.iovs[i], 1
	}
}

// Recv waits for packets; see link.Link.
func (l *Link) Recv(batch []link.Rx) (int, error) {
	r := &l.rx
	for n := 0; ; {
		for n < len(batch) && r.packet(&batch[n]) {
			n++
		}
		if n > 0 || len(batch) == 0 {
			return n, nil
		}
		if err := r.wait(); err != nil {
			return 0, err
		}
	}
}

// wait reads the next messages. All packets of the last ones must have been
// consumed: their buffers are used again.
//
// It polls for a short while before it blocks, as long as that pays: see spinner.
// Blocking occupies a thread, but a socket that the
// runtime's poller knows costs a wake-up of some thread for every packet, also
// while the receiver is busy.
func (r *receiver) wait() error {
	r.prepare()
	err := r.receive(unix.MSG_DONTWAIT)
	if err == nil && r.errno == unix.EAGAIN {
		r.spin.start(time.Now())
		for tries := 1; err == nil && r.errno == unix.EAGAIN; tries++ {
			asked := r.spin.asked()
			if !r.spin.polls(asked) {
				break
			}
			// Now and then, let the goroutines run that the last packets woke.
			if asked || tries%yieldEvery == 0 {
				runtime.Gosched()
				r.spin.yielded(time.Now())
			}
			if asked {
				_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			}
			r.link.counters.rxPolls.Add(1)
			err = r.receive(unix.MSG_DONTWAIT)
			r.spin.polled(time.Now(), asked)
		}
		if err == nil && r.errno == unix.EAGAIN {
			r.link.counters.rxBlocks.Add(1)
			err = r.receive(unix.MSG_WAITFORONE)
		}
		r.spin.end(time.Now())
	}
	switch {
	case err != nil:
		return r.link.closedErr(err)
	case r.link.closing.Load():
		return net.ErrClosed
	// What the network reported for some packet sent earlier is cleared by
	// reading it; anything else is a broken socket.
	case r.errno != 0 && classify(r.errno) == txOther:
		return fmt.Errorf("udplink: %v: %w", r.link.addr, os.NewSyscallError("recvmmsg", r.errno))
	}
	r.link.counters.rxSyscalls.Add(1)
	r.link.counters.rxMessages.Add(uint64(r.n))
	return nil
}

// prepare sets up the message headers of the next call, and how many. Large
// messages are taken a few at a time, while they are in the cache and so that
// the sender hears of the first before the last has been worked through.
func (r *receiver) prepare() {
	const few, large = 8, 8 << 10
	bytes := 0
	for i := range r.n {
		bytes += int(r.msgs[i].len)
	}
	r.take = len(r.msgs)
	if bytes > r.n*large {
		r.take = min(few, r.take)
	}
	if r.link.raw == nil {
		for i := range r.take {
			h := &r.msgs[i].hdr
			h.Name, h.Namelen = (*byte)(unsafe.Pointer(&r.names[i])), unix.SizeofSockaddrInet4
			h.Control, h.Controllen = (*byte)(unsafe.Pointer(&r.control[i])), uint64(unsafe.Sizeof(r.control[i]))
		}
	}
	r.n, r.next = 0, 0
}

func (r *receiver) receive(flags uintptr) error {
	r.flags = flags
	return r.sock.conn.Read(r.read)
}

// try makes one system call; it is what conn.Read runs.
func (r *receiver) try(fd uintptr) bool {
	r.n, r.errno = mmsg(unix.SYS_RECVMMSG, fd, r.msgs[:r.take], r.flags)
	if r.errno != 0 || r.link.closing.Load() {
		r.n = 0
	}
	return true
}

// packet puts the next packet with a right ICRC into rx; false means that all
// messages are consumed.
func (r *receiver) packet(rx *link.Rx) bool {
	for {
		if len(r.cut.rest) > 0 {
			if r.cut.packet(r, rx) {
				return true
			}
			continue
		}
		if r.next == r.n {
			return false
		}
		i := r.next
		r.next++
		if r.link.raw != nil {
			r.beginRaw(r.bufs[i][:r.msgs[i].len])
		} else {
			r.beginUDP(i)
		}
	}
}

func (r *receiver) drop(reason rxDrop) { r.link.counters.rxDrop[reason].Add(1) }

// beginRaw makes r.cut ready for an IP packet as the raw socket gave it.
func (r *receiver) beginRaw(b []byte) {
	var ip rocev2.IPv4
	var udp rocev2.UDP
	payload, err := rocev2.ParseIPv4UDP(b, &ip, &udp)
	switch {
	case errors.Is(err, rocev2.ErrFragment):
		r.drop(dropFragment)
		return
	case err != nil:
		r.drop(dropFormat)
		return
	case len(payload) < minUDP:
		r.drop(dropTruncated)
		return
	}
	c := cutter{
		rest: payload, src: netip.AddrFrom4(ip.Src), tos: ip.TOS,
		base: ip.ID, first: ip.ID, step: 1, known: true, ihl: ip.Len(),
	}
	copy(c.head[:rocev2.IPv4Len], b)
	copy(c.head[rocev2.IPv4Len:], b[c.ihl:c.ihl+rocev2.UDPLen])
	if c.ihl != rocev2.IPv4Len {
		// Options are covered by the ICRC. No sender uses them with RoCEv2, let
		// alone through GSO: check the packet as it stands.
		if !rocev2.VerifyICRC(b[:ip.TotalLen]) {
			r.drop(dropICRC)
			return
		}
		c.verified = true
	}
	c.seg = r.segment(&c)
	if c.seg == 0 {
		r.drop(dropICRC)
		return
	}
	if c.seg < len(payload) {
		r.link.counters.rxSplit.Add(1)
	}
	r.cut = c
}

// maxSingle is the longest UDP payload of a single packet: every extended
// header that a request can have, 4096 bytes, ICRC.
const maxSingle = rocev2.BTHLen + rocev2.RETHLen + rocev2.ImmDtLen + 4096 + rocev2.ICRCLen

// segment finds out how long the first packet in c.rest is, and whether its
// ICRC is right; 0 if none is. A packet that arrived by itself is all of c.rest.
// A GSO message that never met a network card arrives whole, and the kernel puts together
// what comes in one go and is equally long, short packets as well: answers, for example.
func (r *receiver) segment(c *cutter) int {
	total := len(c.rest)
	if c.verified || total <= maxSingle && c.check(c.rest, c.base) {
		c.verified = true
		return total
	}
	h := rocev2.Opcode(c.rest[0]).HeaderLen()
	if h == 0 {
		return 0
	}
	try := func(n int) bool {
		c.verified = n < total && c.check(c.rest[:n], c.base)
		return c.verified
	}
	if n := h + r.sizeHint + rocev2.ICRCLen; try(n) {
		return n
	}
	for n := h + rocev2.ICRCLen; n <= min(total-minUDP, maxSingle); n += 4 {
		if begins(c.rest[n:], c.rest) && try(n) {
			r.sizeHint = n - h - rocev2.ICRCLen
			return n
		}
	}
	return 0
}

// begins reports whether b may be the beginning of a packet behind another: each try of an ICRC takes time.
func begins(b, first []byte) bool {
	return rocev2.Opcode(b[0]).Known() && [2]byte(b[2:4]) == [2]byte(first[2:4])
}

// beginUDP makes r.cut ready for message i of the UDP socket, whose IP header
// is not seen: everything in it but the identification is known.
func (r *receiver) beginUDP(i int) {
	m, sa := &r.msgs[i], &r.names[i]
	payload := r.bufs[i][:m.len]
	if len(payload) < minUDP || m.hdr.Flags&unix.MSG_TRUNC != 0 {
		r.drop(dropTruncated)
		return
	}
	tos, seg := r.control[i].parse(int(m.hdr.Controllen))
	if seg <= 0 || seg > len(payload) {
		seg = len(payload)
	}
	c := cutter{rest: payload, src: netip.AddrFrom4(sa.Addr), tos: tos, seg: seg, ihl: rocev2.IPv4Len}
	ip := rocev2.IPv4{Flags: rocev2.DontFragment, Protocol: rocev2.ProtocolUDP, Src: sa.Addr, Dst: r.link.addr4}
	udp := rocev2.UDP{SrcPort: binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:]), DstPort: rocev2.UDPPort}
	udp.AppendTo(ip.AppendTo(c.head[:0]))
	if seg < len(payload) {
		r.link.counters.rxSplit.Add(1)
	}
	r.cut = c
}

// A cutter cuts one message into packets.
type cutter struct {
	rest []byte // UDP payload that is left
	seg  int    // length of each packet with its ICRC; the last may be shorter
	src  netip.Addr
	tos  uint8
	head [rocev2.IPv4Len + rocev2.UDPLen]byte
	ihl  int

	known      bool   // the identification is known: base, base+step, base+2·step, …
	verified   bool   // the ICRC of the packet at the start of rest is right
	base, step uint16 // step is 0 or 1; base is that of the packet at the start of rest, most likely
	first, n   uint16 // that of the first packet, and the number of packets before that at the start of rest
	turned     bool   // by a switch: it is most likely first ^ n
}

// packet takes the next packet from c.rest and reports whether it is good.
func (c *cutter) packet(r *receiver, rx *link.Rx) bool {
	b := c.rest[:min(c.seg, len(c.rest))]
	c.rest = c.rest[len(b):]
	ok := c.verified
	c.verified = false
	switch {
	case len(b) < minUDP:
		r.drop(dropTruncated)
		return false
	case !c.known:
		ok = c.solve(r, b)
	case !ok:
		ok = c.next(r, b)
	}
	c.base += c.step
	c.n++
	if !ok {
		r.drop(dropICRC)
		return false
	}
	*rx = link.Rx{Src: c.src, TOS: c.tos, Data: b[:len(b)-rocev2.ICRCLen]}
	return true
}

// next reports whether b is right behind another packet of the message, and with which
// identification: as a rule the next number, or the same. Switches that keep the ICRC of
// copies right turn the same bits round in all numbers of a flow, so that what this package sends as
// 0 to 63 comes in another order.
func (c *cutter) next(r *receiver, b []byte) bool {
	if len(b) < minUDP {
		return false
	}
	last := c.base - c.step
	if c.turned {
		c.base = c.first ^ c.n
	}
	got, want := binary.LittleEndian.Uint32(b[len(b)-rocev2.ICRCLen:]), c.icrc(b, c.base)
	if got == want {
		return true
	}
	r.link.counters.rxSolved.Add(1)
	diff, ok := rocev2.SolveIPID(got, want, c.behind(b))
	id := c.base ^ diff
	if !ok || id^last >= ourIDs {
		return false
	}
	c.turned = id == c.first^c.n && id != last
	if id == last {
		c.step = 0 // the sender numbers all alike
	}
	c.base = id
	return true
}

// check reports whether b ends in the right ICRC if its identification is id.
func (c *cutter) check(b []byte, id uint16) bool {
	return len(b) >= minUDP && c.icrc(b, id) == binary.LittleEndian.Uint32(b[len(b)-rocev2.ICRCLen:])
}

func (c *cutter) icrc(b []byte, id uint16) uint32 {
	udp := uint16(rocev2.UDPLen + len(b))
	binary.BigEndian.PutUint16(c.head[2:], rocev2.IPv4Len+udp)
	binary.BigEndian.PutUint16(c.head[4:], id)
	binary.BigEndian.PutUint16(c.head[24:], udp)
	return rocev2.StartICRC(&c.head).BTH(b[:rocev2.BTHLen]).Update(b[rocev2.BTHLen : len(b)-rocev2.ICRCLen]).Sum()
}

// solve reports whether b is right for an identification that this package
// sends.
func (c *cutter) solve(r *receiver, b []byte) bool {
	id := r.idHint
	got, want := binary.LittleEndian.Uint32(b[len(b)-rocev2.ICRCLen:]), c.icrc(b, id)
	if got != want {
		r.link.counters.rxSolved.Add(1)
		diff, ok := rocev2.SolveIPID(got, want, c.behind(b))
		if id ^= diff; !ok || id >= ourIDs {
			return false
		}
	}
	// Behind a packet with number 0 that came alone there most likely comes
	// another such.
	if r.idHint = 0; id > 0 || len(c.rest) > 0 {
		r.idHint = (id + 1) % ourIDs
	}
	return true
}

// behind returns how many bytes the ICRC of b covers after the identification.
func (c *cutter) behind(b []byte) int {
	return rocev2.IPv4Len + rocev2.UDPLen + len(b) - rocev2.ICRCLen - 6
}
