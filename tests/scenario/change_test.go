package scenario

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// Receivers leave and join, and either side closes groups.
func TestChange(t *testing.T) {
	everywhere(t, []story{
		{"a receiver leaves", leaves},
		{"all leave", allLeave},
		{"a receiver joins", joins},
		{"a receiver that cannot join", cannotJoin},
		{"closed by both ends", closedByBoth},
		{"closed while something is under way", closedWhileBusy},
		{"closed while daemons are away", closedWhileAway},
		{"the client is closed", clientClosed},
		{"messages", messages},
		{"a message waits for a receive", waitsForReceive},
		{"receives that go back by themselves", replenished},
	})
}

// The switches lose a group, or their whole state; the group continues, by hosts if necessary.
func TestReform(t *testing.T) {
	bySwitches(t, []story{
		{"the switches lose the group", switchLosesGroup},
		{"a switch restarts empty", switchRestarts},
		{"a switch is off for long", switchOff},
	})
}

// TestRequired: switches are required, and cannot take in a receiver. The group goes on without it.
func TestRequired(t *testing.T) {
	bySwitches(t, []story{
		{"switches do not reach a receiver", requiredUnreached},
		{"a receiver has no device", requiredWithoutDevice},
	})
}

// cannotAdd checks that a receiver cannot be added for want of switches, and that the group hardly pauses for that.
func (tm *team) cannotAdd(host, text string) {
	l := tm.l
	l.t.Helper()
	begun := time.Now()
	_, err := tm.g.Add(l.t.Context(), host)
	if !errors.Is(err, mcrdma.ErrNoSwitch) || !strings.Contains(err.Error(), text) {
		l.t.Errorf("%v, want %q", err, text)
	}
	tm.write()
	if took := time.Since(begun); took > 100*time.Millisecond {
		l.t.Errorf("written after %v", took)
	}
	tm.members(len(tm.apps))
}

func requiredUnreached(l *lab, cfg mcrdma.GroupConfig) {
	cfg.Mode = mcrdma.ModeRequire
	tm := l.group(cfg, l.hosts[1])
	tm.write()
	spare := l.hosts[2].receive()
	l.trunk.Cut(true)
	time.Sleep(5 * time.Second)
	tm.cannotAdd("h3", "no route")
	l.trunk.Cut(false)
	time.Sleep(5 * time.Second)
	tm.add("h3")
	spare.accept()
	tm.apps = append(tm.apps, spare)
	tm.write()
	tm.close()
}

func requiredWithoutDevice(l *lab, cfg mcrdma.GroupConfig) {
	cfg.Mode = mcrdma.ModeRequire
	tm := l.group(cfg, l.hosts[1], l.hosts[2])
	tm.write()
	l.hosts[3].runWith(nil).listen(func(*mcrdma.Request) error { return nil })
	tm.cannotAdd("h4", "no RDMA device")
	_, err := tm.sender.client.Create(l.t.Context(), groupTo(cfg, l.hosts[3]))
	l.fails(err, mcrdma.ErrNoSwitch, "h4")
	tm.close()
}

func leaves(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	l.must(tm.apps[0].m.Close())
	begun := time.Now()
	tm.removed(tm.apps[0])
	if took := time.Since(begun); took > 200*time.Millisecond {
		l.t.Errorf("noticed after %v", took)
	}
	tm.write()
	tm.members(2)
	tm.close()
}

func allLeave(l *lab, cfg mcrdma.GroupConfig) {
	cfg.MinSize = 1
	tm := l.group(cfg, l.others()...)
	tm.write()
	var wg sync.WaitGroup
	for _, a := range tm.apps {
		wg.Go(func() { l.must(a.m.Close()) })
	}
	wg.Wait()
	tm.event(mcrdma.EventFailed)
	l.fails(tm.g.Err(), mcrdma.ErrMinSize, "")
	l.noGroups("after all have left")
}

// add adds a host, and returns the cut.
func (tm *team) add(host string) uint64 {
	tm.l.t.Helper()
	cut, err := tm.g.Add(tm.l.t.Context(), host)
	tm.l.must(err)
	return cut
}

func joins(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.hosts[1], l.hosts[2])
	tm.write()
	spare := l.hosts[3].receive()
	cut := tm.add("h4")
	if e := tm.event(mcrdma.EventAdded); e.Host != "h4" || e.Operation != 1 || cut != 1 {
		l.t.Errorf("%+v", e)
	}
	spare.accept()
	tm.apps = append(tm.apps, spare)
	tm.write()
	tm.members(3)
	tm.close()
	_, err := tm.g.Add(l.t.Context(), "h4")
	l.fails(err, mcrdma.ErrClosed, "")
}

