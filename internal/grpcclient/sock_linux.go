package grpcclient

import (
	"context"
	"net"
	"syscall"
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
