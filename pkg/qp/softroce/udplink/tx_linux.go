package udplink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	maxSegments = 64    // of one GSO message; what every kernel with GSO takes
	maxPayload  = 65507 // of one UDP datagram or GSO message, bytes
	maxIovecs   = 1024  // of one message (UIO_MAXIOV)

	maxHeaders = rocev2.BTHLen + rocev2.RETHLen + rocev2.ImmDtLen

	firstPort = 0xc000 // source ports of RoCEv2 (IBTA 1.2.1 annex A17.9.1)
)

// A txSocket sends from one source port. What a system call needs is kept here
// so that sending allocates nothing.
type txSocket struct {
	link *Link
	sock *socket
	head [rocev2.IPv4Len + rocev2.UDPLen]byte // IPv4 and UDP header as the kernel will make them

	mu      sync.Mutex
	msgs    []mmsghdr
	meta    []txMessage
	iovs    []unix.Iovec
	names   [maxBatch]unix.RawSockaddrInet4
	control [maxBatch]txControl
	seams   []seam
	prefix  icrcPrefix

	sent  int // messages that the kernel took, set by try
	errno unix.Errno
	full  bool                  // the socket's buffer is
	write func(fd uintptr) bool // s.tryOnce, bound once
	retry func(fd uintptr) bool // s.try, bound once

	// waiter is a second descriptor of the socket, registered with the
	// runtime's poller when the buffer was full for the first time.
	waiter atomic.Pointer[socket]
}

// A seam is the few bytes between two payloads of a message: the ICRC of one
// packet and the headers of the next. The kernel copies each piece of a message
// by itself, and is spared one for each packet this way.
type seam struct {
	n     int
	bytes [rocev2.ICRCLen + maxHeaders]byte
}

// An icrcPrefix remembers the state of the ICRC after IPv4 and UDP header for
// packets to one destination of one length, by identification. Those of a GSO
// message differ in nothing else.
type icrcPrefix struct {
	dst    [4]byte
	len    int
	states [maxSegments]rocev2.ICRCState
	n      int // states that are there
}

// A txMessage says what of the batch a message carries.
type txMessage struct {
	packets, iovs int
}

// Send hands packets to the kernel in order; see link.Link. Packets that the
// kernel refuses are counted by reason and lost. The only error is
// net.ErrClosed.
func (l *Link) Send(batch []link.Tx) error {
	for len(batch) > 0 {
		slot := batch[0].Flow % txSockets
		n := 1
		for n < len(batch) && batch[n].Flow%txSockets == slot {
			n++
		}
		if err := l.tx[slot].send(batch[:n]); err != nil {
			return err
		}
		batch = batch[n:]
	}
	return nil
}

// openTx opens the sending socket of a slot. Each slot has its own 1/16 of the
// source ports and takes a free one there.
func (l *Link) openTx(slot int) (*txSocket, error) {
	const span = (1<<16 - firstPort) / txSockets
	start := rand.IntN(span)
	var err error
	for i := range span {
		port := firstPort + slot*span + (start+i)%span
		var sock *socket
		if sock, err = openUDP(l.addr4, port); errors.Is(err, unix.EADDRINUSE) {
			continue
		} else if err != nil {
			return nil, err
		}
		if err = sock.filter(dropAll); err != nil {
			sock.close()
			return nil, err
		}
		sock.setBuffer(unix.SO_SNDBUF, l.opt.SndBuf)
		return newTxSocket(l, sock, port), nil
	}
	return nil, fmt.Errorf("%w: no source port is free between %d and %d: %w", qp.ErrAddrInUse,
		firstPort+slot*span, firstPort+(slot+1)*span-1, err)
}

func newTxSocket(l *Link, sock *socket, port int) *txSocket {
	s := &txSocket{link: l, sock: sock}
	s.write, s.retry = s.tryOnce, s.try
	ip := rocev2.IPv4{Flags: rocev2.DontFragment, Protocol: rocev2.ProtocolUDP, Src: l.addr4}
	udp := rocev2.UDP{SrcPort: uint16(port), DstPort: rocev2.UDPPort}
	udp.AppendTo(ip.AppendTo(s.head[:0]))
	for i := range s.control {
		s.control[i].init()
		s.names[i].Family = unix.AF_INET
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&s.names[i].Port))[:], rocev2.UDPPort)
	}
	return s
}

