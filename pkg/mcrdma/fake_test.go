package mcrdma

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	errinfo "github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

func TestMain(m *testing.M) {
	testenv.OneProcessor()
	goleak.VerifyTestMain(m)
}

// A world is the daemons of several hosts, as far as applications can see them. What it
// calls a path by switches is a direct connection, so it is for one receiver.
type world struct {
	t      testing.TB
	net    *memnet.Network
	hub    memnet.Hub
	device string // pattern of its name

	mu        sync.Mutex
	hosts     map[string]*fakeDaemon // by address
	groups    map[uint64]*fakeGroup
	number    uint64
	attach    uint64
	waiting   map[uint64]chan *mcrdmav1.AnswerAttachRequest
	relay     bool          // prefer hosts
	noDevice  bool          // hosts have no device
	packets   uint32        // that the switches take; 0: they do not say
	haveLie   uint64        // added to what formations say
	grace     time.Duration // 0: a minute
	stalls    atomic.Int64
	suspects  []string      // of a stall
	client    *Client       // that sees it
	early     string        // if not empty, an event that comes before the answer of CreateGroup
	lost      func()        // if not nil, called when a group or an offer is there; then the answer of CreateGroup or Listen waits for the end of the call
	hold      chan struct{} // if not nil, forming waits for it to be closed
	bootstrap string
	views     bool // the daemons count views
}

// worlds counts, so that each has addresses of its own.
var worlds atomic.Int32

type fakeDaemon struct {
	mcrdmav1.UnimplementedApplicationsServer
	w       *world
	address string
	socket  string
	version uint32

	mu       sync.Mutex
	srv      *grpc.Server
	session  *fakeSession // of the one application
	tokens   int
	services map[string]bool
	left     []string                  // reasons
	resumed  []uint64                  // attaches
	refuse   func(attach uint64) error // of ResumeMember, if not nil
	holds    bool
	held     [][]byte // frames
	counters chan *mcrdmav1.AnswerCountersRequest
}

type fakeSession struct {
	token  string
	events chan *mcrdmav1.OpenResponse
	gone   chan struct{}
}

type fakeGroup struct {
	id        *mcrdmav1.GroupID
	source    *fakeDaemon
	req       *mcrdmav1.CreateGroupRequest
	formation uint32
	mcID      uint32
	members   []*fakeMember
	gone      map[string]bool // addresses
	info      *mcrdmav1.FormationInfo
	closed    bool
	view      uint32
	acked     []uint32 // views
	regions   []*mcrdmav1.RegionSpec
}

type fakeMember struct {
	d      *fakeDaemon
	attach uint64
	answer *mcrdmav1.AnswerAttachRequest
}

// newWorld starts the daemons of n hosts with devices in memory.
func newWorld(t testing.TB, n int) (*world, []*fakeDaemon) {
	t.Helper()
	return newWorldOn(t, n, "10.%d.%d.%d", "memory:%s")
}

// newWorldOn starts the daemons of n hosts; address and device are patterns.
func newWorldOn(t testing.TB, n int, address, device string) (*world, []*fakeDaemon) {
	t.Helper()
	w := &world{t: t, device: device, net: memnet.New(), hosts: map[string]*fakeDaemon{}, groups: map[uint64]*fakeGroup{}, waiting: map[uint64]chan *mcrdmav1.AnswerAttachRequest{}}
	t.Cleanup(w.hub.Close)
	number := worlds.Add(1)
	var list []*fakeDaemon
	for i := range n {
		d := &fakeDaemon{w: w, address: fmt.Sprintf(address, 160+number>>8, number&255, i+1), socket: filepath.Join(t.TempDir(), "s"),
			version: protocolVersion, services: map[string]bool{}, counters: make(chan *mcrdmav1.AnswerCountersRequest, 1)}
		w.hosts[d.address] = d
		list = append(list, d)
		devices.Store(d.address, d)
		t.Cleanup(func() { devices.Delete(d.address) })
		d.start()
		t.Cleanup(d.stop)
	}
	return w, list
}

