package mcrdma

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/internal/unicast"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// SetCounter sets one of the member's Counters, which its sender reads (Unicast.Counter,
// Unicast.WaitCounter): for example the last operation that is durable here. It does not wait. Of
// several calls the sender may see only the last. It does see the last, even if connections are
// lost meanwhile, unless the member ends first. Counters are 0 when the member joins: those of the
// host's earlier memberships are gone. The error wraps ErrInvalid if there is no such counter, or
// is the reason why the member has ended.
func (m *Member) SetCounter(i int, v uint64) error {
	if i < 0 || i >= Counters {
		return errCounter(i)
	}
	return m.unicast.Set(i, v)
}

// Send sends a message of at most MaxUnicastMessage bytes to the group's sender, where Unicast.Recv
// returns it. It returns when the sender's library has the message. The library buffers 9 to 16
// messages that the application has not received; then Send waits. It also waits until the sender's
// application has called Group.Unicast. Messages arrive in the order of the calls. The error wraps
// ErrInvalid, ErrUnreachable if the connection is lost (the message may have arrived), ctx's error
// (it may still arrive), or the reason why the member has ended.
func (m *Member) Send(ctx context.Context, message []byte) error {
	if len(message) > MaxUnicastMessage {
		return fmt.Errorf("%w: a message of %d bytes to the sender; at most %d", ErrInvalid, len(message), MaxUnicastMessage)
	}
	select {
	case m.sends <- struct{}{}:
	case <-m.unicast.Closed():
		return m.unicast.Err()
	case <-ctx.Done():
		return m.unsent(ctx)
	}
	done := make(chan error, 1)
	op := &unicast.Op{Kind: qp.OpSend, Bufs: []unicast.Buf{{Bytes: append([]byte(nil), message...)}}, Done: func(err error) {
		<-m.sends
		done <- err
	}}
	if err := m.unicast.Submit(op); err != nil {
		<-m.sends
		return err
	}
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		if why := m.unicast.Err(); why != nil {
			return why
		}
		e := newError(mcrdmav1.Reason_UNREACHABLE, "the sender, %s: %v", m.id.Source, err)
		e.Group, e.under = m.id, err
		return e
	case <-ctx.Done():
		return m.unsent(ctx)
	}
}

// unsent returns the reason why a message was not sent before ctx ended.
func (m *Member) unsent(ctx context.Context) error {
	if !m.unicast.Connected() {
		return fmt.Errorf("the sender's application has no unicast connection with this member: %w", ctx.Err())
	}
	return ctx.Err()
}

// offerUnicast makes the member's end of the unicast connection, and its address for the sender.
func (m *Member) offerUnicast() error {
	c := m.c
	addr, err := c.port.listen(c)
	if err != nil {
		return err
	}
	cfg := unicast.Config{Member: true, Device: c.dev, PD: c.pd, Window: unicast.Slots, SGEs: 1, Deliver: m.deliverUnicast, Sync: func() {
		m.mu.Lock()
		defer m.mu.Unlock()
	}}
	for _, g := range m.regions {
		cfg.Regions = append(cfg.Regions, unicast.Region{Bytes: g.piece.Bytes(), MR: g.mr})
	}
	var secret unicast.Secret
	_, _ = rand.Read(secret[:]) // never fails
	m.mu.Lock()
	m.unicast, m.how = unicast.NewEnd(cfg), append(secret[:], addr...)
	m.mu.Unlock()
	c.port.add(secret, m)
	return nil
}

func (m *Member) deliverUnicast(x unicast.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inbox.put(unicastReceived(x))
}

// endUnicast ends the connection: it writes nothing to the regions any more.
func (m *Member) endUnicast(why error) {
	m.mu.Lock()
	end, how := m.unicast, m.how
	m.mu.Unlock()
	if end == nil { // the application has granted nothing
		return
	}
	m.c.port.remove(unicast.Secret(how))
	end.Close(why)
}

// A unicastPort is where senders make unicast connections with a Client's members.
type unicastPort struct {
	strangers atomic.Uint64 // refused callers

	mu      sync.Mutex
	l       net.Listener
	members map[unicast.Secret]*Member
	calls   []unicastCall // callers that have not named a member yet, the oldest first
}

// A unicastCall is from an address.
type unicastCall struct {
	conn net.Conn
	from string
}

const (
	maxCalls    = 64 // of all callers
	maxCallsOf  = 8  // of one address
	callTime    = 5 * time.Second
	acceptPause = 10 * time.Millisecond
)

// listen returns the address, and begins to listen the first time.
func (p *unicastPort) listen(c *Client) (addr string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l == nil {
		p.l, err = c.opt.Listen("tcp", net.JoinHostPort(cmp.Or(c.hello.GetBootstrap(), c.hello.GetAddress()), "0"))
		if err != nil {
			p.l = nil
			return "", fmt.Errorf("listen for the unicast connection: %w", err)
		}
		p.members = map[unicast.Secret]*Member{}
		l := p.l
		context.AfterFunc(c.ctx, func() { _ = l.Close() })
		c.wg.Go(func() { p.accept(c, l) })
	}
	return p.l.Addr().String(), nil
}

func (p *unicastPort) add(secret unicast.Secret, m *Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.members[secret] = m
}

func (p *unicastPort) remove(secret unicast.Secret) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.members, secret)
}

func (p *unicastPort) accept(c *Client, l net.Listener) {
	for c.ctx.Err() == nil {
		conn, err := l.Accept()
		if err != nil { // of a lack of files, for example
			select {
			case <-c.ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		p.enter(unicastCall{conn, from})
		c.wg.Go(func() { p.answer(c, conn, from) })
	}
}

// enter registers a call. If there are too many, it replaces the oldest, of its address or of all:
// a sender names a member at once, so silent callers cannot keep it out.
func (p *unicastPort) enter(call unicastCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	same, first := 0, 0
	for i := len(p.calls) - 1; i >= 0; i-- {
		if p.calls[i].from == call.from {
			same, first = same+1, i
		}
	}
	if same < maxCallsOf {
		first = 0
	}
	if same == maxCallsOf || len(p.calls) == maxCalls {
		_ = p.calls[first].conn.Close()
		p.calls = slices.Delete(p.calls, first, first+1)
	}
	p.calls = append(p.calls, call)
}

// answer reads which member a caller wants, and passes the connection to it.
func (p *unicastPort) answer(c *Client, conn net.Conn, from string) {
	defer conn.Close()
	stop := context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(callTime))
	h, err := unicast.ReadHello(conn)
	p.mu.Lock()
	m := p.members[h.Secret]
	p.calls = slices.DeleteFunc(p.calls, func(x unicastCall) bool { return x.conn == conn })
	p.mu.Unlock()
	if err == nil && m == nil {
		err = errStranger
	}
	if err != nil {
		p.strangers.Add(1)
		c.opt.Logger.Warn("a stranger called where senders make unicast connections", "from", from, "why", err)
		return
	}
	addr, err := netip.ParseAddr(m.id.Source)
	if err == nil {
		err = m.unicast.Serve(c.ctx, conn, h, addr)
	}
	c.opt.Logger.Info("a unicast connection has ended", "group", m.id, "error", err)
}

var errStranger = fmt.Errorf("%w: it names no member that is here", ErrDenied)
