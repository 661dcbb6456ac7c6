package tcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Errors of this package, and those of EventDown, wrap one of these or an error of the network.
var (
	// ErrOptions: the options of Connect are invalid.
	ErrOptions = errors.New("tcp: impossible options")
	// ErrMismatch: members disagree on the group: its number, its members, or their order.
	ErrMismatch = errors.New("tcp: members don't mean the same group")
	// ErrVersion: a member uses another version of the protocol.
	ErrVersion = errors.New("tcp: another version of the protocol")
	// ErrDuplicate: two processes claim to be the same member.
	ErrDuplicate = errors.New("tcp: this member exists already")
	// ErrStale: the other members are in a later epoch of the group.
	ErrStale = errors.New("tcp: the group's epoch has passed")
	// ErrMissing: not all members joined before the context ended.
	ErrMissing = errors.New("tcp: members are missing")
	// ErrFailed: another member gave up; the text has its reason.
	ErrFailed = errors.New("tcp: a member could not join")
	// ErrProtocol: a peer violated the protocol.
	ErrProtocol = errors.New("tcp: the peer violates the protocol")
	// ErrClosed: this transport, or the peer's, has been closed.
	ErrClosed = errors.New("tcp: closed")
	// ErrOverflow: a peer does not read the messages sent to it.
	ErrOverflow = errors.New("tcp: the peer doesn't read what it is told")
	// ErrSilent: a peer's process has stopped, or its host is dead or disconnected.
	ErrSilent = errors.New("tcp: nothing is heard of the peer")
	// ErrNotReady: Send without readiness of the peer, or PutSmall without a free slot.
	ErrNotReady = errors.New("tcp: the peer is not ready for this")

	errCrowd  = errors.New("tcp: too many callers from one address who do not say who they are")
	errNotYet = errors.New("tcp: the member is still in an earlier epoch")
)

// Limits.
const (
	// MaxMembers is the maximum number of members of a group.
	MaxMembers = 4096
	// MaxHello is the maximum length of Options.Hello, in bytes.
	MaxHello = 32 << 10
	// MaxPosted is the maximum number of buffers posted for the blocks of one peer, and so of
	// blocks in flight to one peer.
	MaxPosted = 64
)

// Options configure a transport.
type Options struct {
	// Members are the addresses, "host:port", of all members; number 0 is the root. All members
	// must have the same strings in the same order.
	Members []string
	// Self is this member's number.
	Self int
	// Group is the group's number. Epoch increases each time the group is formed again after a
	// failure. Both must be the same at all members. A member that sees a lower epoch waits until
	// that has ended; one that sees a higher epoch gives up with ErrStale.
	Group, Epoch uint64
	// Listener accepts the peers' connections. Connect takes ownership: it is closed with the
	// transport, or when Connect fails. If nil, Connect listens at Members[Self].
	Listener net.Listener
	// Dial opens the connections to peers; nil means a net.Dialer's DialContext. Its connections,
	// and those of Listener, must have CloseWrite, as *net.TCPConn does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Hello is sent to all peers with the greeting, for example parameters and keys.
	// Transport.Hello returns theirs.
	Hello []byte
	// DeadAfter is the silence after which a peer is considered dead; at least 1 s; 0 means 5 s.
	// The end of a peer's process is noticed at once.
	DeadAfter time.Duration
	// Stranger, if set, is called for each rejected caller: one that is not a member, or not of
	// this group. It may be called concurrently.
	Stranger func(from net.Addr, why error)
	// Progress, if set, is called for each peer met, not concurrently.
	Progress func(peer int)
}

// A stream is a connection with a peer: TCP, or a connection of Options.Dial or Options.Listener.
type stream interface {
	net.Conn
	CloseWrite() error
}

// check checks the options and fills in defaults.
func (o *Options) check() error {
	n := len(o.Members)
	switch {
	case n < 2 || n > MaxMembers:
		return fmt.Errorf("%w: %d members, need 2 to %d", ErrOptions, n, MaxMembers)
	case o.Self < 0 || o.Self >= n:
		return fmt.Errorf("%w: this is member %d of %d, which are numbered from 0", ErrOptions, o.Self, n)
	case len(o.Hello) > MaxHello:
		return fmt.Errorf("%w: a hello of %d bytes, at most %d", ErrOptions, len(o.Hello), MaxHello)
	case o.DeadAfter != 0 && o.DeadAfter < time.Second:
		return fmt.Errorf("%w: DeadAfter is %v, at least 1s", ErrOptions, o.DeadAfter)
	}
	o.DeadAfter = cmp.Or(o.DeadAfter, 5*time.Second)
	seen := make(map[string]int, n)
	for i, m := range o.Members {
		if _, _, err := net.SplitHostPort(m); err != nil {
			return fmt.Errorf("%w: member %d: %w", ErrOptions, i, err)
		}
		if j, ok := seen[m]; ok {
			return fmt.Errorf("%w: members %d and %d both have the address %s", ErrOptions, j, i, m)
		}
		seen[m] = i
	}
	const most = maxGreeting - 2*MaxHello - 1024
	if size := len((&greeting{Members: o.Members}).encode()); size > most {
		return fmt.Errorf("%w: the members' addresses take %d bytes, at most %d", ErrOptions, size, most)
	}
	return nil
}
