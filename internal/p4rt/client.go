package p4rt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/grpcwindow"
)

// A Config describes a Client. Only Target is needed if there is one agent.
type Config struct {
	Target   string // gRPC's name of the switch, "host:port" for example
	DeviceID uint64
	// ElectionID is what sessions begin with. Its Low must be no other agent's
	// of the switch; 0 means 1.
	ElectionID ElectionID
	// Dial are further options of the connection. It is in plain text unless they say otherwise.
	Dial []grpc.DialOption
	// Busy reports whether this host's processors are overloaded: the switch's answers may then be
	// late; nil: never.
	Busy func(now time.Time) bool
}

// How a client writes.
const (
	maxBatch    = 256                   // updates in one Write
	maxAttempts = 5                     // of one Write
	firstWait   = 20 * time.Millisecond // before the second attempt; doubled for each further
	callTime    = 10 * time.Second      // of one attempt
	allTime     = time.Minute           // without an answer, of a call that concerns all that a switch has
	readTime    = 10 * time.Minute      // of a Read, however many answers it gets
	maxQueue    = 1024                  // packets and digests that wait to be taken
)

// maxMessage bounds what is received: a pipeline, or the largest table.
const maxMessage = 256 << 20

// A Client is a connection to one switch. Its methods may be called concurrently.
type Client struct {
	cfg    Config
	schema *schema
	conn   *grpc.ClientConn
	rpc    p4.P4RuntimeClient

	batch, attempts int // at most
	wait            time.Duration
}

// New makes a client. It does not connect yet. Errors wrap ErrConfig.
func New(cfg Config) (*Client, error) {
	cfg.ElectionID.Low = cmp.Or(cfg.ElectionID.Low, 1)
	if cfg.Busy == nil {
		cfg.Busy = func(time.Time) bool { return false }
	}
	if cfg.Target == "" {
		return nil, fmt.Errorf("p4rt: %w: no target is given", ErrConfig)
	}
	s, err := ownSchema()
	if err != nil {
		return nil, err
	}
	dial := append(grpcwindow.Dial(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// A connection that carries nothing more is replaced: a new session would use it, too.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: asks * askEach}))
	conn, err := grpc.NewClient(cfg.Target, append(dial, cfg.Dial...)...)
	if err != nil {
		return nil, fmt.Errorf("p4rt: %w: %s: %w", ErrConfig, cfg.Target, err)
	}
	return &Client{cfg: cfg, schema: s, conn: conn, rpc: p4.NewP4RuntimeClient(conn),
		batch: maxBatch, attempts: maxAttempts, wait: firstWait}, nil
}

// Close ends the connection, and all sessions.
func (c *Client) Close() error { return c.conn.Close() }

// Open opens a stream to the switch and returns when the switch has answered the
// arbitration. ctx bounds the opening, not the session. Several sessions may be
// open, with different election ids.
func (c *Client) Open(ctx context.Context) (*Session, error) {
	life, end := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, end)
	stream, err := c.rpc.StreamChannel(life)
	if err != nil {
		end()
		return nil, fmt.Errorf("p4rt: %s: %w: %w", c.cfg.Target, ErrStreamLost, failure.Plain(err))
	}
	s := &Session{
		c: c, stream: stream, life: life, end: end, id: c.cfg.ElectionID,
		changed: make(chan struct{}), done: make(chan struct{}),
		packets: make(chan PacketIn, maxQueue), digests: make(chan ARPDigest, maxQueue),
	}
	s.work.Go(s.receive)
	if err = s.arbitrate(s.id); err == nil {
		err = s.wait(ctx, func() bool { return s.role != 0 })
	}
	if err == nil {
		err = s.ask()
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.Close()
		if errors.Is(err, ErrStreamLost) {
			return nil, err // which says where
		}
		return nil, fmt.Errorf("p4rt: %s: arbitration: %w", c.cfg.Target, err)
	}
	s.work.Go(s.watch)
	return s, nil
}
