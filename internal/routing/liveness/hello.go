package liveness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// HelloLen is the length of an encoded hello in bytes.
const HelloLen = 24

const version = 1

// Errors of [Parse], all from RFC 5880 §6.8.6: the packet must be dropped.
var (
	ErrShort   = errors.New("liveness: hello is cut short")
	ErrVersion = errors.New("liveness: hello is of another version than 1")
	ErrField   = errors.New("liveness: hello has a field with a value that is not allowed")
	ErrUnknown = errors.New("liveness: hello asks for something not supported")
)

// State is a session's state (RFC 5880 §4.1, "Sta").
type State uint8

// The states. A session is alive only in Up.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

// String returns the state's name.
func (s State) String() string {
	return [...]string{"AdminDown", "Down", "Init", "Up"}[s&3]
}

// Diag is the reason why a session last left the Up state (RFC 5880 §4.1, "Diag").
type Diag uint8

// The reasons that this package sets. A neighbor may send others.
const (
	DiagNone        Diag = 0
	DiagExpired     Diag = 1 // detection time expired
	DiagPeerDown    Diag = 3 // the neighbor reported its session down
	DiagForwarding  Diag = 4
	DiagAdminDown   Diag = 7
	maxDiagnostic   Diag = 31
	microsecondsMax      = 1<<32 - 1
)

// String describes the reason.
func (d Diag) String() string {
	switch d {
	case DiagNone:
		return "none"
	case DiagExpired:
		return "detection time expired"
	case DiagPeerDown:
		return "neighbor signaled down"
	case DiagForwarding:
		return "forwarding plane reset"
	case DiagAdminDown:
		return "administratively down"
	}
	return fmt.Sprintf("reason %d", uint8(d))
}

// A Hello is one control packet (RFC 5880 §4.1), without authentication. Times are in whole
// microseconds, at most 2³²−1.
type Hello struct {
	Diag          Diag
	State         State
	Poll, Final   bool
	DetectMult    uint8
	My, Your      uint32        // discriminators; Your is 0 while unknown
	DesiredMinTx  time.Duration // the shortest interval at which the sender wants to send
	RequiredMinRx time.Duration // the shortest interval at which the sender can receive; 0: send no hellos
}

// Append appends the encoded hello to b.
func (h Hello) Append(b []byte) []byte {
	flags := byte(h.State&3) << 6
	if h.Poll {
		flags |= 1 << 5
	}
	if h.Final {
		flags |= 1 << 4
	}
	b = append(b, version<<5|byte(h.Diag&maxDiagnostic), flags, h.DetectMult, HelloLen)
	b = binary.BigEndian.AppendUint32(b, h.My)
	b = binary.BigEndian.AppendUint32(b, h.Your)
	b = binary.BigEndian.AppendUint32(b, microseconds(h.DesiredMinTx))
	b = binary.BigEndian.AppendUint32(b, microseconds(h.RequiredMinRx))
	return binary.BigEndian.AppendUint32(b, 0) // no echo
}

func microseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 0), microsecondsMax))
}

// Parse parses the hello at the start of b, and ignores padding after it. It makes the checks of
// RFC 5880 §6.8.6 that need no session.
func Parse(b []byte) (Hello, error) {
	if len(b) < HelloLen {
		return Hello{}, fmt.Errorf("%w: %d bytes of %d", ErrShort, len(b), HelloLen)
	}
	if v := b[0] >> 5; v != version {
		return Hello{}, fmt.Errorf("%w: %d", ErrVersion, v)
	}
	if l := int(b[3]); l < HelloLen || l > len(b) {
		return Hello{}, fmt.Errorf("%w: length %d in a packet of %d bytes", ErrField, l, len(b))
	}
	if b[1]&(1<<2) != 0 {
		return Hello{}, fmt.Errorf("%w: authentication", ErrUnknown)
	}
	if b[1]&1 != 0 {
		return Hello{}, fmt.Errorf("%w: multipoint", ErrUnknown)
	}
	h := Hello{
		Diag:          Diag(b[0]) & maxDiagnostic,
		State:         State(b[1] >> 6),
		Poll:          b[1]&(1<<5) != 0,
		Final:         b[1]&(1<<4) != 0,
		DetectMult:    b[2],
		My:            binary.BigEndian.Uint32(b[4:]),
		Your:          binary.BigEndian.Uint32(b[8:]),
		DesiredMinTx:  time.Duration(binary.BigEndian.Uint32(b[12:])) * time.Microsecond,
		RequiredMinRx: time.Duration(binary.BigEndian.Uint32(b[16:])) * time.Microsecond,
	}
	return h, h.valid()
}

func (h Hello) valid() error {
	switch {
	case h.DetectMult == 0:
		return fmt.Errorf("%w: detect multiplier 0", ErrField)
	case h.My == 0:
		return fmt.Errorf("%w: sender's discriminator 0", ErrField)
	case h.Your == 0 && h.State != Down && h.State != AdminDown:
		return fmt.Errorf("%w: state %v without the receiver's discriminator", ErrField, h.State)
	case h.Poll && h.Final:
		return fmt.Errorf("%w: poll and final in one packet", ErrField)
	}
	return nil
}
