package framelink

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// DefaultMTU is the IPv4 MTU unless Config says otherwise: room for a path MTU
// of 4096.
const DefaultMTU = 4200

const (
	minMTU = 320   // a path MTU of 256 with the largest headers, see qp.MTUFor
	maxMTU = 65486 // with an Ethernet header it still fits into a UDP datagram's 65507 bytes
	ttl    = 64
	batch  = 64 // frames per call to the Conn
)

// Errors that New, Open and DialTunnel wrap, and the reasons inside the
// *link.TxError that Send returns.
var (
	ErrConfig  = errors.New("bad configuration")
	ErrNoRoute = errors.New("no route")
	ErrTooLong = errors.New("packet longer than the MTU")
	ErrPacket  = errors.New("malformed packet")
)

// A Config describes a host on a Conn.
type Config struct {
	// Prefix is the host's IPv4 address and the length of its network's prefix,
	// like 10.0.0.1/24. Lengths up to 31 are possible.
	Prefix netip.Prefix
	// Gateway is the neighbor that takes packets to addresses outside the
	// prefix. Without one such packets cannot be sent.
	Gateway netip.Addr
	// MAC is the host's own address. The zero value means DefaultMAC of the
	// IPv4 address.
	MAC [6]byte
	// MTU is the largest IPv4 packet to send, bytes. 0 means DefaultMTU.
	MTU int
}

// DefaultMAC returns the locally administered MAC address that stands for an
// IPv4 address: 02:00 and its four bytes.
func DefaultMAC(ip netip.Addr) [6]byte {
	b := ip.As4()
	return [6]byte{2, 0, b[0], b[1], b[2], b[3]}
}

// check fills in the defaults and reports what is wrong.
func (c *Config) check() error {
	p := c.Prefix
	switch {
	case !p.IsValid() || !p.Addr().Is4():
		return fmt.Errorf("%w: %v is not an IPv4 address with a prefix length (like 10.0.0.1/24)", ErrConfig, p)
	case p.Bits() < 1 || p.Bits() > 31:
		return fmt.Errorf("%w: prefix length /%d is not /1 to /31", ErrConfig, p.Bits())
	case !isHost(p, p.Addr().As4()):
		return fmt.Errorf("%w: %v cannot be a host's address in %v", ErrConfig, p.Addr(), p.Masked())
	}
	if g := c.Gateway; g.IsValid() && (!g.Is4() || g == p.Addr() || !isHost(p, g.As4())) {
		return fmt.Errorf("%w: gateway %v is not another host in %v", ErrConfig, g, p.Masked())
	}
	if c.MAC == (macAddr{}) {
		c.MAC = DefaultMAC(p.Addr())
	}
	if c.MAC[0]&1 != 0 {
		return fmt.Errorf("%w: MAC address %v is a multicast address", ErrConfig, net.HardwareAddr(c.MAC[:]))
	}
	c.MTU = cmp.Or(c.MTU, DefaultMTU)
	if c.MTU < minMTU || c.MTU > maxMTU {
		return fmt.Errorf("%w: MTU %d is not %d to %d", ErrConfig, c.MTU, minMTU, maxMTU)
	}
	return nil
}

// maxFrame returns the size of the largest frame to send.
func (c *Config) maxFrame() int { return rocev2.EthernetLen + c.MTU }

// A Host is a link.Link on a Conn: one IPv4 address with the layers below and
// beside RoCEv2.
//
// Packets to neighbors whose MAC address is not known wait until it is, up to a
// bound. A host does not reach itself: packets to its own address fail with
// ErrNoRoute. The host answers ARP as long as Recv is being called.
type Host struct {
	cfg    Config
	ip     ipAddr
	conn   Conn
	start  time.Time
	counts [numCounters]atomic.Uint64
	rx     [batch][]byte // Recv's

	// mu guards what follows and makes sending one thing: the frames that waited
	// for a neighbor go before those that come after its answer.
	mu      sync.Mutex
	arp     *arp
	timer   *time.Timer
	timerAt time.Duration
	closed  bool
	tx      [batch][]byte
	n       int // frames built in tx
}

// New starts a host on conn, which it owns from then on, save if it returns an
// error. It announces itself to the network at once.
func New(conn Conn, cfg Config) (*Host, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("framelink: %w", err)
	}
	h := &Host{cfg: cfg, ip: cfg.Prefix.Addr().As4(), conn: conn, start: time.Now(), timerAt: never}
	h.arp = newARP(cfg.MAC, cfg.Prefix)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(time.Hour, h.tick)
	h.arp.announce(h.now())
	if err := h.flushARP(); err != nil {
		h.timer.Stop()
		return nil, fmt.Errorf("framelink: announcing %v: %w", cfg.Prefix.Addr(), err)
	}
	return h, nil
}

// Addr implements link.Link.
func (h *Host) Addr() netip.Addr { return h.cfg.Prefix.Addr() }

// SeesIdentification implements link.Seeing.
func (h *Host) SeesIdentification() bool { return true }

// MTU implements link.Link.
func (h *Host) MTU() int { return h.cfg.MTU }

// Close implements link.Link. It closes the Conn.
func (h *Host) Close() error {
	err := h.conn.Close() // first: it ends a Send that holds the lock
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return net.ErrClosed
	}
	h.closed = true
	h.timer.Stop()
	return err
}

func (h *Host) now() time.Duration { return time.Since(h.start) }

// tick is the timer's. It takes the lock, so that after Close it does nothing.
func (h *Host) tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.timerAt = never
	h.arp.tick(h.now())
	// An error is the Conn's end, which Send and Recv report themselves.
	_ = h.flushARP()
}

