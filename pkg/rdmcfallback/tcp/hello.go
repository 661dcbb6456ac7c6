package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// The greeting's fixed part stays the same in all versions.
const (
	magic       = "RDMC/TCP"
	version     = 2
	prefixBytes = len(magic) + 2 + 4
	maxGreeting = 512 << 10 // bytes after the fixed part
	maxReason   = 1024      // bytes of text that explain a rejection or an abort
)

// Greetings' kinds.
const (
	greetControl = 1 + iota
	greetBlocks
	greetReject
	greetRing
)

// A rejection's code says which error it becomes at the other end.
type rejection uint8

const (
	rejectMismatch rejection = 1 + iota
	rejectVersion
	rejectDuplicate
	rejectStale   // the dialer's epoch has passed
	rejectNotYet  // the dialer's epoch is still to come: it may try again
	rejectFailed  // the bootstrap has failed here; the text is an abort's message
	rejectStopped // this member's transport is closed
	rejectUnknown // the dialer isn't the process that was met before
)

var rejectErrors = map[rejection]error{
	rejectMismatch: ErrMismatch, rejectVersion: ErrVersion, rejectDuplicate: ErrDuplicate, rejectStale: ErrStale,
	rejectNotYet: errNotYet, rejectStopped: ErrClosed, rejectUnknown: ErrDuplicate,
}

// A greeting is what each side of a connection says first.
type greeting struct {
	kind         uint8
	code         rejection // of a rejection, with reason
	reason       string
	group, epoch uint64
	from, to     int
	run, toRun   uint64
	members      []string // control connections only
	hello        []byte   // the same
}

func (g *greeting) encode() []byte {
	b := append(make([]byte, 0, 128), magic...)
	b = binary.BigEndian.AppendUint16(b, version)
	b = append(b, 0, 0, 0, 0, g.kind)
	if g.kind == greetReject {
		b = append(b, byte(g.code))
		b = append(b, g.reason[:min(len(g.reason), maxReason)]...)
	} else {
		b = binary.BigEndian.AppendUint64(b, g.group)
		b = binary.BigEndian.AppendUint64(b, g.epoch)
		b = binary.BigEndian.AppendUint32(b, uint32(g.from))
		b = binary.BigEndian.AppendUint32(b, uint32(g.to))
		b = binary.BigEndian.AppendUint64(b, g.run)
		b = binary.BigEndian.AppendUint64(b, g.toRun)
	}
	if g.kind == greetControl {
		b = binary.BigEndian.AppendUint32(b, uint32(len(g.members)))
		for _, m := range g.members {
			b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
			b = append(b, m...)
		}
		b = binary.BigEndian.AppendUint16(b, uint16(len(g.hello)))
		b = append(b, g.hello...)
	}
	binary.BigEndian.PutUint32(b[prefixBytes-4:], uint32(len(b)-prefixBytes))
	return b
}

// readGreeting reads and parses a greeting. Errors of the connection come as they
// are; others wrap ErrProtocol or ErrVersion.
func readGreeting(r io.Reader) (*greeting, error) {
	var prefix [prefixBytes]byte
	n, err := io.ReadFull(r, prefix[:])
	if got := prefix[:min(n, len(magic))]; string(got) != magic[:len(got)] {
		return nil, fmt.Errorf("%w: not a member of any group: it began with %q", ErrProtocol, prefix[:n])
	}
	if err != nil {
		return nil, err
	}
	v, size := binary.BigEndian.Uint16(prefix[len(magic):]), binary.BigEndian.Uint32(prefix[len(magic)+2:])
	if v != version {
		return nil, fmt.Errorf("%w: it speaks version %d, this is %d", ErrVersion, v, version)
	}
	if size > maxGreeting {
		return nil, fmt.Errorf("%w: a greeting of %d bytes, more than %d", ErrProtocol, size, maxGreeting)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return parseGreeting(body)
}

var errShort = errors.New("it ends too early")

// A cursor takes numbers and strings from the front of b, and remembers whether
// there was too little.
type cursor struct {
	b     []byte
	short bool
}

func (c *cursor) take(n int) []byte {
	if n > len(c.b) {
		c.short, c.b = true, nil
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) uint(n int) (v uint64) {
	for _, x := range c.take(n) {
		v = v<<8 | uint64(x)
	}
	return v
}

// parseGreeting parses what follows the fixed part.
func parseGreeting(body []byte) (*greeting, error) {
	c := &cursor{b: body}
	g := &greeting{kind: uint8(c.uint(1))}
	if g.kind == greetReject {
		g.code = rejection(c.uint(1))
		g.reason = string(c.take(min(len(c.b), maxReason)))
	} else {
		g.group, g.epoch = c.uint(8), c.uint(8)
		g.from, g.to = int(c.uint(4)), int(c.uint(4))
		g.run, g.toRun = c.uint(8), c.uint(8)
	}
	switch g.kind {
	case greetControl:
		n := int(c.uint(4))
		if n > len(c.b)/2 {
			return nil, fmt.Errorf("%w: a greeting with %d members in %d bytes", ErrProtocol, n, len(body))
		}
		g.members = make([]string, n)
		for i := range g.members {
			g.members[i] = string(c.take(int(c.uint(2))))
		}
		g.hello = slices.Clone(c.take(int(c.uint(2))))
	case greetBlocks, greetReject, greetRing:
	default:
		return nil, fmt.Errorf("%w: a greeting of kind %d", ErrProtocol, g.kind)
	}
	if c.short {
		return nil, fmt.Errorf("%w: a greeting of %d bytes: %w", ErrProtocol, len(body), errShort)
	}
	if len(c.b) > 0 {
		return nil, fmt.Errorf("%w: a greeting with %d bytes too many", ErrProtocol, len(c.b))
	}
	return g, nil
}

// err returns a rejection as the dialer's error.
func (g *greeting) err() error {
	if g.code == rejectFailed && g.reason != "" {
		return parseAbort([]byte(g.reason))
	}
	sentinel, ok := rejectErrors[g.code]
	if !ok {
		sentinel = ErrProtocol
	}
	return fmt.Errorf("%w (it answered: %s)", sentinel, printable(g.reason))
}

// sameMembers explains the first difference of two lists, and is "" if they are
// equal.
func sameMembers(here, there []string) string {
	if len(here) != len(there) {
		return fmt.Sprintf("%d members here, %d there", len(here), len(there))
	}
	for i := range here {
		if here[i] != there[i] {
			return fmt.Sprintf("member %d is %q here, %q there", i, here[i], there[i])
		}
	}
	return ""
}