func (d *fakeDaemon) start() {
	l, err := d.w.net.Listen(d.address+"/daemon", d.socket)
	if err != nil {
		d.w.t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.srv = grpc.NewServer()
	mcrdmav1.RegisterApplicationsServer(d.srv, d)
	go func(s *grpc.Server) { _ = s.Serve(l) }(d.srv)
}

func (d *fakeDaemon) stop() {
	d.mu.Lock()
	srv := d.srv
	d.mu.Unlock()
	srv.Stop()
}

// options are those of a client in memory.
func (d *fakeDaemon) options() Options {
	process := d.address + "/app"
	return Options{Socket: d.socket,
		Dial:   func(ctx context.Context, _, addr string) (net.Conn, error) { return d.w.net.Dial(ctx, process, addr) },
		Listen: func(_, addr string) (net.Listener, error) { return d.w.net.Listen(process, addr) }}
}

// devices are the daemons whose devices the driver "memory" opens, by address.
var devices sync.Map

func init() {
	qp.Register("memory", func(addr string) (qp.Device, error) {
		d, ok := devices.Load(addr)
		if !ok {
			return nil, fmt.Errorf("no host %s", addr)
		}
		c := memnet.NewCable()
		d.(*fakeDaemon).w.hub.Attach(c)
		link, err := framelink.New(holdingNIC{memnet.NIC{Plug: c.Plug(1, addr)}, d.(*fakeDaemon)}, framelink.Config{Prefix: netip.PrefixFrom(netip.MustParseAddr(addr), 24)})
		if err != nil {
			return nil, err
		}
		return softroce.New(link, softroce.Options{})
	}, nil)
}

// A holdingNIC is behind a switch that holds frames back as long as the daemon's world wants.
type holdingNIC struct {
	memnet.NIC
	d *fakeDaemon
}

func (n holdingNIC) Recv(frames [][]byte) (int, error) {
	for {
		got, err := n.NIC.Recv(frames)
		n.d.mu.Lock()
		holds := n.d.holds
		if holds {
			for _, f := range frames[:got] {
				n.d.held = append(n.d.held, bytes.Clone(f))
			}
		}
		n.d.mu.Unlock()
		if err != nil || !holds {
			return got, err
		}
	}
}

// hold holds back what comes to the host, or lets through what comes from now on.
func (d *fakeDaemon) hold(on bool) {
	d.mu.Lock()
	d.holds = on
	d.mu.Unlock()
	d.w.net.Silence(d.address, on)
}

// release delivers the frames that were held back.
func (d *fakeDaemon) release() (n int) {
	c := memnet.NewCable()
	d.w.hub.Attach(c)
	p := c.Plug(1, "late")
	d.mu.Lock()
	held := d.held
	d.mu.Unlock()
	for _, f := range held {
		_ = memnet.NIC{Plug: p}.Send([][]byte{f})
		time.Sleep(time.Millisecond)
	}
	_ = p.Close()
	return len(held)
}

// client dials the daemon.
func (d *fakeDaemon) client() *Client {
	d.w.t.Helper()
	c, err := Dial(d.w.t.Context(), d.options())
	if err != nil {
		d.w.t.Fatal(err)
	}
	d.w.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			d.w.t.Error(err)
		}
	})
	return c
}

