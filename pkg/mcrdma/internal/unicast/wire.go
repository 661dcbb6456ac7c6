package unicast

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Secret is how a member knows its sender.
type Secret [16]byte

// A Hello begins a connection.
type Hello struct {
	Magic         [5]byte
	Version       uint8
	Secret        Secret
	QPN, PSN, MTU uint32
	Timeout       uint8
	Regions       uint32
}

// A Remote is where a member has a region.
type Remote struct {
	VA, Length uint64
	RKey       uint32
}

var magic = [5]byte{'M', 'C', 'U', 'N', 'I'}

const (
	version    = 1
	maxRegions = 1 << 16
)

// ReadHello reads and checks a hello.
func ReadHello(r io.Reader) (h Hello, err error) {
	if err := binary.Read(r, binary.BigEndian, &h); err != nil {
		return h, err
	}
	switch {
	case h.Magic != magic:
		return h, fmt.Errorf("%w: its hello begins with %q", ErrPeer, h.Magic)
	case h.Version != version:
		return h, fmt.Errorf("%w: it speaks version %d, this is %d: use the same release of both", ErrPeer, h.Version, version)
	case h.QPN != 0 && (h.QPN < 2 || h.QPN > rocev2.Mask24 || h.PSN > rocev2.Mask24 || !qp.ValidMTU(int(h.MTU)) || h.Timeout > 31):
		return h, fmt.Errorf("%w: a queue pair with number %#x, PSN %#x, MTU %d, timeout %d", ErrPeer, h.QPN, h.PSN, h.MTU, h.Timeout)
	case h.Regions > maxRegions:
		return h, fmt.Errorf("%w: %d regions", ErrPeer, h.Regions)
	}
	return h, nil
}

func writeHello(w io.Writer, h Hello, regions []Remote) error {
	h.Magic, h.Version, h.Regions = magic, version, uint32(len(regions))
	var b bytes.Buffer
	_ = binary.Write(&b, binary.BigEndian, h) // to memory
	_ = binary.Write(&b, binary.BigEndian, regions)
	_, err := w.Write(b.Bytes())
	return err
}

func readRegions(r io.Reader, n uint32) ([]Remote, error) {
	regions := make([]Remote, n)
	return regions, binary.Read(r, binary.BigEndian, regions)
}

// A kind is what a frame is.
type kind uint8

const (
	kindBoard kind = iota
	kindSend
	kindSendImm
	kindWrite
	kindWriteImm
	kindRead
	kindDone // so many more operations are complete
	kindData // what a READ has read, which completes it
)

const (
	headerLen = 24
	boardLen  = 8 * (1 + Counters)
)

type header struct {
	Kind   kind
	_      uint8
	Region uint16
	Imm    uint32
	Offset uint64
	Length uint64
}

// kinds are those of operations.
var kinds = map[qp.Opcode]kind{qp.OpWrite: kindWrite, qp.OpWriteImm: kindWriteImm, qp.OpSend: kindSend, qp.OpSendImm: kindSendImm, qp.OpRead: kindRead}

// appendTo appends the header.
func (h *header) appendTo(b []byte) []byte {
	b = append(b, byte(h.Kind), 0)
	b = binary.BigEndian.AppendUint16(b, h.Region)
	b = binary.BigEndian.AppendUint32(b, h.Imm)
	b = binary.BigEndian.AppendUint64(b, h.Offset)
	return binary.BigEndian.AppendUint64(b, h.Length)
}

// parse reads a header, which must have headerLen bytes. What it does not use must be zero.
func (h *header) parse(b []byte) error {
	*h = header{Kind: kind(b[0]), Region: binary.BigEndian.Uint16(b[2:]), Imm: binary.BigEndian.Uint32(b[4:]),
		Offset: binary.BigEndian.Uint64(b[8:]), Length: binary.BigEndian.Uint64(b[16:])}
	switch placed := h.Kind == kindWrite || h.Kind == kindWriteImm || h.Kind == kindRead; {
	case h.Kind > kindData, b[1] != 0, h.Imm != 0 && h.Kind != kindSendImm && h.Kind != kindWriteImm,
		!placed && (h.Region != 0 || h.Offset != 0 && h.Kind != kindDone), h.Kind == kindDone && h.Length != 0,
		h.Kind == kindBoard && h.Length != boardLen, (h.Kind == kindSend || h.Kind == kindSendImm) && h.Length > MaxMessage,
		h.Length > qp.MaxMessage:
		return fmt.Errorf("%w: a frame of kind %d has what it can't have: %x", ErrPeer, h.Kind, b)
	}
	return nil
}

// appendBoard appends a frame.
func appendBoard(b []byte, board Board) []byte {
	h := header{Kind: kindBoard, Length: boardLen}
	b, _ = binary.Append(h.appendTo(b), binary.BigEndian, board) // of fixed size
	return b
}

// parseBoard reads what follows the header, which has boardLen bytes.
func parseBoard(b []byte) (board Board) {
	_, _ = binary.Decode(b, binary.BigEndian, &board) // of that size
	return board
}
