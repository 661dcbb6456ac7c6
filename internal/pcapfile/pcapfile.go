// Package pcapfile reads packet captures of Ethernet frames in the classic pcap
// format, as tcpdump writes them.
package pcapfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// ErrFormat reports that a file is not a classic pcap file of Ethernet frames, or is
// damaged; test with errors.Is.
var ErrFormat = errors.New("not a classic pcap file of Ethernet frames, or damaged")

// A Frame is one captured frame.
type Frame struct {
	Time time.Time // UTC
	Data []byte
	// Len is the length that the frame had on the wire; it is more than
	// len(Data) if the capture cut it off.
	Len int
}

// A Tail reads a file, which may grow, each frame once. It is for one goroutine.
type Tail struct {
	Name   string
	header []byte // of the file; nil: it was not there yet
	next   int64  // where the first frame begins that was not read
}

// headerLen is the length of a capture's header, and frameLen that of the header of a frame.
const headerLen, frameLen = 24, 16

// Read returns the frames that have come since the last time. The beginning of a frame at the end
// of the file is read the next time. A file that is shorter than before is another one, and read
// from its beginning.
func (t *Tail) Read() ([]Frame, error) {
	f, err := os.Open(t.Name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < t.next {
		t.header, t.next = nil, 0
	}
	if info.Size() < headerLen || info.Size() == t.next {
		return nil, nil
	}
	if t.header == nil {
		header := make([]byte, headerLen)
		if _, err := f.ReadAt(header, 0); err != nil {
			return nil, err
		}
		t.header, t.next = header, headerLen
	}
	frames, err := read(io.MultiReader(bytes.NewReader(t.header), io.NewSectionReader(f, t.next, info.Size()-t.next)))
	for _, x := range frames {
		t.next += frameLen + int64(len(x.Data))
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return frames, fmt.Errorf("%s: at byte %d: %w: %w", t.Name, t.next, ErrFormat, err)
	}
	return frames, nil
}

func read(f io.Reader) (frames []Frame, err error) {
	r, err := pcapgo.NewReader(f)
	switch {
	case err == io.EOF:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case r.LinkType() != layers.LinkTypeEthernet:
		return nil, fmt.Errorf("link type %v", r.LinkType())
	}
	for {
		data, ci, err := r.ReadPacketData()
		switch {
		case err == io.EOF && ci.CaptureLength == 0:
			return frames, nil
		case err == io.EOF:
			return frames, io.ErrUnexpectedEOF
		case err != nil:
			return frames, err
		}
		frames = append(frames, Frame{Time: ci.Timestamp, Data: data, Len: ci.Length})
	}
}