func fail(code codes.Code, reason, format string, args ...any) error {
	s, err := status.Newf(code, format, args...).WithDetails(&errdetails.ErrorInfo{Domain: errinfo.Domain, Reason: reason,
		Metadata: map[string]string{"host": "somewhere"}})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func (d *fakeDaemon) Open(req *mcrdmav1.OpenRequest, stream grpc.ServerStreamingServer[mcrdmav1.OpenResponse]) error {
	d.mu.Lock()
	s := d.session
	resumed := s != nil && req.GetToken() == s.token
	if !resumed {
		d.tokens++
		s = &fakeSession{token: fmt.Sprint(d.address, " ", d.tokens)}
	} else {
		s = &fakeSession{token: s.token}
	}
	s.events, s.gone = make(chan *mcrdmav1.OpenResponse, 1000), make(chan struct{})
	d.session = s
	d.mu.Unlock()
	hello := &mcrdmav1.Hello{Token: s.token, Host: "host-" + d.address, Address: d.address, Device: fmt.Sprintf(d.w.device, d.address),
		Version: d.version, Bootstrap: cmp.Or(d.w.bootstrap, d.address), Grace: durationpb.New(cmp.Or(d.w.grace, time.Minute)), Resumed: resumed}
	if d.w.noDevice {
		hello.Device = "nothing:"
	}
	if err := stream.Send(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_Hello{Hello: hello}}); err != nil {
		return err
	}
	defer close(s.gone)
	for {
		select {
		case e := <-s.events:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// push sends an event to the application, if it is there.
func (d *fakeDaemon) push(e *mcrdmav1.OpenResponse) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session == nil {
		return false
	}
	select {
	case <-d.session.gone:
		return false
	case d.session.events <- e:
		return true
	}
}

func (d *fakeDaemon) Listen(ctx context.Context, req *mcrdmav1.ListenRequest) (*mcrdmav1.ListenResponse, error) {
	if req.GetService() == "taken" {
		return nil, fail(codes.AlreadyExists, "LIMIT", "another application has it")
	}
	d.mu.Lock()
	d.services[req.GetService()] = true
	d.mu.Unlock()
	if d.w.lost != nil {
		d.w.lost()
		<-ctx.Done()
	}
	return &mcrdmav1.ListenResponse{}, nil
}

func (d *fakeDaemon) Unlisten(_ context.Context, req *mcrdmav1.UnlistenRequest) (*mcrdmav1.UnlistenResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.services, req.GetService())
	return &mcrdmav1.UnlistenResponse{}, nil
}

func (d *fakeDaemon) AnswerCounters(_ context.Context, req *mcrdmav1.AnswerCountersRequest) (*mcrdmav1.AnswerCountersResponse, error) {
	d.counters <- req
	return &mcrdmav1.AnswerCountersResponse{}, nil
}

func (d *fakeDaemon) AnswerAttach(_ context.Context, req *mcrdmav1.AnswerAttachRequest) (*mcrdmav1.AnswerAttachResponse, error) {
	d.w.mu.Lock()
	c := d.w.waiting[req.GetAttach()]
	delete(d.w.waiting, req.GetAttach())
	d.w.mu.Unlock()
	if c == nil {
		return nil, fail(codes.NotFound, "NOT_FOUND", "no such attach")
	}
	c <- req
	return &mcrdmav1.AnswerAttachResponse{}, nil
}

func (d *fakeDaemon) CreateGroup(ctx context.Context, req *mcrdmav1.CreateGroupRequest) (*mcrdmav1.CreateGroupResponse, error) {
	w := d.w
	w.mu.Lock()
	w.number++
	g := &fakeGroup{id: &mcrdmav1.GroupID{Source: d.address, Number: w.number}, source: d, req: req, gone: map[string]bool{}}
	w.groups[w.number] = g
	w.mu.Unlock()
	for i, r := range req.GetRegions() {
		g.regions = append(g.regions, &mcrdmav1.RegionSpec{Name: r.GetName(), Length: r.GetLength(), Rkey: uint32(i + 1), Va: uint64(i+1) << 40})
	}
	if err := w.form(ctx, g, req.GetForming(), req.GetReceivers(), nil, true); err != nil {
		w.mu.Lock()
		delete(w.groups, g.id.GetNumber())
		w.mu.Unlock()
		return nil, err
	}
	if w.lost != nil {
		w.lost()
		<-ctx.Done()
		w.changed(g, mcrdmav1.GroupChanged_TYPE_CREATED, "", "")
	}
	if w.early != "" {
		w.changed(g, mcrdmav1.GroupChanged_TYPE_ROUTE, "", w.early)
		eventually(w.t, "the client has it", func() bool {
			w.client.mu.Lock()
			defer w.client.mu.Unlock()
			return len(w.client.orphans) > 0
		})
	}
	return &mcrdmav1.CreateGroupResponse{Formation: g.info, Regions: g.regions, MinSize: max(1, req.GetMinSize())}, nil
}

// form makes a formation. All receivers have to be there if strict.
func (w *world) form(ctx context.Context, g *fakeGroup, f *mcrdmav1.Forming, receivers []string, previous []*fakeMember, strict bool) error {
	w.mu.Lock()
	g.formation++
	g.mcID = 0x800000 + uint32(g.id.GetNumber())<<8 + g.formation
	formation, hold := g.formation, w.hold
	w.mu.Unlock()
	direct := len(receivers) == 1 && !w.relay && g.req.GetMode() != mcrdmav1.Mode_MODE_OFF && f.GetQpn() != 0 && !f.GetCatchUp()
	conn := &mcrdmav1.Connection{Address: g.source.address, Qpn: f.GetQpn(), Psn: 0xfffff0 + formation, Mtu: cmp.Or(g.req.GetMtu(), 1024), Dscp: g.req.GetDscp()}
	if !direct {
		conn = nil
	}
	var members []*fakeMember
	abort := func(err error) error {
		for _, m := range members {
			m.detach(mcrdmav1.Detached_REASON_ABORTED, "the formation was not made")
		}
		return err
	}
	for _, r := range receivers {
		d := w.hosts[r]
		if d == nil {
			return abort(fail(codes.NotFound, "NO_SUCH_HOST", "no host %s", r))
		}
		m, err := w.prepare(ctx, g, d, conn, formation)
		if err != nil {
			if strict {
				return abort(err)
			}
			continue
		}
		members = append(members, m)
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return abort(ctx.Err())
		}
	}
	if len(members)+1 < int(max(g.req.GetMinSize(), 2)) {
		w.changed(g, mcrdmav1.GroupChanged_TYPE_FAILED, "", "too few receivers are left")
		return abort(fail(codes.FailedPrecondition, "MIN_SIZE", "too few receivers are left"))
	}
	w.settle(g, f, members, conn)
	for _, m := range previous {
		m.detach(mcrdmav1.Detached_REASON_REFORMED, "")
	}
	for _, m := range members {
		m.d.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_AttachFormed{
			AttachFormed: &mcrdmav1.AttachFormed{Attach: m.attach, Formation: g.info}}})
	}
	return nil
}

