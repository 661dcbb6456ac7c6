package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A fakeDaemon gives configured answers on a unix socket.
type fakeDaemon struct {
	mcrdmav1.UnimplementedApplicationsServer

	daemon *mcrdmav1.GetDaemonResponse
	list   *mcrdmav1.ListGroupsResponse
	fails  error // of all calls
	hangs  bool

	socket string
}

// serve starts the daemon until the test ends.
func (f *fakeDaemon) serve(t testing.TB) *fakeDaemon {
	t.Helper()
	f.socket = filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", f.socket)
	must(t, err)
	g := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if f.hangs {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if f.fails != nil {
			return nil, f.fails
		}
		return handle(ctx, req)
	}))
	mcrdmav1.RegisterApplicationsServer(g, f)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // before it began
			t.Error(err)
		}
	})
	return f
}

func (f *fakeDaemon) GetDaemon(context.Context, *mcrdmav1.GetDaemonRequest) (*mcrdmav1.GetDaemonResponse, error) {
	return f.daemon, nil
}

func (f *fakeDaemon) ListGroups(context.Context, *mcrdmav1.ListGroupsRequest) (*mcrdmav1.ListGroupsResponse, error) {
	return f.list, nil
}

func (f *fakeDaemon) GetGroup(_ context.Context, r *mcrdmav1.GetGroupRequest) (*mcrdmav1.GetGroupResponse, error) {
	for _, g := range f.list.GetGroups() {
		if proto.Equal(g.GetFormation().GetGroup(), r.GetGroup()) {
			return &mcrdmav1.GetGroupResponse{Group: g}, nil
		}
	}
	return nil, refusal(codes.NotFound, "NOT_FOUND", "there is no such group")
}

// ListDevices returns a device with counters, an application without one, two without routes, and
// one that does not answer.
func (f *fakeDaemon) ListDevices(context.Context, *mcrdmav1.ListDevicesRequest) (*mcrdmav1.ListDevicesResponse, error) {
	var counters []*mcrdmav1.DeviceCounter
	for _, name := range []string{"qps", "rx_drop_qpn", "rx_drop_state", "rx_packets", "tx_errors", "tx_packets", "tx_retransmits"} {
		counters = append(counters, &mcrdmav1.DeviceCounter{Name: name, Value: uint64(10*len(counters)) % 40})
	}
	return &mcrdmav1.ListDevicesResponse{Devices: []*mcrdmav1.DeviceInfo{
		{Program: "osd", Pid: 4711, Device: &mcrdmav1.DeviceCounters{Driver: "softroce", Address: "10.1.0.11", Mtu: 4096, Counters: counters}},
		{Program: "tcp\x1b[2J", Pid: 12, Uid: 4294967294, Device: &mcrdmav1.DeviceCounters{Address: "10.1.0.11"}},
		{Program: "far", Pid: 14, Device: &mcrdmav1.DeviceCounters{Driver: "softroce", Address: "10.1.0.11", Counters: []*mcrdmav1.DeviceCounter{{Name: "tx_drop_no_route", Value: 7}}}},
		{Program: "way", Pid: 15, Device: &mcrdmav1.DeviceCounters{Driver: "softroce", Address: "10.1.0.11", Counters: []*mcrdmav1.DeviceCounter{{Name: "tx_err_unreachable", Value: 1}}}},
		{Program: "old", Pid: 13, Error: "the application has not answered"},
	}}, nil
}

// WatchEvents sends two events, and ends.
func (f *fakeDaemon) WatchEvents(_ *mcrdmav1.WatchEventsRequest, out grpc.ServerStreamingServer[mcrdmav1.WatchEventsResponse]) error {
	at := timestamppb.New(time.Date(2026, 1, 2, 12, 0, 0, 5e6, time.Local))
	for _, e := range []*mcrdmav1.WatchEventsResponse{{Time: at, Kind: "watching", Host: "h1"},
		{Time: at, Kind: "removed", Group: &mcrdmav1.GroupID{Source: "10.1.0.11", Number: 3}, McId: 0x800003, Formation: 2, Address: "10.2.0.12", Host: "h4",
			Program: "osd", Pid: 4711, Text: "its application has ended\x1b[2J"}} {
		if err := out.Send(e); err != nil {
			return err
		}
	}
	return refusal(codes.ResourceExhausted, "LIMIT", "the events came faster than they were read: watch anew")
}

// refusal is an error in the daemon's form.
func refusal(code codes.Code, reason, text string) error {
	s, err := status.New(code, text).WithDetails(&errdetails.ErrorInfo{Domain: "mcrdma", Reason: reason})
	if err != nil {
		return err
	}
	return s.Err()
}

// began is the time that call shows as now.
var began = time.Now()

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(began.Add(-d)) }

