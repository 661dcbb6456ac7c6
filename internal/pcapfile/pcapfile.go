// Package pcapfile reads packet captures in the classic pcap format (both byte
// orders, microsecond and nanosecond time stamps), as tcpdump writes them. It
// exists so that tests can replay captured frames without a capture library.
// It imports the standard library only.
package pcapfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// LinkEthernet is the link type of captures that hold Ethernet frames.
const LinkEthernet = 1

// MaxFrame is the largest frame that a capture may hold, bytes; the limit is
// that of libpcap and keeps a damaged length from claiming the memory.
const MaxFrame = 256 << 10

// ErrFormat reports that the input is not a classic pcap file or is damaged;
// test with errors.Is. A file that ends in the middle wraps io.ErrUnexpectedEOF
// instead.
var ErrFormat = errors.New("pcapfile: not a classic pcap file, or damaged")

// A Frame is one captured frame.
type Frame struct {
	Time time.Time // UTC
	Data []byte
	// Len is the length that the frame had on the wire; it is more than
	// len(Data) if the capture cut it off.
	Len int
}

// A Reader reads frames one by one.
type Reader struct {
	r        io.Reader
	order    binary.ByteOrder
	nano     bool
	linkType uint32
}

// NewReader reads the file header from r.
func NewReader(r io.Reader) (*Reader, error) {
	var h [24]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, fmt.Errorf("pcapfile: file header: %w", noEOF(err))
	}
	p := &Reader{r: r}
	switch binary.LittleEndian.Uint32(h[:]) {
	case 0xa1b2c3d4:
		p.order = binary.LittleEndian
	case 0xa1b23c4d:
		p.order, p.nano = binary.LittleEndian, true
	case 0xd4c3b2a1:
		p.order = binary.BigEndian
	case 0x4d3cb2a1:
		p.order, p.nano = binary.BigEndian, true
	default:
		return nil, fmt.Errorf("%w: magic number %x (pcapng is another format)", ErrFormat, h[:4])
	}
	if major := p.order.Uint16(h[4:]); major != 2 {
		return nil, fmt.Errorf("%w: version %d", ErrFormat, major)
	}
	// The upper bits may tell about frame check sequences.
	p.linkType = p.order.Uint32(h[20:]) & 0xffff
	return p, nil
}

// LinkType returns what the frames begin with, for example LinkEthernet.
func (p *Reader) LinkType() int { return int(p.linkType) }

// Next returns the next frame, or io.EOF after the last.
func (p *Reader) Next() (Frame, error) {
	var h [16]byte
	if n, err := io.ReadFull(p.r, h[:]); err != nil {
		if n == 0 && err == io.EOF {
			return Frame{}, io.EOF
		}
		return Frame{}, fmt.Errorf("pcapfile: record header: %w", noEOF(err))
	}
	sec, frac := p.order.Uint32(h[0:]), p.order.Uint32(h[4:])
	n, wire := p.order.Uint32(h[8:]), p.order.Uint32(h[12:])
	if n > MaxFrame || wire < n {
		return Frame{}, fmt.Errorf("%w: a record has %d bytes of a frame of %d", ErrFormat, n, wire)
	}
	unit := int64(time.Microsecond)
	if p.nano {
		unit = 1
	}
	f := Frame{Time: time.Unix(int64(sec), int64(frac)*unit).UTC(), Data: make([]byte, n), Len: int(wire)}
	if _, err := io.ReadFull(p.r, f.Data); err != nil {
		return Frame{}, fmt.Errorf("pcapfile: record of %d bytes: %w", n, noEOF(err))
	}
	return f, nil
}

// ReadFile returns all frames of the named file, which must hold Ethernet
// frames.
func ReadFile(name string) ([]Frame, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if p.linkType != LinkEthernet {
		return nil, fmt.Errorf("%s: %w: link type %d, want Ethernet", name, ErrFormat, p.linkType)
	}
	var frames []Frame
	for {
		switch f, err := p.Next(); err {
		case nil:
			frames = append(frames, f)
		case io.EOF:
			return frames, nil
		default:
			return nil, fmt.Errorf("%s: frame %d: %w", name, len(frames)+1, err)
		}
	}
}

// noEOF makes of an end of file that comes too early what it is.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