// settle fills in the formation.
func (w *world) settle(g *fakeGroup, f *mcrdmav1.Forming, members []*fakeMember, conn *mcrdmav1.Connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	info := &mcrdmav1.FormationInfo{Group: g.id, Formation: g.formation, McId: g.mcID, Have: f.GetSent(), Why: []string{"because"}}
	r := &mcrdmav1.Relay{Algorithm: cmp.Or(g.req.GetAlgorithm(), "binomial-pipeline"), Transport: cmp.Or(g.req.GetTransport(), "tcp"), Block: 64 << 10,
		Bootstrap: []string{f.GetBootstrap()}, Group: g.id.GetNumber()}
	for _, m := range members {
		info.Members = append(info.Members, &mcrdmav1.Member{Address: m.d.address, Host: "host-" + m.d.address, Qpn: m.answer.GetQpn(), Have: m.answer.GetHave(),
			Unicast: m.answer.GetUnicast()})
		info.Have = min(info.GetHave(), m.answer.GetHave())
		r.Bootstrap = append(r.Bootstrap, m.answer.GetBootstrap())
	}
	info.Have += w.haveLie
	if w.views {
		g.view++
		info.View = g.view
	}
	if conn != nil {
		a := members[0].answer
		info.Path = mcrdmav1.Path_PATH_SWITCH
		info.Connection = &mcrdmav1.Connection{Address: members[0].d.address, Qpn: a.GetQpn(), Psn: conn.GetPsn(), Mtu: conn.GetMtu(), Dscp: conn.GetDscp(), MaxPackets: w.packets}
		for i, r := range a.GetRegions() {
			g.regions[i].Rkey, g.regions[i].Va = r.GetRkey(), r.GetVa()
		}
	} else {
		info.Path, info.Relay = mcrdmav1.Path_PATH_RELAY, r
	}
	g.info, g.members = info, members
}

