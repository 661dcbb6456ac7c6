package grpcclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// dialAgain is the time after which a second connection attempt starts beside the first;
// each further attempt waits twice as long, so that many attempts do not hold up hosts that
// are slow to answer. The kernel repeats a lost SYN after a second (RFC 6298, 2.1), which
// is a large part of what a caller waits. One try in three is lost where four links between
// two hosts each lose one packet in twenty.
const dialAgain = 200 * time.Millisecond

// dialer makes one connection.
type dialer func(ctx context.Context, target string) (net.Conn, error)

func dialOnce(ctx context.Context, target string) (net.Conn, error) {
	return (&net.Dialer{Control: steady}).DialContext(ctx, "tcp", target)
}

// dialMany starts a connection, another one after dialAgain and then at growing intervals,
// until one is made, one fails or ctx ends. It closes connections made later.
func dialMany(ctx context.Context, target string, dial dialer) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	try := func() {
		c, err := dial(ctx, target)
		select {
		case results <- result{c, err}:
		case <-ctx.Done():
			if err == nil {
				_ = c.Close()
			}
		}
	}
	pause := dialAgain
	again := time.NewTimer(pause)
	defer again.Stop()
	go try()
	for {
		select {
		case r := <-results:
			return r.conn, r.err
		case <-again.C:
			go try()
			pause *= 2
			again.Reset(pause)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("dial tcp %s: %w", target, os.ErrDeadlineExceeded)
		}
	}
}