func cannotJoin(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.hosts[1], l.hosts[2])
	tm.write()
	_, err := tm.g.Add(l.t.Context(), "h2")
	l.fails(err, because(mcrdmav1.Reason_DUPLICATE_ADDRESS), "")
	_, err = tm.g.Add(l.t.Context(), "missing")
	l.fails(err, because(mcrdmav1.Reason_NO_SUCH_HOST), "")
	for _, c := range []struct {
		change func()
		kind   error
		reason mcrdmav1.Reason
		text   string
	}{
		{func() {}, mcrdma.ErrUnreachable, mcrdmav1.Reason_NO_SERVICE, "listens"},
		{func() { l.hosts[3].run().listen(func(*mcrdma.Request) error { return errors.New("it is full") }) }, mcrdma.ErrDenied, mcrdmav1.Reason_DENIED, "it is full"},
		{l.hosts[3].stop, mcrdma.ErrUnreachable, mcrdmav1.Reason_UNREACHABLE, "refused"},
	} {
		c.change()
		before := tm.g.Info().Formation
		_, err := tm.g.Add(l.t.Context(), "h4")
		if again := tm.g.Info().Formation > before; again != (c.reason != mcrdmav1.Reason_UNREACHABLE) {
			l.t.Errorf("%v: formation %d, before %d: it is formed anew only if the host answers", err, tm.g.Info().Formation, before)
		}
		e, ok := errors.AsType[*mcrdma.Error](err)
		if !ok || !errors.Is(err, c.kind) || e.Reason != c.reason || e.Host != "h4" || !strings.Contains(e.Text, "h4") || !strings.Contains(e.Text, c.text) {
			l.t.Errorf("%v: %+v; want %v and %q", err, e, c.reason, c.text)
		}
	}
	l.hosts[3].start()
	tm.write()
	tm.members(2)
	tm.close()
}

func closedByBoth(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	var wg sync.WaitGroup
	for _, a := range tm.apps {
		wg.Go(func() { l.must(a.m.Close()) })
	}
	wg.Go(func() { _ = tm.g.Close(l.t.Context()) })
	wg.Wait()
	l.noGroups("after both have closed")
}

func closedWhileBusy(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	var ends []error
	for range 20 {
		l.must(tm.g.Submit(l.t.Context(), &mcrdma.Op{Kind: mcrdma.OpWrite, Pieces: []mcrdma.Piece{tm.sender.mem.Slice(0, size)},
			Done: func(op *mcrdma.Op) { ends = append(ends, op.Err) }}))
	}
	tm.close()
	if err := errors.Join(ends...); err != nil || len(ends) != 20 {
		l.t.Errorf("%d ended: %v", len(ends), err)
	}
}

func closedWhileAway(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	for _, h := range l.hosts[:3] {
		h.stop()
	}
	_ = tm.g.Close(l.t.Context())
	for _, h := range l.hosts[:3] {
		h.start()
	}
	for _, a := range tm.apps {
		a.ends(mcrdma.ErrClosed)
	}
}

func clientClosed(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	tm.sender.close()
	for _, a := range tm.apps {
		a.ends(mcrdma.ErrClosed)
	}
	l.noGroups("after the client was closed")
}

func messages(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	const n = 10
	for _, a := range tm.apps {
		for i := range n {
			l.must(a.m.PostRecv(a.mem.Slice(size+i*100, 100)))
		}
	}
	for i := range n {
		copy(tm.sender.mem.Bytes(), []byte{byte(i), 1, 2, 3})
		l.must(tm.g.SendImm(l.t.Context(), uint32(i), tm.sender.mem.Slice(0, 4)))
	}
	for _, a := range tm.apps {
		for i := range n {
			r, err := a.m.Recv(l.t.Context())
			if err != nil || r.Imm != uint32(i) || r.N != 4 || r.Bytes()[0] != byte(i) {
				l.t.Errorf("%s: %+v, %v instead of message %d", a.h.name, r, err, i)
			}
		}
	}
	tm.close()
}

// waitsForReceive: the group waits for receivers' applications, and is not re-formed for that; one
// that is never ready is removed.
func waitsForReceive(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	tm.write()
	late := tm.apps[1]
	for _, patient := range []bool{true, false} {
		p, err := tm.g.Post(l.t.Context(), mcrdma.Op{Kind: mcrdma.OpSend, Pieces: []mcrdma.Piece{tm.sender.mem.Slice(0, 100)}})
		l.must(err)
		for _, a := range tm.apps {
			if a == late && !patient {
				continue
			}
			ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Second)
			l.fails(p.Wait(ctx), context.DeadlineExceeded, "")
			cancel()
			l.must(a.m.PostRecv(a.mem.Slice(size, 100)))
		}
		if !patient {
			tm.removed(late)
			late.ends(mcrdma.ErrRemoved)
		}
		l.must(p.Wait(l.t.Context()))
		for _, a := range tm.apps {
			if r, err := a.m.Recv(l.t.Context()); err != nil || r.N != 100 {
				l.t.Errorf("%s: %+v, %v", a.h.name, r, err)
			}
		}
		if i := tm.g.Info(); patient && i.Formation != 1 {
			l.t.Errorf("formation %d", i.Formation)
		}
	}
	tm.write()
	tm.members(2)
	tm.close()
}

