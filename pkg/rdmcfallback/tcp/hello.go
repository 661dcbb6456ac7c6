package tcp

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The fixed part of a greeting is the same in all versions.
const (
	magic       = "RDMC/TCP"
	version     = 3
	prefixBytes = len(magic) + 2 + 4
	maxGreeting = 512 << 10 // bytes after the fixed part
	maxReason   = 1024      // maximum bytes of text that explain a rejection or an abort
)

// Greetings' kinds.
const (
	greetControl = 1 + iota
	greetBlocks
	greetReject
	greetRing
)

// A greeting is the first message of each side of a connection.
type greeting struct {
	Kind    uint8    `json:"kind"`
	Group   uint64   `json:"group,omitempty"`
	Epoch   uint64   `json:"epoch,omitempty"`
	From    int      `json:"from,omitempty"`
	To      int      `json:"to,omitempty"`
	Run     uint64   `json:"run,omitempty"`
	ToRun   uint64   `json:"to_run,omitempty"`
	Members []string `json:"members,omitempty"` // control connections only
	Hello   []byte   `json:"hello,omitempty"`   // the same
	Code    int      `json:"code,omitempty"`    // of a rejection: its cause for the other end
	Reason  string   `json:"reason,omitempty"`
	Abort   []byte   `json:"abort,omitempty"` // instead, if the bootstrap has failed there
}

// reject returns the greeting that rejects a caller because of err, from the caller's point of
// view: if its epoch is still in the future here, this member's is in the past there.
func reject(err error) *greeting {
	g := &greeting{Kind: greetReject, Reason: cutReason(err.Error())}
	switch {
	case errors.As(err, new(*failedError)):
		g.Abort, g.Reason = abortMessage(err), ""
	case errors.Is(err, errNotYet):
		g.Code = codeOf(ErrStale)
	case errors.Is(err, ErrStale):
		g.Code = codeOf(errNotYet)
	default:
		g.Code = codeOf(err)
	}
	return g
}

func (g *greeting) encode() []byte {
	body, _ := json.Marshal(g) // never fails
	b := append(make([]byte, 0, prefixBytes+len(body)), magic...)
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

// readGreeting reads and parses a greeting. Errors of the connection are returned unchanged; others
// wrap ErrProtocol or ErrVersion.
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
	g := new(greeting)
	if err := json.Unmarshal(body, g); err != nil {
		return nil, fmt.Errorf("%w: a greeting of %d bytes: %w", ErrProtocol, size, err)
	}
	if g.Kind < greetControl || g.Kind > greetRing {
		return nil, fmt.Errorf("%w: a greeting of kind %d", ErrProtocol, g.Kind)
	}
	return g, nil
}

// err returns a rejection as the dialer's error.
func (g *greeting) err() error {
	if len(g.Abort) > 0 {
		return parseAbort(g.Abort[:min(len(g.Abort), abortMinimum+maxReason)])
	}
	return fmt.Errorf("%w (it answered: %s)", cmp.Or(causeOf(g.Code), ErrProtocol), printable(cutReason(g.Reason)))
}

// sameMembers describes the first difference between two lists, or returns "" if they are equal.
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