// prepare asks one receiver.
func (w *world) prepare(ctx context.Context, g *fakeGroup, d *fakeDaemon, conn *mcrdmav1.Connection, formation uint32) (*fakeMember, error) {
	w.mu.Lock()
	w.attach++
	m := &fakeMember{d: d, attach: w.attach}
	answer := make(chan *mcrdmav1.AnswerAttachRequest, 1)
	w.waiting[m.attach] = answer
	var regions []*mcrdmav1.RegionSpec
	for _, r := range g.regions {
		regions = append(regions, &mcrdmav1.RegionSpec{Name: r.GetName(), Length: r.GetLength(), Rkey: r.GetRkey(), Va: r.GetVa()})
	}
	w.mu.Unlock()
	there := d.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_AttachRequested{AttachRequested: &mcrdmav1.AttachRequested{
		Attach: m.attach, Service: g.req.GetService(), Group: g.id, Formation: formation, Sender: "host-" + g.source.address,
		SenderProgram: "test", Connection: conn, Regions: regions, Relay: g.req.GetMode() != mcrdmav1.Mode_MODE_REQUIRE}}})
	if !there {
		return nil, fail(codes.Unavailable, "UNREACHABLE", "no application at %s", d.address)
	}
	d.mu.Lock()
	gone := d.session.gone
	d.mu.Unlock()
	select {
	case m.answer = <-answer:
	case <-gone:
		return nil, fail(codes.Unavailable, "UNREACHABLE", "no application at %s any more", d.address)
	case <-ctx.Done():
		w.mu.Lock()
		delete(w.waiting, m.attach)
		w.mu.Unlock()
		m.detach(mcrdmav1.Detached_REASON_ABORTED, "the creation was given up")
		return nil, ctx.Err()
	}
	if text := m.answer.GetRefused(); text != "" {
		return nil, fail(codes.PermissionDenied, cmp.Or(m.answer.GetReason(), "DENIED"), "%s", text)
	}
	return m, nil
}

func (m *fakeMember) detach(reason mcrdmav1.Detached_Reason, text string) {
	m.d.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_Detached{Detached: &mcrdmav1.Detached{Attach: m.attach, Reason: reason, Text: text}}})
}

func (w *world) group(id *mcrdmav1.GroupID) *fakeGroup {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.groups[id.GetNumber()]
}

func (w *world) changed(g *fakeGroup, typ mcrdmav1.GroupChanged_Type, address, text string) {
	w.mu.Lock()
	formation := g.formation
	w.mu.Unlock()
	g.source.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_GroupChanged{GroupChanged: &mcrdmav1.GroupChanged{
		Group: g.id, Formation: formation, Type: typ, Address: address, Host: "host-" + address, Text: text}}})
}

func (d *fakeDaemon) ReformGroup(ctx context.Context, req *mcrdmav1.ReformGroupRequest) (*mcrdmav1.ReformGroupResponse, error) {
	g := d.w.group(req.GetGroup())
	if g == nil {
		return nil, fail(codes.NotFound, "NOT_FOUND", "no such group")
	}
	d.w.mu.Lock()
	stale := req.GetFormation() != g.formation
	previous := g.members
	var receivers []string
	for _, m := range previous {
		if !g.gone[m.d.address] { // a suspect that is well stays
			receivers = append(receivers, m.d.address)
		}
	}
	d.w.mu.Unlock()
	if stale {
		return nil, fail(codes.Aborted, "STALE", "formation %d is not the present one", req.GetFormation())
	}
	if err := d.w.form(ctx, g, req.GetForming(), receivers, previous, false); err != nil {
		return nil, err
	}
	return &mcrdmav1.ReformGroupResponse{Formation: g.info}, nil
}