// replenished: two receives are enough for any number of messages; the result of Recv stays valid
// until its next call.
func replenished(l *lab, cfg mcrdma.GroupConfig) {
	tm := &team{l: l, sender: l.hosts[0].run()}
	var wg sync.WaitGroup
	const n = 50
	for _, h := range l.others() {
		a := h.run()
		tm.apps = append(tm.apps, a)
		var err error
		a.l, err = a.client.Listen(l.t.Context(), mcrdma.ListenConfig{Service: "s", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
			return &mcrdma.Grant{Regions: []mcrdma.Piece{a.mem.Slice(0, size)}, Replenish: true,
				Receives: []mcrdma.Piece{a.mem.Slice(size, 4), a.mem.Slice(size+4, 4)}}, nil
		}})
		l.must(err)
	}
	tm.create(groupTo(cfg, l.others()...))
	for _, a := range tm.apps {
		wg.Go(func() {
			for i := range n {
				r, err := a.m.Recv(l.t.Context())
				time.Sleep(time.Duration(i%3) * time.Millisecond)
				if err != nil || r.Bytes()[0] != byte(i) {
					l.t.Errorf("%s: %+v, %v instead of message %d", a.h.name, r, err, i)
					return
				}
			}
		})
	}
	for i := range n {
		tm.sender.mem.Bytes()[i] = byte(i)
		l.must(tm.g.Send(l.t.Context(), tm.sender.mem.Slice(i, 4)))
	}
	wg.Wait()
	tm.close()
}

// keepWriting writes until stop is called, which returns the number of writes.
func (tm *team) keepWriting() (stop func() int) {
	ctx, cancel := context.WithCancel(tm.l.t.Context())
	done := make(chan int, 1)
	tm.l.wg.Go(func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if err := tm.tryWrite(tm.l.t.Context()); err != nil {
				tm.l.t.Errorf("write %d: %v", n, err)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		done <- n
	})
	return func() int {
		cancel()
		return <-done
	}
}

func switchLosesGroup(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	stop := tm.keepWriting()
	time.Sleep(time.Second)
	i := tm.g.Info()
	_, err := mcrdmav1.NewSwitchGroupsClient(l.switches[0].conn).Remove(l.t.Context(),
		&mcrdmav1.RemoveRequest{Key: &mcrdmav1.GroupKey{Source: i.ID.Source, McId: i.MCID}})
	l.must(err)
	l.eventually("another formation by the switches", func() error {
		if i := tm.g.Info(); i.Formation == 1 || i.Path != mcrdma.PathSwitch {
			return errors.New(i.Path.String())
		}
		return nil
	})
	time.Sleep(time.Second)
	stop()
	tm.same()
	tm.members(3)
	tm.close()
}

func switchRestarts(l *lab, cfg mcrdma.GroupConfig) {
	tm := l.group(cfg, l.others()...)
	stop := tm.keepWriting()
	time.Sleep(time.Second)
	for _, n := range l.switches {
		n.stopSwitch()
		n.startSwitch()
		time.Sleep(5 * time.Second)
	}
	stop()
	tm.same()
	tm.write()
	tm.members(3)
	tm.close()
}

func switchOff(l *lab, cfg mcrdma.GroupConfig) {
	cfg.Transport = "tcp" // the other transport also needs the switch
	tm := l.group(cfg, l.others()...)
	tm.write()
	stop := tm.keepWriting()
	l.switches[0].stopSwitch()
	if e := tm.event(mcrdma.EventReformed); e.Before != mcrdma.PathSwitch || e.After != mcrdma.PathRelay {
		l.t.Errorf("%v", e)
	}
	before := tm.g.Info().Stats.Completed
	time.Sleep(10 * time.Second)
	if after := tm.g.Info().Stats.Completed; after < before+100 {
		l.t.Errorf("%d writes in ten seconds", after-before)
	}
	l.switches[0].startSwitch()
	for e := tm.event(mcrdma.EventReformed); e.After != mcrdma.PathSwitch; e = tm.event(mcrdma.EventReformed) {
		l.t.Logf("%v", e)
	}
	time.Sleep(time.Second)
	stop()
	tm.same()
	tm.members(3)
	tm.close()
}
