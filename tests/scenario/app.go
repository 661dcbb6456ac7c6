package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// size is the size of groups' only region.
const size = 4096

// An app is an application of a host.
type app struct {
	h      *host
	dev    qp.Device // nil: none
	client *mcrdma.Client
	mem    *mcrdma.Memory // of the sender, or the receiver's region and space for messages
	l      *mcrdma.Listener
	m      *mcrdma.Member
}

func (h *host) appProcess() string { return h.name + "/app" }

// run starts the host's application.
func (h *host) run() *app {
	h.l.t.Helper()
	l := h.l
	prefix := netip.PrefixFrom(h.addr, 24)
	link, err := framelink.New(memnet.NIC{Plug: h.cable.Plug(h.side, h.name)}, framelink.Config{Prefix: prefix, Gateway: prefix.Masked().Addr().Next(), MAC: h.mac()})
	l.must(err)
	dev, err := softroce.New(link, softroce.Options{})
	l.must(err)
	return h.runWith(dev)
}

// runWith starts the host's application with a device; nil: without.
func (h *host) runWith(dev qp.Device) *app {
	h.l.t.Helper()
	l := h.l
	l.net.Revive(h.appProcess())
	a := &app{h: h, dev: dev}
	var err error
	a.client, err = mcrdma.Dial(l.t.Context(), mcrdma.Options{Socket: h.socket(), Device: dev, Program: h.name, Logger: l.log(h.appProcess()),
		Dial: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return l.net.Dial(ctx, h.appProcess(), addr)
		},
		Listen: func(_, addr string) (net.Listener, error) { return l.net.Listen(h.appProcess(), addr) }})
	l.must(err)
	a.mem, err = a.client.Alloc(2 * size)
	l.must(err)
	h.app = a
	return a
}

// receive starts the host's application, which listens.
func (h *host) receive() *app {
	h.l.t.Helper()
	a := h.run()
	a.listen(func(*mcrdma.Request) error { return nil })
	return a
}

// listen offers the service; judge decides whether to join a group.
func (a *app) listen(judge func(*mcrdma.Request) error) {
	a.h.l.t.Helper()
	var err error
	a.l, err = a.client.Listen(a.h.l.t.Context(), mcrdma.ListenConfig{Service: "s", Accept: func(r *mcrdma.Request) (*mcrdma.Grant, error) {
		if err := judge(r); err != nil {
			return nil, err
		}
		return &mcrdma.Grant{Regions: []mcrdma.Piece{a.mem.Slice(0, size)}}, nil
	}})
	a.h.l.must(err)
}

// accept accepts the membership of the created group.
func (a *app) accept() {
	a.h.l.t.Helper()
	ctx, cancel := context.WithTimeout(a.h.l.t.Context(), time.Minute)
	defer cancel()
	var err error
	a.m, err = a.l.Accept(ctx)
	a.h.l.must(err)
}

// close ends the application in order.
func (a *app) close() {
	if a.h.app != a {
		return
	}
	a.h.app = nil
	if err := a.client.Close(); err != nil {
		a.h.l.t.Errorf("%s: %v", a.h.name, err)
	}
	if a.dev != nil {
		_ = a.dev.Close()
	}
	a.h.l.net.Kill(a.h.appProcess())
}

// kill ends the application as a crash would. Its connections end first: an application whose
// device is gone would say that it closes its groups.
func (a *app) kill() {
	a.h.l.net.Kill(a.h.appProcess())
	_ = a.dev.Close()
	a.h.app = nil
	a.h.l.wg.Go(func() { _ = a.client.Close() }) // cleanup in this process; no packets get out any more
	synctest.Wait()                              // its daemon knows
}

// A team is a group, its sender and its receivers.
type team struct {
	l      *lab
	g      *mcrdma.Group
	sender *app
	apps   []*app
	writes int
}