// send sends packets of one slot.
func (s *txSocket) send(batch []link.Tx) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seams == nil {
		s.seams = make([]seam, 0, maxBatch*maxSegments)
	}
	for len(batch) > 0 {
		s.build(batch, !s.link.gsoOff.Load())
		n, err := s.flush()
		if err != nil {
			return err
		}
		batch = batch[n:]
		if s.errno == 0 {
			continue
		}
		// The error belongs to the first message that did not go.
		m := s.meta[s.sent].packets
		if m > 1 && (s.errno == unix.EINVAL || s.errno == unix.EIO || s.errno == unix.EMSGSIZE) {
			if err := s.sendSingly(batch[:m]); err != nil {
				return err
			}
		} else {
			s.link.counters.txErr[classify(s.errno)].Add(uint64(m))
		}
		batch = batch[m:]
	}
	return nil
}

// sendSingly repeats without GSO what the kernel refused with it. If the reason
// was not the length of a packet, and it works now, GSO was at fault (a device
// without checksum offload, a tunnel, IPsec) and is not tried again.
func (s *txSocket) sendSingly(batch []link.Tx) error {
	tooBig := s.errno == unix.EMSGSIZE
	if !tooBig {
		s.link.counters.txGSORefused.Add(1)
	}
	for len(batch) > 0 {
		s.build(batch, false)
		n, err := s.flush()
		if err != nil {
			return err
		}
		if n > 0 && !tooBig {
			s.link.gsoOff.Store(true)
		}
		batch = batch[n:]
		if s.errno != 0 {
			s.link.counters.txErr[classify(s.errno)].Add(1)
			batch = batch[1:]
		}
	}
	return nil
}

// build prepares messages for as many packets of batch as one system call
// takes.
func (s *txSocket) build(batch []link.Tx, gso bool) {
	s.msgs, s.meta, s.iovs, s.seams = s.msgs[:0], s.meta[:0], s.iovs[:0], s.seams[:0]
	for len(batch) > 0 && len(s.msgs) < s.link.opt.Batch && len(s.seams)+maxSegments+1 <= cap(s.seams) {
		n := 1
		if gso {
			n = segments(batch)
		}
		s.add(batch[:n])
		batch = batch[n:]
	}
	// Only now do the slices stay where they are.
	at := 0
	for i := range s.msgs {
		s.msgs[i].hdr.Iov = &s.iovs[at]
		at += s.meta[i].iovs
	}
}

// segments returns how many packets at the start of batch can be one GSO
// message: equally long ones to one place, the last may be shorter. They must
// be full packets of a path MTU: a receiver in mode RXRaw that gets the message in one piece
// finds out soonest where one ends.
func segments(batch []link.Tx) int {
	first := &batch[0]
	if !qp.ValidMTU(first.Len - headerLen(first)) {
		return 1
	}
	seg := first.Len + rocev2.ICRCLen
	limit := min(len(batch), maxSegments, maxPayload/seg)
	iovs := len(first.Parts) + 2
	n := 1
	for ; n < limit; n++ {
		t := &batch[n]
		iovs += len(t.Parts) + 1
		if t.Len > first.Len || t.Dst != first.Dst || t.TOS != first.TOS || iovs > maxIovecs {
			break
		}
		if t.Len < first.Len {
			return n + 1
		}
	}
	return n
}

// headerLen returns the length of the transport headers of t, 0 if unknown.
func headerLen(t *link.Tx) int {
	if len(t.Parts) == 0 || len(t.Parts[0]) == 0 {
		return 0
	}
	return rocev2.Opcode(t.Parts[0][0]).HeaderLen()
}