// flushARP sends what the ARP machine has to send and sets the timer.
func (h *Host) flushARP() error {
	if d := h.arp.deadline(); d != h.timerAt {
		h.timerAt = d
		if d == never {
			h.timer.Stop()
		} else {
			h.timer.Reset(d - h.now())
		}
	}
	out := h.arp.take()
	if len(out) == 0 {
		return nil
	}
	h.counts[txFrames].Add(uint64(len(out)))
	return h.conn.Send(out)
}

// Route returns the neighbor that a host with this configuration reaches dst by. Errors wrap
// ErrNoRoute.
func (c *Config) Route(dst netip.Addr) (netip.Addr, error) {
	switch {
	case !dst.Is4():
		return netip.Addr{}, fmt.Errorf("%w: %v is not an IPv4 address", ErrNoRoute, dst)
	case dst.IsUnspecified() || dst.As4()[0] >= 224 || dst.IsLoopback():
		return netip.Addr{}, fmt.Errorf("%w: %v is not a unicast address of the network", ErrNoRoute, dst)
	case dst == c.Prefix.Addr():
		return netip.Addr{}, fmt.Errorf("%w: %v is this host itself", ErrNoRoute, dst)
	case isHost(c.Prefix, dst.As4()):
		return dst, nil
	case c.Prefix.Contains(dst):
		return netip.Addr{}, fmt.Errorf("%w: %v cannot be a host's address in %v", ErrNoRoute, dst, c.Prefix.Masked())
	case !c.Gateway.IsValid():
		return netip.Addr{}, fmt.Errorf("%w: %v is outside %v and there is no gateway (gw=…)", ErrNoRoute, dst, c.Prefix.Masked())
	}
	return c.Gateway, nil
}

// Send implements link.Link.
func (h *Host) Send(batch []link.Tx) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return net.ErrClosed
	}
	var bad error
	for i := range batch {
		err := h.queue(&batch[i])
		if err == nil && h.n == len(h.tx) {
			if err := h.flush(); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, ErrNoRoute) {
				h.counts[txDropNoRoute].Add(1)
			} else {
				h.counts[txDropBad].Add(1)
			}
			if bad == nil {
				bad = &link.TxError{Index: i, Err: err}
			}
		}
	}
	if err := h.flush(); err != nil {
		return err
	}
	return bad
}

// queue builds the frame for tx and leaves it in h.tx or with ARP.
func (h *Host) queue(tx *link.Tx) error {
	neighbor, err := h.cfg.Route(tx.Dst)
	if err != nil {
		return err
	}
	hop := neighbor.As4()
	frame, err := h.build(h.tx[h.n][:0], tx)
	h.tx[h.n] = frame
	if err != nil {
		return err
	}
	h.counts[txPackets].Add(1)
	if mac, ok := h.arp.lookup(hop); ok {
		copy(frame, mac[:])
		h.n++ // with the next flush
	} else {
		h.arp.hold(hop, frame, h.now())
	}
	return nil
}

// flush sends the frames built, and what ARP has to send.
func (h *Host) flush() error {
	n := h.n
	h.n = 0
	if n > 0 {
		h.counts[txFrames].Add(uint64(n))
		if err := h.conn.Send(h.tx[:n]); err != nil {
			return h.connError(err)
		}
	}
	if len(h.arp.out) > 0 {
		return h.connError(h.flushARP())
	}
	return nil
}

// connError makes an error of the Conn one of the link.
func (h *Host) connError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, net.ErrClosed):
		return net.ErrClosed
	}
	return fmt.Errorf("framelink: %v: %w", h.Addr(), err)
}

// build appends the frame for tx, its destination MAC left open, to b.
func (h *Host) build(b []byte, tx *link.Tx) ([]byte, error) {
	const headers = rocev2.IPv4Len + rocev2.UDPLen
	total := headers + tx.Len + rocev2.ICRCLen
	switch {
	case tx.Len < rocev2.BTHLen || tx.Len%4 != 0:
		return b, fmt.Errorf("%w: %d bytes of transport headers and payload, not a multiple of 4 from %d on",
			ErrPacket, tx.Len, rocev2.BTHLen)
	case total > h.cfg.MTU:
		return b, fmt.Errorf("%w: %d bytes, the MTU of %v is %d", ErrTooLong, total, h.Addr(), h.cfg.MTU)
	}
	eth := rocev2.Ethernet{Src: h.cfg.MAC, EtherType: rocev2.EtherTypeIPv4}
	ip := rocev2.IPv4{TOS: tx.TOS, TotalLen: uint16(total), Flags: rocev2.DontFragment, TTL: ttl,
		Protocol: rocev2.ProtocolUDP, Src: h.ip, Dst: tx.Dst.As4()}
	udp := rocev2.UDP{SrcPort: sourcePort(tx.Flow), DstPort: rocev2.UDPPort, Length: uint16(total - rocev2.IPv4Len)}
	b = udp.AppendTo(ip.AppendTo(eth.AppendTo(b)))
	at := len(b)
	crc := rocev2.StartICRC((*[headers]byte)(b[at-headers:]))
	for _, p := range tx.Parts {
		b = append(b, p...)
	}
	if len(b)-at != tx.Len {
		return b, fmt.Errorf("%w: the parts have %d bytes, Len says %d", ErrPacket, len(b)-at, tx.Len)
	}
	crc = crc.BTH(b[at : at+rocev2.BTHLen]).Update(b[at+rocev2.BTHLen:])
	sum := crc.Sum()
	return append(b, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)), nil
}

// sourcePort spreads flows over the ports 0xc000 to 0xffff, the range that
// RoCEv2 senders draw from.
func sourcePort(flow uint16) uint16 {
	return 0xc000 | uint16(uint32(flow)*0x9e3779b1>>18)
}
