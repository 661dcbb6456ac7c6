package grpcclient

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// thinLinear is TCP_THIN_LINEAR_TIMEOUTS of tcp(7), which package syscall lacks.
const thinLinear = 16

// steady has a connection retransmit at an even pace instead of doubling the time after
// each loss: after a short outage, a beat would otherwise wait longer for its next
// retransmission than the outage lasted. A kernel without the option ignores it.
func steady(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, thinLinear, 1) //nolint:gosec // a descriptor
	})
}

// Listen listens for other daemons. What is accepted is steady, too.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	return (&net.ListenConfig{Control: steady}).Listen(ctx, "tcp", addr)
}

// acknowledged is how long ago the kernel at the other end of a TCP connection has acknowledged something; 0: all that
// was sent.
func acknowledged(c net.Conn) (ago time.Duration, ok bool) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return 0, false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, false
	}
	var info *unix.TCPInfo
	if failed := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) //nolint:gosec // a descriptor
	}); failed != nil || err != nil {
		return 0, false
	}
	return sinceAck(info), true
}

// sinceAck returns 0 if nothing is unacknowledged: a busy host may send nothing for a while, and gets no
// acknowledgements then.
func sinceAck(info *unix.TCPInfo) time.Duration {
	if info.Unacked == 0 && info.Notsent_bytes == 0 {
		return 0
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond
}