func (d *fakeDaemon) AckView(_ context.Context, req *mcrdmav1.AckViewRequest) (*mcrdmav1.AckViewResponse, error) {
	g := d.w.group(req.GetGroup())
	if g == nil {
		return nil, fail(codes.NotFound, "NOT_FOUND", "no such group")
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	g.acked = append(g.acked, req.GetView())
	return &mcrdmav1.AckViewResponse{}, nil
}

// tellView begins a removal: the next view has only these members.
func (w *world) tellView(g *fakeGroup, left ...string) {
	w.mu.Lock()
	g.view++
	e := &mcrdmav1.GroupChanged{Group: g.id, Formation: g.formation, Type: mcrdmav1.GroupChanged_TYPE_VIEW, View: g.view, Members: left}
	w.mu.Unlock()
	g.source.push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_GroupChanged{GroupChanged: e}})
}

// acks returns the views that the application has acknowledged.
func (w *world) acks(g *fakeGroup) []uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(g.acked)
}

func (d *fakeDaemon) CloseGroup(_ context.Context, req *mcrdmav1.CloseGroupRequest) (*mcrdmav1.CloseGroupResponse, error) {
	g := d.w.group(req.GetGroup())
	if g == nil {
		return &mcrdmav1.CloseGroupResponse{}, nil
	}
	d.w.mu.Lock()
	g.closed = true
	members := g.members
	delete(d.w.groups, g.id.GetNumber())
	d.w.mu.Unlock()
	for _, m := range members {
		m.detach(mcrdmav1.Detached_REASON_CLOSED, "")
	}
	return &mcrdmav1.CloseGroupResponse{}, nil
}

func (d *fakeDaemon) ReportStall(context.Context, *mcrdmav1.ReportStallRequest) (*mcrdmav1.ReportStallResponse, error) {
	d.w.stalls.Add(1)
	return &mcrdmav1.ReportStallResponse{Suspects: d.w.suspects}, nil
}

func (d *fakeDaemon) Leave(_ context.Context, req *mcrdmav1.LeaveRequest) (*mcrdmav1.LeaveResponse, error) {
	d.mu.Lock()
	d.left = append(d.left, req.GetReason())
	d.mu.Unlock()
	w := d.w
	w.mu.Lock()
	var left []*fakeGroup
	for _, g := range w.groups {
		for _, m := range g.members {
			if m.attach == req.GetAttach() {
				g.gone[d.address] = true
				left = append(left, g)
			}
		}
	}
	w.mu.Unlock()
	for _, g := range left {
		w.changed(g, mcrdmav1.GroupChanged_TYPE_REMOVED, d.address, req.GetReason())
		w.changed(g, mcrdmav1.GroupChanged_TYPE_REFORM, "", req.GetReason())
	}
	return &mcrdmav1.LeaveResponse{}, nil
}

func (d *fakeDaemon) ResumeGroup(_ context.Context, req *mcrdmav1.ResumeGroupRequest) (*mcrdmav1.ResumeGroupResponse, error) {
	g := d.w.group(req.GetGroup())
	if g == nil {
		return nil, fail(codes.NotFound, "NOT_FOUND", "no such group")
	}
	return &mcrdmav1.ResumeGroupResponse{Formation: g.info}, nil
}

func (d *fakeDaemon) ResumeMember(_ context.Context, req *mcrdmav1.ResumeMemberRequest) (*mcrdmav1.ResumeMemberResponse, error) {
	d.mu.Lock()
	d.resumed = append(d.resumed, req.GetAttach())
	refuse := d.refuse
	d.mu.Unlock()
	if refuse != nil {
		if err := refuse(req.GetAttach()); err != nil {
			return nil, err
		}
	}
	g := d.w.group(req.GetGroup())
	if g == nil {
		return nil, fail(codes.NotFound, "NOT_FOUND", "no such group")
	}
	return &mcrdmav1.ResumeMemberResponse{}, nil
}
