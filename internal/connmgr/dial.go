package connmgr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// dialAgain is after how long a connection is asked for once more beside the first
// request; after that it takes twice as long each time, so that hosts which are slow to
// answer are not kept from it by many requests. The kernel repeats a request that is lost
// after a second (RFC 6298, 2.1), which is a large part of what a caller waits, and is lost
// in one of three tries where four links between two hosts lose one packet of twenty.
const dialAgain = 200 * time.Millisecond

// dialer makes one connection.
type dialer func(ctx context.Context, target string) (net.Conn, error)

func dialOnce(ctx context.Context, target string) (net.Conn, error) {
	return (&net.Dialer{Control: steady}).DialContext(ctx, "tcp", target)
}

// dialMany asks for a connection, after dialAgain and then ever later once more, until one
// is made, one fails or ctx ends. What is made later is closed.
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
