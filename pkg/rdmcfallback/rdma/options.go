package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Errors, besides those of package tcp and of the device.
var (
	// ErrOptions: the options of Connect are invalid.
	ErrOptions = errors.New("rdma: impossible options")
	// ErrVersion: a member uses another version of the protocol, or another protocol: all members
	// need a transport of this package.
	ErrVersion = errors.New("rdma: another protocol, or version of it")
	// ErrProtocol: a peer violated the protocol.
	ErrProtocol = fmt.Errorf("rdma: the peer violates the protocol: %w", rdmcfallback.ErrProtocol)
	// ErrQueuePair: a queue pair failed. The completion's status is wrapped, too.
	ErrQueuePair = errors.New("rdma: queue pair failed")
	// ErrNotReady: Send without readiness of the peer, or PutSmall without a free slot.
	ErrNotReady = errors.New("rdma: the peer is not ready for this")
	// ErrClosed: this transport has been closed.
	ErrClosed = errors.New("rdma: closed")
)

// MaxPosted is the maximum number of buffers posted for the blocks of one peer, and so of blocks in
// flight to one peer.
const MaxPosted = 8

// Options configure a transport and its device.
type Options struct {
	// Options are those of the control connections. The maximum length of Hello is MaxHello bytes.
	tcp.Options
	// Device carries the blocks. The caller still owns it, closes it after the transport, and may
	// use it for other purposes, including its events.
	Device qp.Device
	// PathMTU limits the packets' payload in bytes; 0 means the maximum that the devices of both
	// peers support.
	PathMTU int
}

// MaxHello is the maximum length of Options.Hello, in bytes.
const MaxHello = tcp.MaxHello - helloBytes

func (o *Options) check() error {
	if o.Device == nil {
		return fmt.Errorf("%w: no device", ErrOptions)
	}
	a := o.Device.Attr()
	switch {
	case !a.Addr.Is4():
		return fmt.Errorf("%w: the device %s has no IPv4 address but %v", ErrOptions, o.Device.Name(), a.Addr)
	case o.PathMTU != 0 && !qp.ValidMTU(o.PathMTU):
		return fmt.Errorf("%w: a path MTU of %d, must be 256, 512, 1024, 2048 or 4096", ErrOptions, o.PathMTU)
	case len(o.Hello) > MaxHello:
		return fmt.Errorf("%w: a hello of %d bytes, at most %d", ErrOptions, len(o.Hello), MaxHello)
	}
	return nil
}

const (
	magic      = "RDMC/QP\x00"
	version    = 2
	helloBytes = len(magic) + 2 + 2 + 4
)

// A hello is the first message of every member to every other.
type hello struct {
	mtu  int
	addr netip.Addr
	user []byte
}

func (h *hello) encode() []byte {
	b := append(make([]byte, 0, helloBytes+len(h.user)), magic...)
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint16(b, uint16(h.mtu))
	a := h.addr.As4()
	b = append(b, a[:]...)
	return append(b, h.user...)
}

// parseHello parses an encoded hello. Errors wrap ErrVersion or ErrProtocol.
func parseHello(b []byte) (h hello, err error) {
	if len(b) < helloBytes || string(b[:len(magic)]) != magic {
		return h, fmt.Errorf("%w: its hello begins with %q", ErrVersion, b[:min(len(b), len(magic))])
	}
	rest := b[len(magic):]
	if v := binary.BigEndian.Uint16(rest); v != version {
		return h, fmt.Errorf("%w: it speaks version %d, this is %d", ErrVersion, v, version)
	}
	h.mtu, h.addr, h.user = int(binary.BigEndian.Uint16(rest[2:])), netip.AddrFrom4([4]byte(rest[4:8])), rest[8:]
	switch {
	case !qp.ValidMTU(h.mtu):
		return h, fmt.Errorf("%w: its path MTU is %d", ErrProtocol, h.mtu)
	case h.addr.IsUnspecified(), h.addr.IsMulticast():
		return h, fmt.Errorf("%w: its device's address is %v", ErrProtocol, h.addr)
	}
	return h, nil
}

// Kinds of messages on a control connection.
const (
	kindTold   = iota // a message of Tell, or the end of one
	kindPart          // the beginning of one
	kindOffer         // of a queue pair for blocks to its sender
	kindAnswer        // to an offer
	kindRing          // the root: an offer of a queue pair for small messages
	kindSlots         // the answer to that
)

const (
	// partBytes is the number of bytes that fit after the kind.
	partBytes    = rdmcfallback.MaxTell - 1
	addressBytes = 1 + 4 + 4
)

// An address is what one end of a queue pair must know of the other, in addition to the hello.
type address struct {
	QPN rocev2.QPN
	PSN rocev2.PSN
}

// encode returns the bytes of an offer or an answer, including its kind.
func (a *address) encode(kind uint8) []byte {
	b, _ := binary.Append([]byte{kind}, binary.BigEndian, a) // never fails
	return b
}

// parseAddress parses an offer or an answer, including its kind.
func parseAddress(b []byte) (a address, err error) {
	if len(b) != addressBytes {
		return a, fmt.Errorf("%w: a queue pair's address has %d bytes", ErrProtocol, len(b))
	}
	_, _ = binary.Decode(b[1:], binary.BigEndian, &a) // long enough
	if a.QPN < 2 || a.QPN > rocev2.Mask24 || a.PSN > rocev2.Mask24 {
		return a, fmt.Errorf("%w: a queue pair with number %#x and PSN %#x", ErrProtocol, uint32(a.QPN), uint32(a.PSN))
	}
	return a, nil
}
