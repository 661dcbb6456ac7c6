package ports

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/mcrdma/mcrdma/internal/mmsg"
)

// A sender sends frames as messages of a socket.
type sender struct {
	sock *mmsg.Socket
	to   netip.AddrPort // zero if the socket is connected
	tx   [MaxBatch]mmsg.Message
}

// send sends frames in order and returns how many were sent. The others are counted and passed to
// refused.
func (s *sender) send(frames [][]byte, c *counters, refused func(frame []byte, r Reason)) int {
	sent := 0
	drop := func(r Reason) {
		c.drop(r, 1)
		refused(frames[0], r)
		frames = frames[1:]
	}
	for len(frames) > 0 {
		n := 0
		for n < min(len(frames), MaxBatch) && len(frames[n]) >= HeaderLen {
			s.tx[n] = mmsg.Message{Buf: frames[n], Addr: s.to}
			n++
		}
		if n == 0 {
			drop(TxRunt)
			continue
		}
		k, err := s.sock.Send(s.tx[:n])
		clear(s.tx[:n])
		c.sent(frames[:k])
		sent += k
		if frames = frames[k:]; err != nil {
			drop(sendReason(err))
		}
	}
	return sent
}

// sendReason returns the Reason for an error of sending a frame.
func sendReason(err error) Reason {
	var errno syscall.Errno
	switch {
	case errors.Is(err, mmsg.ErrAddr):
		return TxError
	case !errors.As(err, &errno): // closed
		return TxDown
	}
	switch errno {
	case syscall.EAGAIN, syscall.ENOBUFS:
		return TxFull
	case syscall.ENETDOWN, syscall.ENODEV, syscall.ENXIO, syscall.EBADF:
		return TxDown
	case syscall.EMSGSIZE:
		return TxTooLong
	case syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ECONNREFUSED, syscall.EPERM, syscall.EACCES:
		return TxPeer
	}
	return TxError
}
