package unicast

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// A stream is the link over TCP. One goroutine reads, and one writes, so that neither end waits for
// the other to read.
type stream struct {
	e       *End
	conn    net.Conn
	r       *bufio.Reader
	work    chan struct{} // a token: there may be something to write
	replied chan struct{} // the reply is written

	mu     sync.Mutex
	out    []*Op // posted, and not written
	board  Board
	tells  bool
	undone uint64 // of the peer's operations that are complete, those not yet reported to it
	reply  []byte // to a READ; nil: none
	flying []*Op  // written, and not complete
}

func newStream(e *End, conn net.Conn) *stream {
	return &stream{e: e, conn: conn, r: bufio.NewReaderSize(conn, 32<<10), work: make(chan struct{}, 1), replied: make(chan struct{}, 1)}
}

func (s *stream) poke() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

// post implements link.
func (s *stream) post(op *Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = append(s.out, op)
	s.poke()
	return nil
}

// tell implements link.
func (s *stream) tell(b Board) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.board, s.tells = b, true
	s.poke()
	return nil
}

// sync implements link: Config.Sync has done it.
func (s *stream) sync() {}

// run implements link.
func (s *stream) run(ctx context.Context) error {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	written := make(chan struct{})
	go func() {
		defer close(written)
		cut(s.write(ctx))
	}()
	for ctx.Err() == nil {
		if err := s.read(ctx); err != nil {
			cut(err)
		}
	}
	<-written
	return context.Cause(ctx)
}

// write writes what is to be written, until the connection ends.
func (s *stream) write(ctx context.Context) error {
	var head []byte
	for {
		bufs, told, replied := s.next(head[:0])
		if len(bufs) == 0 {
			select {
			case <-s.work:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		head = bufs[0]
		if _, err := bufs.WriteTo(s.conn); err != nil {
			return err
		}
		if told {
			if err := s.e.advance(progress{told: true}); err != nil {
				return err
			}
		}
		if replied {
			s.replied <- struct{}{}
		}
	}
}

// next takes what is to be written next: headers and boards, built in head, and one payload.
func (s *stream) next(head []byte) (bufs net.Buffers, told, replied bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var payload []Buf
	if s.undone > 0 {
		h := header{Kind: kindDone, Offset: s.undone}
		head, s.undone = h.appendTo(head), 0
	}
	if told = s.tells; told {
		head, s.tells = appendBoard(head, s.board), false
	}
	switch {
	case s.reply != nil:
		h := header{Kind: kindData, Length: uint64(len(s.reply))}
		head, payload, s.reply, replied = h.appendTo(head), []Buf{{Bytes: s.reply}}, nil, true
	case len(s.out) > 0:
		op := s.out[0]
		s.out, s.flying = s.out[1:], append(s.flying, op)
		h := header{Kind: kinds[op.Kind], Imm: op.Imm, Length: op.size()}
		if placed(op.Kind) {
			h.Region, h.Offset = uint16(op.Region), op.Offset
		}
		if head = h.appendTo(head); op.Kind != qp.OpRead {
			payload = op.Bufs
		}
	}
	if len(head) > 0 {
		bufs = append(bufs, head)
	}
	for _, b := range payload {
		if len(b.Bytes) > 0 {
			bufs = append(bufs, b.Bytes)
		}
	}
	return bufs, told, replied
}

// placed says whether an operation names a region.
func placed(k qp.Opcode) bool { return k.IsWrite() || k == qp.OpRead }

// read reads a frame and does what it says.
func (s *stream) read(ctx context.Context) error {
	var head [headerLen]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return fmt.Errorf("the peer has closed the connection: %w", err)
	}
	var h header
	if err := h.parse(head[:]); err != nil {
		return err
	}
	switch h.Kind {
	case kindBoard:
		var body [boardLen]byte
		if _, err := io.ReadFull(s.r, body[:]); err != nil {
			return err
		}
		return s.e.hear(parseBoard(body[:]))
	case kindDone:
		return s.completed(h.Offset, false)
	case kindData:
		return s.data(h.Length)
	case kindSend, kindSendImm:
		data := make([]byte, h.Length)
		if _, err := io.ReadFull(s.r, data); err != nil {
			return err
		}
		if err := s.e.came(h.message(data)); err != nil {
			return err
		}
		s.done()
		return nil
	}
	return s.access(ctx, &h)
}

// access does a WRITE or a READ.
func (s *stream) access(ctx context.Context, h *header) error {
	if int(h.Region) >= len(s.e.cfg.Regions) {
		return fmt.Errorf("%w: a WRITE or READ of region %d, of %d", ErrPeer, h.Region, len(s.e.cfg.Regions))
	}
	b := s.e.cfg.Regions[h.Region].Bytes // a sender has none
	if size := uint64(len(b)); h.Offset > size || h.Length > size-h.Offset {
		return fmt.Errorf("%w: a WRITE or READ of %d bytes from %d on, in a region of %d", ErrPeer, h.Length, h.Offset, size)
	}
	b = b[h.Offset:][:h.Length:h.Length]
	s.e.cfg.Sync()
	if h.Kind == kindRead {
		s.mu.Lock()
		s.reply = b
		s.poke()
		s.mu.Unlock()
		select {
		case <-s.replied:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_, err := io.ReadFull(s.r, b)
	s.e.cfg.Sync()
	if err == nil && h.Kind == kindWriteImm {
		err = s.e.came(Message{Kind: qp.OpWriteImm, Imm: h.Imm, N: len(b)})
	}
	if err == nil {
		s.done()
	}
	return err
}

// done tells the peer that one more of its operations is complete.
func (s *stream) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undone++
	s.poke()
}

// data takes what the oldest operation, a READ, has read.
func (s *stream) data(n uint64) error {
	s.mu.Lock()
	var op *Op
	if len(s.flying) > 0 && s.flying[0].Kind == qp.OpRead {
		op = s.flying[0]
	}
	s.mu.Unlock()
	if op == nil || op.size() != n {
		return fmt.Errorf("%w: %d bytes that were not read", ErrPeer, n)
	}
	for _, b := range op.Bufs {
		if _, err := io.ReadFull(s.r, b.Bytes); err != nil {
			return err
		}
	}
	return s.completed(1, true)
}

// completed takes the n oldest operations, which are complete: READs only by their data.
func (s *stream) completed(n uint64, read bool) error {
	s.mu.Lock()
	bad := n > uint64(len(s.flying)) || slices.ContainsFunc(s.flying[:n], func(op *Op) bool { return (op.Kind == qp.OpRead) != read })
	if !bad {
		s.flying = s.flying[n:]
	}
	s.mu.Unlock()
	if bad {
		return fmt.Errorf("%w: operations that were not sent, or READs without data, are complete", ErrPeer)
	}
	return s.e.advance(progress{completed: n})
}
