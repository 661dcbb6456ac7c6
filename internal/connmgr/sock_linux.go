package connmgr

import (
	"context"
	"net"
	"syscall"
)

// thinLinear is TCP_THIN_LINEAR_TIMEOUTS of tcp(7), which package syscall lacks.
const thinLinear = 16

// steady has a connection repeat what is lost at an even pace, and not after twice the
// time whenever it is lost again: after a short outage, a beat would otherwise
// wait longer for its next chance than the outage was. A kernel that does not know
// that does without.
func steady(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, thinLinear, 1) //nolint:gosec // a descriptor
	})
}

// listenHosts listens for other daemons. What is accepted is steady, too.
func listenHosts(ctx context.Context, addr string) (net.Listener, error) {
	return (&net.ListenConfig{Control: steady}).Listen(ctx, "tcp", addr)
}
