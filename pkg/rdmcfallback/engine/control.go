package engine

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Control messages. The first byte is the kind, numbers are big-endian.
type kind byte

const (
	kindHello  kind = iota + 1 // a greeting
	kindSize                   // the root: message Number has Value bytes
	kindClose                  // the root: there are Number messages in all
	kindHave                   // to the root: this member has all Number messages
	kindDone                   // the root: all members have all Number messages
	kindFailed                 // the group has failed
	kindAsk                    // to the root: have you announced the sizes of all messages sent? Question Number
	kindTold                   // the root: yes, to question Number
	kindCount                  // to the root: this member has the first Number messages
)

// magic begins a greeting; its last byte is the protocol's version.
const magic = "RDMC\x02"

// maxText is the maximum length of a failure's text in a message, in bytes. After it come a zero and
// who has found the failure, which members of earlier releases take for the end of the text, and do
// not send.
const (
	maxText  = 512 - found
	found    = 1 + 8
	notFound = -1 // such a member does not say it
)

// A hello is a greeting: the parameters that all members must agree on, this member's identity, and
// how many messages it has.
type hello struct {
	Nodes     uint32
	Self      uint32
	Counts    uint8 // 1: the root wants reports of complete messages; else 0
	BlockSize uint32
	Algorithm uint8
	SmallMax  uint32
	Root      [8]byte  // a digest of the root's name
	Racks     [8]byte  // … of the racks
	Members   [32]byte // … of all names
	Have      int64
}

// differs describes a difference between two members' parameters, or returns "".
func (t *hello) differs(o *hello) string {
	switch {
	case t.Nodes != o.Nodes:
		return fmt.Sprintf("%d members and %d", t.Nodes, o.Nodes)
	case t.Root != o.Root:
		return "another root"
	case t.Members != o.Members:
		return "other members, or the same in another order"
	case t.BlockSize != o.BlockSize:
		return fmt.Sprintf("block sizes %d and %d", t.BlockSize, o.BlockSize)
	case t.Algorithm != o.Algorithm:
		return fmt.Sprintf("algorithms %d and %d", t.Algorithm, o.Algorithm)
	case t.SmallMax != o.SmallMax:
		return fmt.Sprintf("small messages of up to %d and %d bytes", t.SmallMax, o.SmallMax)
	case t.Racks != o.Racks:
		return "other racks"
	}
	return ""
}

// A control is a control message of any kind.
type control struct {
	kind   kind
	hello  hello // kindHello
	number int64
	value  int64  // kindSize; kindFailed: who has found it, or notFound
	code   byte   // kindFailed
	text   string // kindFailed
}

// append appends the message's bytes, at most 4 KiB.
func (c *control) append(b []byte) []byte {
	b = append(b, byte(c.kind))
	switch c.kind {
	case kindHello:
		b, _ = binary.Append(append(b, magic...), binary.BigEndian, &c.hello) // never fails
	case kindFailed:
		b = append(b, c.code)
		b = binary.BigEndian.AppendUint64(b, uint64(c.number))
		b = append(b, c.text...)
		if c.value != notFound {
			b = binary.BigEndian.AppendUint64(append(b, 0), uint64(c.value))
		}
	default:
		b = binary.BigEndian.AppendUint64(b, uint64(c.number))
		if c.kind == kindSize {
			b = binary.BigEndian.AppendUint64(b, uint64(c.value))
		}
	}
	return b
}

// A reader parses fields from the front of b. It sets short at the first field that is missing or
// has an impossible value.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.short, r.b = true, nil
		return make([]byte, n)
	}
	field := r.b[:n]
	r.b = r.b[n:]
	return field
}

func (r *reader) u8() uint8 { return r.take(1)[0] }

// count reads a nonnegative number.
func (r *reader) count() int64 {
	v := int64(binary.BigEndian.Uint64(r.take(8)))
	if v < 0 {
		r.short = true
	}
	return v
}

// parse parses a control message. The result does not refer to b.
func parse(b []byte) (control, error) {
	r := reader{b: b}
	c := control{kind: kind(r.u8())}
	switch c.kind {
	case kindHello:
		if string(r.take(len(magic))) != magic {
			return control{}, fmt.Errorf("a greeting of another protocol, or of another version")
		}
		n, _ := binary.Decode(r.b, binary.BigEndian, &c.hello)
		r.short = n == 0 || c.hello.Counts > 1 || c.hello.Have < 0
		r.b = r.b[n:]
	case kindSize:
		c.number, c.value = r.count(), r.count()
	case kindClose, kindHave, kindDone, kindAsk, kindTold, kindCount:
		c.number = r.count()
	case kindFailed:
		c.code, c.number, c.value = r.u8(), r.count(), notFound
		if n := len(r.b) - found; n >= 0 && r.b[n] == 0 {
			tail := reader{b: r.b[n+1:]}
			c.value, r.b, r.short = tail.count(), r.b[:n], r.short || tail.short
		}
		if len(r.b) <= maxText+found {
			c.text, r.b = printable(string(r.b)), nil
		}
	default:
		return control{}, fmt.Errorf("a control message of unknown kind %d, %d bytes", c.kind, len(b))
	}
	if r.short || len(r.b) > 0 {
		return control{}, fmt.Errorf("a control message of kind %d and a wrong length or number, %d bytes", c.kind, len(b))
	}
	return c, nil
}

// printable makes a text safe to send and display: short, and without terminal control characters.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	for len(s) > maxText {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}
