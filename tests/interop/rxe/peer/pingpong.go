package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/peerproto"
)

// ibv_rc_pingpong's TCP handshake: each side sends its address as text ended
// by a NUL, lid:qpn:psn:gid in hexadecimal; the client says "done" and a NUL
// when its queue pair is ready to receive.
const pingpongLen = len("0000:000000:000000:00000000000000000000000000000000") + 1

// pingpongAddr formats an address.
func pingpongAddr(e peerproto.Endpoint) []byte {
	gid := netip.AddrFrom4(e.Addr.As4()).As16()
	return fmt.Appendf(nil, "%04x:%06x:%06x:%s\x00", 0, uint32(e.QPN), uint32(e.PSN), hex.EncodeToString(gid[:]))
}

// parsePingpong parses an address.
func parsePingpong(b []byte) (peerproto.Endpoint, error) {
	var e peerproto.Endpoint
	if len(b) != pingpongLen || b[len(b)-1] != 0 {
		return e, fmt.Errorf("pingpong: malformed address %q", b)
	}
	var lid, qpn, psn uint32
	var text string
	if _, err := fmt.Sscanf(string(b[:len(b)-1]), "%x:%x:%x:%s", &lid, &qpn, &psn, &text); err != nil {
		return e, fmt.Errorf("pingpong: address %q: %w", b, err)
	}
	gid, err := hex.DecodeString(text)
	if err != nil || len(gid) != 16 {
		return e, fmt.Errorf("pingpong: GID %q: %w", text, err)
	}
	addr := netip.AddrFrom16([16]byte(gid))
	if !addr.Is4In6() || qpn > rocev2.Mask24 || psn > rocev2.Mask24 {
		return e, fmt.Errorf("pingpong: address %q is not one of RoCEv2 over IPv4", b)
	}
	return peerproto.Endpoint{Addr: addr.Unmap(), QPN: rocev2.QPN(qpn), PSN: rocev2.PSN(psn)}, nil
}

// pingpong plays Iters rounds of Size bytes.
func (s *session) pingpong(ctx context.Context, req *peerproto.Pingpong) error {
	if req.Size < 1 || req.Size > bufSize {
		return fmt.Errorf("pingpong: size %d is not 1..%d", req.Size, bufSize)
	}
	sock, err := s.pingpongSocket(ctx, req)
	if err != nil {
		return err
	}
	defer sock.Close()
	if err := sock.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	g := &game{s: s, req: req}
	// The other side checks the first byte of each page of what it gets.
	for i := range g.req.Size {
		s.send.Bytes()[i] = byte(i % 4096)
	}
	for range min(depth, req.Iters) {
		if err := g.postRecv(); err != nil {
			return err
		}
	}
	if err := g.handshake(sock); err != nil {
		return err
	}
	if err := g.play(ctx); err != nil {
		return fmt.Errorf("pingpong: %d sent, %d received of %d: %w", g.sent, g.received, req.Iters, err)
	}
	return nil
}

func (s *session) pingpongSocket(ctx context.Context, req *peerproto.Pingpong) (net.Conn, error) {
	if req.Server.IsValid() {
		var d net.Dialer
		return d.DialContext(ctx, "tcp4", req.Server.String())
	}
	if s.listener == nil {
		return nil, fmt.Errorf("pingpong: no Listen before")
	}
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	return s.listener.Accept()
}

// A game is a game of pingpong.
type game struct {
	s                      *session
	req                    *peerproto.Pingpong
	posted, sent, received int
}

func (g *game) client() bool { return g.req.Server.IsValid() }

// handshake exchanges addresses and connects the queue pair, which has to be
// able to receive before the client starts.
func (g *game) handshake(sock net.Conn) error {
	c := g.s.conn
	own := pingpongAddr(peerproto.Endpoint{Addr: g.s.dev.Attr().Addr, QPN: c.qp.QPN(), PSN: c.psn.PSN})
	if g.client() {
		if _, err := sock.Write(own); err != nil {
			return err
		}
	}
	buf := make([]byte, pingpongLen)
	if _, err := io.ReadFull(sock, buf); err != nil {
		return fmt.Errorf("pingpong: the other's address: %w", err)
	}
	peer, err := parsePingpong(buf)
	if err != nil {
		return err
	}
	if err := c.connect(&peerproto.Connect{
		Peer: peer, MTU: g.req.MTU, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12,
	}); err != nil {
		return err
	}
	const done = "done\x00"
	if g.client() {
		_, err = sock.Write([]byte(done))
		return err
	}
	if _, err := sock.Write(own); err != nil {
		return err
	}
	if _, err := io.ReadFull(sock, buf[:len(done)]); err != nil || string(buf[:len(done)]) != done {
		return fmt.Errorf("pingpong: the client says %q instead of done: %w", buf[:len(done)], err)
	}
	return nil
}

func (g *game) postRecv() error {
	if g.posted == g.req.Iters {
		return nil
	}
	g.posted++
	return g.s.conn.qp.PostRecv(&qp.RecvWR{ID: uint64(g.posted), SGEs: []qp.SGE{g.s.recv.SGE(0, g.req.Size)}})
}

func (g *game) send(ctx context.Context) error {
	if g.sent == g.req.Iters {
		return nil
	}
	g.sent++
	err := g.s.conn.qp.PostSend(&qp.SendWR{ID: uint64(g.sent), Opcode: qp.OpSend, Flags: qp.FlagSignaled,
		SGEs: []qp.SGE{g.s.send.SGE(0, g.req.Size)}})
	if err != nil {
		return err
	}
	wcs, err := g.s.next(ctx, g.s.conn.sendCQ)
	if err != nil {
		return err
	}
	// The other side is done when it has all messages, and destroys its queue
	// pair; if the last acknowledgement is lost, it is not repeated. The other
	// side's exit status says whether the message arrived.
	if g.sent == g.req.Iters && wcs[0].Status == qp.StatusRetryExcErr {
		return nil
	}
	return wcs[0].Status.Err()
}

// play serves and returns: every message received is answered by one sent.
func (g *game) play(ctx context.Context) error {
	if g.client() {
		if err := g.send(ctx); err != nil {
			return err
		}
	}
	for g.received < g.req.Iters {
		wcs, err := g.s.next(ctx, g.s.conn.recvCQ)
		if err != nil {
			return err
		}
		for _, wc := range wcs {
			if err := wc.Status.Err(); err != nil {
				return err
			}
			if int(wc.ByteLen) != g.req.Size {
				return fmt.Errorf("received %d bytes instead of %d", wc.ByteLen, g.req.Size)
			}
			g.received++
			if err := g.postRecv(); err != nil {
				return err
			}
			if err := g.send(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