// add appends one message that carries packets.
func (s *txSocket) add(packets []link.Tx) {
	i := len(s.msgs)
	first := &packets[0]
	dst := first.Dst.As4()
	before := len(s.iovs)
	glue := s.seam()
	for k := range packets {
		t := &packets[k]
		parts := t.Parts
		if len(parts) > 0 && len(parts[0]) <= maxHeaders {
			glue.n += copy(glue.bytes[glue.n:], parts[0])
			parts = parts[1:]
		}
		s.addIovec(glue.bytes[:glue.n])
		for _, p := range parts {
			s.addIovec(p)
		}
		glue = s.seam()
		glue.n = rocev2.ICRCLen
		binary.LittleEndian.PutUint32(glue.bytes[:], s.icrc(dst, t, uint16(k)))
	}
	s.addIovec(glue.bytes[:glue.n])
	s.names[i].Addr = dst
	c := &s.control[i]
	c.tos = int32(first.TOS)
	size := txControlTOS
	if len(packets) > 1 {
		c.seg = uint16(first.Len + rocev2.ICRCLen)
		size = txControlAll
		s.link.counters.txGSO.Add(1)
	}
	s.meta = append(s.meta, txMessage{len(packets), len(s.iovs) - before})
	s.msgs = append(s.msgs, mmsghdr{hdr: unix.Msghdr{
		Name: (*byte)(unsafe.Pointer(&s.names[i])), Namelen: unix.SizeofSockaddrInet4,
		Iovlen:  uint64(len(s.iovs) - before),
		Control: (*byte)(unsafe.Pointer(c)), Controllen: uint64(size),
	}})
}

func (s *txSocket) addIovec(b []byte) {
	s.iovs = append(s.iovs, unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))})
}

// seam takes the next seam. build has seen to it that there is one.
func (s *txSocket) seam() *seam {
	s.seams = append(s.seams, seam{})
	return &s.seams[len(s.seams)-1]
}

// icrc computes the ICRC of the packet that the kernel will make of t with
// identification id.
func (s *txSocket) icrc(dst [4]byte, t *link.Tx, id uint16) uint32 {
	p := &s.prefix
	if p.dst != dst || p.len != t.Len {
		p.dst, p.len, p.n = dst, t.Len, 0
	}
	for ; p.n <= int(id); p.n++ {
		udp := uint16(rocev2.UDPLen + t.Len + rocev2.ICRCLen)
		copy(s.head[16:20], dst[:])
		binary.BigEndian.PutUint16(s.head[2:], rocev2.IPv4Len+udp)
		binary.BigEndian.PutUint16(s.head[4:], uint16(p.n))
		binary.BigEndian.PutUint16(s.head[24:], udp)
		p.states[p.n] = rocev2.StartICRC(&s.head)
	}
	c := p.states[id]
	for i, part := range t.Parts {
		if i == 0 {
			n := min(maxHeaders, len(part))
			c, part = c.BTH(part[:n]), part[n:]
		}
		c = c.Update(part)
	}
	return c.Sum()
}

// flush sends what build prepared and returns how many packets went. If not
// all did, s.errno says why message s.sent did not.
func (s *txSocket) flush() (packets int, err error) {
	s.sent, s.errno = 0, 0
	if err = s.sock.conn.Write(s.write); err == nil && s.full {
		err = s.wait()
	}
	for _, m := range s.meta[:s.sent] {
		packets += m.packets
	}
	s.link.counters.txMessages.Add(uint64(s.sent))
	clear(s.iovs) // keep no application memory alive
	return packets, s.link.closedErr(err)
}

// try sends until everything is sent, the buffer is full, or a message fails. It reports false if
// the buffer is full.
func (s *txSocket) try(fd uintptr) bool {
	for s.full = false; s.sent < len(s.msgs) && s.errno == 0 && !s.full; {
		n, errno := mmsg(unix.SYS_SENDMMSG, fd, s.msgs[s.sent:], unix.MSG_DONTWAIT)
		s.link.counters.txSyscalls.Add(1)
		switch errno {
		case 0:
			s.sent += n
		case unix.EAGAIN:
			s.full = true
		default:
			s.errno = errno
		}
	}
	return !s.full
}

func (s *txSocket) tryOnce(fd uintptr) bool {
	s.try(fd)
	return true
}

// wait goes on sending whenever there is room in the socket's buffer. A socket
// that the poller knows costs a wake-up of a thread whenever the network has
// taken a packet; most sockets never fill their buffer and are spared that.
func (s *txSocket) wait() error {
	s.link.counters.txWaits.Add(1)
	w := s.waiter.Load()
	if w == nil {
		var err error
		if w, err = s.sock.polled(); err != nil {
			return err
		}
		s.waiter.Store(w)
		if s.link.closing.Load() {
			w.close()
		}
	}
	return w.conn.Write(s.retry)
}

func (s *txSocket) close() {
	s.sock.close()
	s.waiter.Load().close()
}
