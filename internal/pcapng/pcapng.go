// Package pcapng writes packet captures in the pcapng format, which has what classic
// pcap lacks: several interfaces in one file, and comments on packets, as Wireshark
// shows them.
//
//	w, err := pcapng.NewWriter(f, pcapng.Section{Program: "switchctl"})
//	id, err := w.Interface(pcapng.Interface{Name: "torA port 1"})
//	err = w.Packet(pcapng.Packet{Interface: id, Time: t, Data: frame, Comment: "replicated"})
//
// The format is that of the IETF's draft-ietf-opsawg-pcapng. The package imports the
// standard library only.
package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// ErrInterface tells of a packet of an interface that was not described before.
var ErrInterface = errors.New("pcapng: no such interface")

// Block types and options of the format.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
	byteOrder      = 0x1a2b3c4d

	optEnd         = 0
	optComment     = 1
	optProgram     = 4 // of a section
	optName        = 2 // of an interface
	optDescription = 3 // likewise
	optResolution  = 9 // likewise
	optFlags       = 2 // of a packet

	linkEthernet = 1
	nanoseconds  = 9 // as a resolution
)

// A Section describes a file.
type Section struct {
	Program string // that wrote it
	Comment string
}

// An Interface is where packets were seen.
type Interface struct {
	Name, Description string
}

// A Direction is how a packet passed its interface.
type Direction uint32

// The directions.
const (
	Unknown Direction = iota
	In
	Out
)

// A Packet is an Ethernet frame.
type Packet struct {
	Interface int // as Interface returned it
	Time      time.Time
	Direction Direction
	Data      []byte
	Comment   string
}

// A Writer writes one section. It is for one goroutine.
type Writer struct {
	w          io.Writer
	interfaces int
	block      []byte // reused
}

// NewWriter writes the section's header.
func NewWriter(w io.Writer, s Section) (*Writer, error) {
	p := &Writer{w: w}
	p.begin(blockSection)
	p.u32(byteOrder)
	p.u32(1) // version 1.0
	p.u32(0xffffffff)
	p.u32(0xffffffff) // of unknown length
	p.text(optProgram, s.Program)
	p.text(optComment, s.Comment)
	return p, p.end()
}

// Interface describes an interface, and returns its number for packets.
func (w *Writer) Interface(i Interface) (int, error) {
	w.begin(blockInterface)
	w.u32(linkEthernet)
	w.u32(0) // packets of any length
	w.text(optName, i.Name)
	w.text(optDescription, i.Description)
	w.option(optResolution, []byte{nanoseconds})
	w.interfaces++
	return w.interfaces - 1, w.end()
}

// Packet writes a packet. The error wraps ErrInterface.
func (w *Writer) Packet(p Packet) error {
	if p.Interface < 0 || p.Interface >= w.interfaces {
		return fmt.Errorf("%w: %d of %d", ErrInterface, p.Interface, w.interfaces)
	}
	t := uint64(p.Time.UnixNano()) //nolint:gosec // after 1970
	w.begin(blockPacket)
	w.u32(uint32(p.Interface)) //nolint:gosec // checked above
	w.u32(uint32(t >> 32))
	w.u32(uint32(t))           //nolint:gosec // the lower half
	w.u32(uint32(len(p.Data))) //nolint:gosec // a frame
	w.u32(uint32(len(p.Data))) //nolint:gosec // likewise
	w.bytes(p.Data)
	w.text(optComment, p.Comment)
	if p.Direction != Unknown {
		w.option(optFlags, binary.LittleEndian.AppendUint32(nil, uint32(p.Direction)))
	}
	return w.end()
}

func (w *Writer) begin(kind uint32) {
	w.block = w.block[:0]
	w.u32(kind)
	w.u32(0) // its length, which end puts in
}

// end writes the block. Its length stands at both ends.
func (w *Writer) end() error {
	w.u32(optEnd)
	n := uint32(len(w.block) + 4) //nolint:gosec // a block is small
	w.u32(n)
	binary.LittleEndian.PutUint32(w.block[4:], n)
	_, err := w.w.Write(w.block)
	return err
}

func (w *Writer) u32(v uint32) { w.block = binary.LittleEndian.AppendUint32(w.block, v) }

// bytes appends b, and fills up to a multiple of four bytes.
func (w *Writer) bytes(b []byte) {
	w.block = append(w.block, b...)
	w.block = append(w.block, make([]byte, -len(b)&3)...)
}

func (w *Writer) option(code uint16, value []byte) {
	w.block = binary.LittleEndian.AppendUint16(w.block, code)
	w.block = binary.LittleEndian.AppendUint16(w.block, uint16(len(value))) //nolint:gosec // options are cut to fit
	w.bytes(value)
}

// maxText is the longest text of an option, in bytes.
const maxText = 1<<16 - 1

// text writes an option unless it is empty. The format wants UTF-8.
func (w *Writer) text(code uint16, s string) {
	if s == "" {
		return
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxText {
		s = s[:maxText]
		for !utf8.ValidString(s) { // cut in the middle of a character
			s = s[:len(s)-1]
		}
	}
	w.option(code, []byte(s))
}