// busy is the state of a daemon with two groups and a membership.
func busy(t testing.TB) *fakeDaemon {
	const root = 0
	us := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Microsecond) }
	return (&fakeDaemon{
		daemon: &mcrdmav1.GetDaemonResponse{
			Host: "h1", Address: "10.1.0.11", Device: "softroce:10.1.0.11", Version: "v0.4.0", Started: ago(3*time.Hour + time.Minute),
			Switch: &mcrdmav1.SwitchLink{Name: "torA", Agent: "192.0.2.1:9560", Reachable: true},
			Peers: []*mcrdmav1.PeerLink{
				{Host: "h2", Address: "10.1.0.12", Daemon: "10.1.0.12:9550", State: "ok", RoundTrip: us(210), Shared: 2},
				{Host: "h3", Address: "10.2.0.11", Daemon: "10.2.0.11:9550", State: "down", Error: "connection refused\x1b[2J", Shared: 1},
			},
			Sessions: []*mcrdmav1.SessionInfo{
				{Program: "osd", Uid: root, Pid: 4711, Services: []string{"journal", "bulk"}, Since: ago(2 * time.Hour)},
				{Program: "old", Uid: 4294967294, Pid: 12, Since: ago(5 * time.Minute), Lost: true},
			},
			Groups: 2, Memberships: 1, Problems: []string{"h3: its daemon does not answer"},
			Listen: "10.1.0.11:9550", Tls: "host:h1 until 2027-01-02",
		},
		list: &mcrdmav1.ListGroupsResponse{
			Groups: []*mcrdmav1.GroupInfo{
				{
					Formation: &mcrdmav1.FormationInfo{Group: &mcrdmav1.GroupID{Source: "10.1.0.11", Number: 3}, Formation: 2, Path: mcrdmav1.Path_PATH_SWITCH,
						Why:        []string{"by switches: torA merges, 2 receivers behind torA, torB"},
						Members:    []*mcrdmav1.Member{{Address: "10.1.0.12", Host: "h2", Qpn: 17}, {Address: "10.2.0.11", Host: "h3", Qpn: 18}},
						Connection: &mcrdmav1.Connection{Address: "10.1.0.12", Qpn: 0x800003, Psn: 0xabcdef, Mtu: 1024}, McId: 0x800003,
						Tree:   []string{"h1 ── torA ─┬─ h2", "            └─ torB ── h3"},
						Phases: []*mcrdmav1.PhaseTime{{Phase: "prepare", Took: us(1800)}, {Phase: "install", Took: us(4200)}, {Phase: "total", Took: us(6400)}}},
					Service: "journal", Mode: mcrdmav1.Mode_MODE_AUTO, MinSize: 2, Program: "osd", Uid: root, Pid: 4711, Created: ago(90 * time.Minute),
					Problems: []string{"10.2.0.11 (h3) may be dead: no answer for 600ms"},
					States: []*mcrdmav1.MemberState{
						{Address: "10.1.0.12", Host: "h2", State: "ok", Since: ago(90 * time.Minute)},
						{Address: "10.2.0.11", Host: "h3", State: "silent", Reason: "no answer", Since: ago(200 * time.Millisecond)},
						{Address: "10.2.0.12", Host: "h4", State: "removed", Reason: "its application has ended", Since: ago(10*time.Minute + time.Second)},
					},
				},
				{
					Formation: &mcrdmav1.FormationInfo{Group: &mcrdmav1.GroupID{Source: "10.1.0.11", Number: 4}, Formation: 1, Path: mcrdmav1.Path_PATH_RELAY,
						Why: []string{"by hosts: the application wants it (mode off)"}, Members: []*mcrdmav1.Member{{Address: "10.1.0.12", Host: "h2"}},
						Relay: &mcrdmav1.Relay{Algorithm: "chain", Transport: "tcp", Block: 65536}},
					Service: "bulk", Mode: mcrdmav1.Mode_MODE_OFF, MinSize: 2, Program: "osd", Uid: root, Pid: 4711, Created: ago(time.Minute + time.Second),
				},
			},
			Memberships: []*mcrdmav1.MembershipInfo{{Group: &mcrdmav1.GroupID{Source: "10.1.0.12", Number: 9}, Formation: 1, Service: "journal",
				Sender: "h2", Program: "osd", Uid: root, Pid: 4711, Path: mcrdmav1.Path_PATH_SWITCH, Attach: 7, Since: ago(time.Hour + time.Minute),
				McId: 0x800009, View: 3, Members: []*mcrdmav1.Member{{Address: "10.1.0.11", Host: "h1"}, {Address: "10.2.0.11", Host: "h3"}}}},
		},
	}).serve(t)
}
