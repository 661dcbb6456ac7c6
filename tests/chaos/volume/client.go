package volume

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Block is the number of bytes in a block; each write changes one block.
const Block = 4096

// A Kind is a kind of operation.
type Kind uint8

// What clients do.
const (
	Read Kind = iota
	Write
	Flush
)

// Never is the return time of an operation that has not returned: it may take effect at any time.
const Never = math.MaxInt64

// An Op is an operation of a client. Times are Unix times in ns.
type Op struct {
	Kind         Kind
	Host         string // host of the request
	Client       int
	Block        int
	Value        uint64 // written or read
	FUA          bool
	Call, Return int64
}

// A History is what clients saw.
type History struct {
	mu    sync.Mutex
	ops   []Op
	torn  []Op
	value atomic.Uint64
}

// Ops returns the operations so far, and the reads that saw parts of two writes.
func (h *History) Ops() (ops, torn []Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Op(nil), h.ops...), append([]Op(nil), h.torn...)
}

func (h *History) add(op Op, torn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ops = append(h.ops, op); torn {
		h.torn = append(h.torn, op)
	}
}

// A Client uses a volume through all hosts in turn.
type Client struct {
	ID      int
	Export  string
	Hosts   []string
	Blocks  int
	Dial    func(host string) (net.Conn, error)
	History *History
	Rand    *rand.Rand

	conns   map[string]*conn
	pending sync.WaitGroup
	slow    chan struct{} // has space for the operations in flight
}

const (
	// patience is the time after which a client continues with other operations, on another
	// connection, possibly of the same frozen host, which finds it when it is thawed.
	patience = 250 * time.Millisecond
	mostSlow = 6
	refused  = 30 * time.Millisecond // until it tries again
)

// Work does operations until ctx ends. Done then waits for those in flight.
func (c *Client) Work(ctx context.Context) {
	c.conns, c.slow = map[string]*conn{}, make(chan struct{}, mostSlow)
	for ctx.Err() == nil {
		op := Op{Client: c.ID, Host: c.Hosts[c.Rand.IntN(len(c.Hosts))], Block: c.Rand.IntN(c.Blocks)}
		switch n := c.Rand.IntN(20); {
		case n < 9:
			op.Kind = Write
		case n < 10:
			op.Kind, op.FUA = Write, true
		case n < 11:
			op.Kind = Flush
		}
		if c.Try(ctx, op) != nil {
			pause(ctx, refused)
		}
	}
}

// Try does one operation. If it takes long, it continues in the background.
func (c *Client) Try(ctx context.Context, op Op) error {
	x := c.conns[op.Host]
	delete(c.conns, op.Host)
	select {
	case c.slow <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan error, 1)
	c.pending.Go(func() {
		var err error
		if x == nil {
			x, err = c.dial(op.Host)
		}
		if err == nil {
			err = c.do(x, op)
		}
		<-c.slow
		done <- err
	})
	select {
	case err := <-done:
		if err == nil {
			c.conns[op.Host] = x
		}
		return err
	case <-time.After(patience):
		go func() {
			if <-done == nil {
				_ = x.Close()
			}
		}()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) dial(host string) (*conn, error) {
	raw, err := c.Dial(host)
	if err != nil {
		return nil, err
	}
	x, err := connect(raw, c.Export)
	if err != nil {
		_ = raw.Close()
	}
	return x, err
}

// do does an operation, and records the result.
func (c *Client) do(x *conn, op Op) (err error) {
	p, torn := make([]byte, Block), false
	op.Call, op.Return = time.Now().UnixNano(), Never
	switch op.Kind {
	case Write:
		op.Value = c.History.value.Add(1)
		for i := 0; i < Block; i += 8 {
			binary.LittleEndian.PutUint64(p[i:], op.Value)
		}
		flags := uint16(0)
		if op.FUA {
			flags = nbdFlagFUA
		}
		err = x.do(nbdWrite, flags, int64(op.Block)*Block, p)
	case Read:
		err = x.do(nbdRead, 0, int64(op.Block)*Block, p)
		op.Value = binary.LittleEndian.Uint64(p)
		for i := 0; i < Block; i += 8 {
			torn = torn || binary.LittleEndian.Uint64(p[i:]) != op.Value
		}
	case Flush:
		err = x.do(nbdFlush, 0, 0, nil)
	}
	if err == nil {
		op.Return = time.Now().UnixNano()
	} else {
		_ = x.Close()
	}
	if err == nil || op.Kind == Write {
		c.History.add(op, torn && err == nil)
	}
	return err
}

// Done waits until nothing is in flight, and reports whether that happens in time.
func (c *Client) Done(bound time.Duration) bool {
	done := make(chan struct{})
	go func() {
		c.pending.Wait()
		close(done)
	}()
	select {
	case <-done:
		for _, x := range c.conns {
			_ = x.Close()
		}
		return true
	case <-time.After(bound):
		return false
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// ReadAll reads each block at a host, within a time.
func (c *Client) ReadAll(host string, blocks int, bound time.Duration) error {
	x, err := c.dial(host)
	if err == nil {
		err = x.SetDeadline(time.Now().Add(bound))
	}
	for b := range blocks {
		if err == nil {
			err = c.do(x, Op{Kind: Read, Host: host, Client: c.ID, Block: b})
		}
	}
	if err == nil {
		err = x.Close()
	}
	return err
}

// Write does one write after another at the first host until ctx ends, without a timeout.
func (c *Client) Write(ctx context.Context) {
	var x *conn
	for i := 0; ctx.Err() == nil; i++ {
		var err error
		if x == nil {
			if x, err = c.dial(c.Hosts[0]); err != nil {
				pause(ctx, refused)
				continue
			}
		}
		if c.do(x, Op{Kind: Write, Host: c.Hosts[0], Block: i % c.Blocks}) != nil {
			x = nil
		}
	}
	if x != nil {
		_ = x.Close()
	}
}
