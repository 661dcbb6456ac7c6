package links

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mcrdma/mcrdma/internal/routing/liveness"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A hello's frame, in network byte order:
//
//	 0  6  to 01:80:c2:00:00:0e, which no bridge forwards (IEEE 802.1Q table 8-1)
//	 6  6  MAC of the port by which it leaves
//	12  2  EtherHello
//	14  1  helloMark
//	15 24  liveness.Hello
//	39  2  number of the port by which it leaves
//	41  1  hold: for how many seconds the link is to count as up without hellos; 0 but in
//	       an agent's last hellos, see Manager.Close
//	42  1  length of the name, not 0
//	43  –  name of the switch in printable UTF-8
//	 –  1  numberMark, and in the next 4 bytes the hello's number; absent from those of agents of
//	       former releases, and from last hellos with a hold
//	then zeros up to 60 bytes

// EtherHello is the EtherType of hellos: IEEE 802 local experimental 1.
const EtherHello = 0x88b5

// MaxName is the length in bytes that a switch's name may have in a hello.
const MaxName = 255

const (
	etherLen   = 14
	liveAt     = etherLen + 1
	portAt     = liveAt + liveness.HelloLen
	holdAt     = portAt + 2
	nameLenAt  = holdAt + 1
	nameAt     = nameLenAt + 1
	minFrame   = 60   // of Ethernet, without FCS
	helloMark  = 0xa2 // ours, version 2; other users of the EtherType begin otherwise
	numberMark = 0xb7 // a number follows, and not what links add
	numberLen  = 1 + 4
	etherTypeA = 12 // offset of the EtherType
)

// helloGroup is LLDP's nearest-bridge address: it ends at the next bridge.
var helloGroup = switchspec.MAC{0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e}

// maxInterval is the longest between hellos. A neighbor that says more would not be missed
// for hours.
const maxInterval = time.Minute

// MaxHold is the longest that a link counts as up without hellos while the neighbor's
// agent restarts.
const MaxHold = 120 * time.Second

// ErrFrame is wrapped by errors about frames that are not what they should be.
var ErrFrame = errors.New("links: malformed frame")

// hello is a hello's content. name is part of the frame that was parsed.
type hello struct {
	src  switchspec.MAC
	live liveness.Hello
	port uint16
	hold time.Duration
	name []byte
	// number counts the sender's hellos at its port; 0: it does not number them.
	number uint32
}

// appendHello appends the frame. hold is in whole seconds, at most MaxHold, and name
// is at most MaxName bytes long; number 0 is left out.
func appendHello(b []byte, src switchspec.MAC, live liveness.Hello, port uint16, hold time.Duration, name string, number uint32) []byte {
	start := len(b)
	b = append(b, helloGroup[:]...)
	b = append(b, src[:]...)
	b = binary.BigEndian.AppendUint16(b, EtherHello)
	b = append(b, helloMark)
	b = live.Append(b)
	b = binary.BigEndian.AppendUint16(b, port)
	b = append(b, byte(hold/time.Second))
	b = append(b, byte(len(name))) //nolint:gosec // at most MaxName
	b = append(b, name...)
	if number > 0 {
		b = binary.BigEndian.AppendUint32(append(b, numberMark), number)
	}
	return pad(b, start)
}

// pad fills the frame that begins at start up to the least length.
func pad(b []byte, start int) []byte {
	for len(b)-start < minFrame {
		b = append(b, 0)
	}
	return b
}

// parseHello reads a hello's frame. What follows the name and the number is ignored, as some links
// add to what they carry.
func parseHello(frame []byte) (hello, error) {
	if len(frame) < nameAt {
		return hello{}, fmt.Errorf("%w: hello of %d bytes, want at least %d", ErrFrame, len(frame), nameAt)
	}
	if t := binary.BigEndian.Uint16(frame[etherTypeA:]); t != EtherHello {
		return hello{}, fmt.Errorf("%w: EtherType %#04x, want %#04x", ErrFrame, t, EtherHello)
	}
	if to := switchspec.MAC(frame[:6]); to != helloGroup {
		return hello{}, fmt.Errorf("%w: hello to %v, want %v", ErrFrame, to, helloGroup)
	}
	h := hello{src: switchspec.MAC(frame[6:12]), port: binary.BigEndian.Uint16(frame[portAt:])}
	if !h.src.IsStation() {
		return hello{}, fmt.Errorf("%w: hello from %v, which is not a station's address", ErrFrame, h.src)
	}
	if m := frame[etherLen]; m != helloMark {
		return hello{}, fmt.Errorf("%w: first byte %#02x, want %#02x: not a hello of this version", ErrFrame, m, helloMark)
	}
	live, err := liveness.Parse(frame[liveAt:portAt])
	if err != nil {
		return hello{}, fmt.Errorf("%w: %w", ErrFrame, err)
	}
	if live.DesiredMinTx > maxInterval || live.RequiredMinRx > maxInterval || live.RequiredMinRx == 0 {
		return hello{}, fmt.Errorf("%w: intervals %v and %v, want at most %v, and not none", ErrFrame, live.DesiredMinTx, live.RequiredMinRx, maxInterval)
	}
	h.live = live
	h.hold = time.Duration(frame[holdAt]) * time.Second
	if h.hold > MaxHold {
		return hello{}, fmt.Errorf("%w: hold of %v, want at most %v", ErrFrame, h.hold, MaxHold)
	}
	if h.hold != 0 && live.State != liveness.Up {
		return hello{}, fmt.Errorf("%w: hold of %v of a link that is %v", ErrFrame, h.hold, live.State)
	}
	n := int(frame[nameLenAt])
	if n == 0 || nameAt+n > len(frame) {
		return hello{}, fmt.Errorf("%w: name of %d bytes in a hello of %d", ErrFrame, n, len(frame))
	}
	h.name = frame[nameAt : nameAt+n]
	if !printable(h.name) {
		return hello{}, fmt.Errorf("%w: name %q is not printable UTF-8", ErrFrame, h.name)
	}
	if rest := frame[nameAt+n:]; len(rest) >= numberLen && rest[0] == numberMark {
		h.number = binary.BigEndian.Uint32(rest[1:])
	}
	return h, nil
}

// printable keeps what would upset terminals, logs and gRPC out of them.
func printable(name []byte) bool {
	for len(name) > 0 {
		r, n := utf8.DecodeRune(name)
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) {
			return false
		}
		name = name[n:]
	}
	return true
}
