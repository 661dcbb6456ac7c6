package tcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Errors of this package, and those of EventDown, wrap one of these or the network's error.
var (
	// ErrOptions: Connect was called with impossible options.
	ErrOptions = errors.New("tcp: impossible options")
	// ErrMismatch: members don't agree on the group: its number, its members, or their
	// order.
	ErrMismatch = errors.New("tcp: members don't mean the same group")
	// ErrVersion: a member speaks another version of the protocol.
	ErrVersion = errors.New("tcp: another version of the protocol")
	// ErrDuplicate: two processes want to be the same member.
	ErrDuplicate = errors.New("tcp: this member exists already")
	// ErrStale: the other members are in a later epoch of the group.
	ErrStale = errors.New("tcp: the group's epoch has passed")
	// ErrMissing: not all members came before the context ended.
	ErrMissing = errors.New("tcp: members are missing")
	// ErrFailed: another member gave up; the text has its reason.
	ErrFailed = errors.New("tcp: a member could not join")
	// ErrProtocol: a peer did what the protocol doesn't allow.
	ErrProtocol = errors.New("tcp: the peer violates the protocol")
	// ErrClosed: this transport, or the peer's, has been closed.
	ErrClosed = errors.New("tcp: closed")
	// ErrOverflow: a peer doesn't read the messages sent to it.
	ErrOverflow = errors.New("tcp: the peer doesn't read what it is told")
	// ErrSilent: a peer's process has stopped, or its host is dead or cut off.
	ErrSilent = errors.New("tcp: nothing is heard of the peer")
	// ErrNotReady: Send without readiness of the peer, or PutSmall without a slot.
	ErrNotReady = errors.New("tcp: the peer is not ready for this")

	errCrowd  = errors.New("tcp: too many callers from one address who do not say who they are")
	errNotYet = errors.New("tcp: the member is still in an earlier epoch")
)

// Limits.
const (
	// MaxMembers is how many members a group may have.
	MaxMembers = 4096
	// MaxHello is how long Options.Hello may be, in bytes.
	MaxHello = 32 << 10
	// MaxPosted is how many buffers may be posted for blocks of one peer, and so
	// how many blocks may be under way to one.
	MaxPosted = 64
)

// Options say which group a transport is for.
type Options struct {
	// Members are the addresses, "host:port", of all members; number 0 is the
	// root. All members give the same strings in the same order.
	Members []string
	// Self is this member's number.
	Self int
	// Group is the group's number, and Epoch is increased when it is made anew,
	// after a failure. All members give the same. A member that meets a lower
	// epoch waits until it has ended; one that meets a higher one gives up with
	// ErrStale.
	Group, Epoch uint64
	// Listener accepts the peers' connections. Connect takes it over: it is closed
	// with the transport, or when Connect fails. If nil, Connect listens at
	// Members[Self].
	Listener net.Listener
	// Dial makes the connections to peers; nil stands for a net.Dialer's DialContext. Its
	// connections, and those of Listener, have CloseWrite, as *net.TCPConn does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Hello is what all peers get with the greeting, such as parameters and keys.
	// Transport.Hello returns theirs.
	Hello []byte
	// DeadAfter is how long a peer may be silent before it counts as dead; from
	// 1 s up. 0 stands for 5 s. Peers whose processes end are noticed at once.
	DeadAfter time.Duration
	// Stranger, if set, is called for each caller that was turned away: one that is no
	// member, or not of this group. It may be called by many goroutines at once.
	Stranger func(from net.Addr, why error)
	// Progress, if set, is called for each peer that was met, one at a time.
	Progress func(peer int)
}

// A stream is a connection with a peer: TCP, or what Options.Dial and Options.Listener make.
type stream interface {
	net.Conn
	CloseWrite() error
}

// check says what is wrong with the options, and fills in defaults.
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