// cfg returns the configuration of a group with these hosts.
func groupTo(cfg mcrdma.GroupConfig, hosts ...*host) mcrdma.GroupConfig {
	cfg.Service, cfg.Regions = "s", []mcrdma.Region{{Name: "r", Length: size}}
	for _, h := range hosts {
		cfg.Receivers = append(cfg.Receivers, h.name)
	}
	return cfg
}

// group makes the first host create a group with others, whose applications it starts.
func (l *lab) group(cfg mcrdma.GroupConfig, to ...*host) *team {
	l.t.Helper()
	tm := &team{l: l}
	for _, h := range to {
		tm.apps = append(tm.apps, h.receive())
	}
	tm.sender = l.hosts[0].run()
	tm.create(groupTo(cfg, to...))
	return tm
}

func (tm *team) create(cfg mcrdma.GroupConfig) {
	tm.l.t.Helper()
	var err error
	tm.g, err = tm.sender.client.Create(tm.l.t.Context(), cfg)
	tm.l.must(err)
	for _, a := range tm.apps {
		a.accept()
	}
}

// others returns all hosts except the first.
func (l *lab) others() []*host { return l.hosts[1:] }

// write writes new bytes to all receivers, and checks that they have them.
func (tm *team) write() {
	tm.l.t.Helper()
	ctx, cancel := context.WithTimeout(tm.l.t.Context(), time.Minute)
	defer cancel()
	tm.l.must(tm.tryWrite(ctx))
	tm.same()
}

func (tm *team) tryWrite(ctx context.Context) error {
	tm.writes++
	copy(tm.sender.mem.Bytes()[:size], bytes.Repeat(fmt.Appendf(nil, "write %3d ", tm.writes), size/10))
	return tm.g.Write(ctx, mcrdma.At{}, tm.sender.mem.Slice(0, size))
}

// same checks that the receivers have the last written bytes.
func (tm *team) same() {
	tm.l.t.Helper()
	for _, a := range tm.apps {
		if !bytes.Equal(a.m.Region(0), tm.sender.mem.Bytes()[:size]) {
			tm.l.t.Errorf("%s does not have write %d: %.20q (%v)", a.h.name, tm.writes, a.m.Region(0), a.m.Err())
		}
		a.m.Region(0) // for the race detector: later writes come after this
	}
}

// without removes a receiver from those that must have what is written.
func (tm *team) without(a *app) {
	for i, b := range tm.apps {
		if a == b {
			tm.apps = append(tm.apps[:i:i], tm.apps[i+1:]...)
			return
		}
	}
}

// close makes the sender close the group; all receivers must get that end.
func (tm *team) close() {
	tm.l.t.Helper()
	if err := tm.g.Close(tm.l.t.Context()); err != nil {
		tm.l.t.Errorf("closing: %v", err)
	}
	for _, a := range tm.apps {
		a.ends(mcrdma.ErrClosed)
	}
}

// ends checks that a membership has ended for one of these reasons.
func (a *app) ends(want ...error) {
	a.h.l.t.Helper()
	ctx, cancel := context.WithTimeout(a.h.l.t.Context(), 2*time.Minute)
	defer cancel()
	_, err := a.m.Recv(ctx)
	if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		a.h.l.t.Errorf("%s: its membership ended with %v, want %v", a.h.name, err, want)
	}
}

// event waits for an event of the group.
func (tm *team) event(typ mcrdma.EventType) mcrdma.Event {
	tm.l.t.Helper()
	return tm.l.event(tm.g.Events(), typ)
}

func (l *lab) event(c <-chan mcrdma.Event, typ mcrdma.EventType) mcrdma.Event {
	l.t.Helper()
	late := time.After(2 * time.Minute)
	var seen []string
	for {
		select {
		case e, ok := <-c:
			if ok && e.Type == typ {
				return e
			}
			if !ok {
				l.t.Fatalf("no more events, and no %v; there were %q", typ, seen)
			}
			seen = append(seen, e.String())
		case <-late:
			l.t.Fatalf("no %v; there were %q", typ, seen)
		}
	}
}
