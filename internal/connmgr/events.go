package connmgr

import (
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
)

// A happening is an event for watchers of the daemon.
type happening struct {
	owner machine.Owner // the application that it concerns; no token: all
	*mcrdmav1.WatchEventsResponse
}

// happened sends an event to the watchers.
func (w *watched) happened(owner machine.Owner, e *mcrdmav1.WatchEventsResponse) {
	e.Time, e.Program, e.Pid = timestamppb.Now(), owner.Program, owner.PID
	w.events.Tell(happening{owner, e})
}

// happened sends an event of a group, or of a receiver in it, to the watchers.
func (g *group) happened(kind string, receiver netip.Addr, host, text string) {
	e := &mcrdmav1.WatchEventsResponse{Kind: kind, Group: g.id.proto(), Host: host, Text: text}
	if f := g.form(); f != nil {
		e.McId, e.Formation = f.MCID, f.N
	}
	if receiver.IsValid() {
		e.Address = receiver.String()
	}
	g.m.watched.happened(g.sess.record(), e)
}

// noticed tells watchers and the group's application what is known of a receiver's host.
func (g *group) noticed(f *formation, t mcrdmav1.GroupChanged_Type, kind string, r *machine.Receiver, text string) {
	g.happened(kind, r.Addr, r.Host, text)
	g.sess.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_GroupChanged{GroupChanged: &mcrdmav1.GroupChanged{
		Group: g.id.proto(), Type: t, Formation: f.N, Address: r.Addr.String(), Host: r.Host, Text: r.Host + ": " + text}}})
}

func (a *appsServer) WatchEvents(_ *mcrdmav1.WatchEventsRequest, out grpc.ServerStreamingServer[mcrdmav1.WatchEventsResponse]) error {
	m, ctx := a.m, out.Context()
	u := userOf(ctx)
	w, end := m.watched.events.Watch(func(e happening) bool { return e.owner.Token == "" || u.May(e.owner.UID) })
	defer end()
	err := out.Send(&mcrdmav1.WatchEventsResponse{Time: timestamppb.New(time.Now()), Kind: "watching", Host: m.cfg.Name})
	for err == nil {
		select {
		case e, ok := <-w.Events:
			if !ok {
				return failure.New(mcrdmav1.Reason_LIMIT, "the events came faster than they were read: watch anew")
			}
			err = out.Send(e.WatchEventsResponse)
		case <-ctx.Done():
			return ctx.Err()
		case <-m.life.Done():
			return failure.New(mcrdmav1.Reason_UNREACHABLE, "the daemon is being stopped")
		}
	}
	return err
}
