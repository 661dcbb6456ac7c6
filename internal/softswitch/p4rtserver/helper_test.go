package p4rtserver

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

//go:embed testdata/entities.json
var entitiesJSON []byte

//go:embed testdata/entities.p4info.txtpb
var entitiesInfo []byte

const (
	device  = 3
	cpuPort = 510
)

// a bench is a Target without ports: packets are processed when a test says so,
// and time passes when it says so.
type bench struct {
	mu       sync.Mutex
	p        *pipeline.Pipeline
	e        *pre.Engine
	now      time.Duration
	loads    int
	dos      int
	injected [][]byte
	refuse   error
	packetIn func([]byte)
	digests  func([]pipeline.Digest)
	idle     func([]pipeline.Expired)
}

func (b *bench) CPUPort() uint16 { return cpuPort }

func (b *bench) Do(f func(*pipeline.Pipeline, *pre.Engine)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dos++
	f(b.p, b.e)
}

func (b *bench) Load(p *pipeline.Pipeline, e *pre.Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.p, b.e = p, e
	b.loads++
}

func (b *bench) NewPipeline(prog *program.Program) (*pipeline.Pipeline, *pre.Engine, error) {
	e := pre.New(pre.Limits{Groups: 100, Replicas: 1000})
	p, err := pipeline.New(prog, pipeline.Options{PRE: e})
	return p, e, err
}

func (b *bench) Inject(frame []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return b.refuse
	}
	b.injected = append(b.injected, frame)
	return nil
}

func (b *bench) Subscribe(packetIn func([]byte), digests func([]pipeline.Digest), idle func([]pipeline.Expired)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.packetIn, b.digests, b.idle = packetIn, digests, idle
}

func (b *bench) Now() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// pass lets time pass and reports what has become idle.
func (b *bench) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now += d
	if list := b.p.Expired(b.now); len(list) > 0 {
		b.idle(list)
	}
}

// process takes a frame through the pipeline, and returns where copies left.
func (b *bench) process(port uint16, frame []byte) map[uint16][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[uint16][]byte{}
	b.p.Process(b.now, port, frame, func(port uint16, frame []byte) {
		if port == cpuPort {
			b.packetIn(frame)
		}
		out[port] = append([]byte(nil), frame...)
	})
	if list := b.p.TakeDigests(); len(list) > 0 {
		b.digests(list)
	}
	return out
}

// a rig is a server with a client.
type rig struct {
	t      testing.TB
	bench  *bench
	server *Server
	conn   *grpc.ClientConn
	client p4.P4RuntimeClient
	info   *p4cfg.P4Info
	ids    map[string]uint32
	closed chan struct{}
}

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	o.DeviceID = device
	r := &rig{t: t, bench: &bench{}, closed: make(chan struct{})}
	r.server = New(r.bench, o)
	g := grpc.NewServer(ServerOptions()...)
	r.server.Register(g)
	l := bufconn.Listen(1 << 20)
	go func() {
		defer close(r.closed)
		_ = g.Serve(l)
	}()
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(inTime),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	r.conn, r.client = conn, p4.NewP4RuntimeClient(conn)
	t.Cleanup(func() {
		r.server.Close()
		stopped := make(chan struct{})
		go func() { g.GracefulStop(); close(stopped) }()
		select {
		case <-stopped:
		case <-time.After(10 * time.Second):
			t.Error("GracefulStop hangs")
			g.Stop()
		}
		<-r.closed
		conn.Close()
		l.Close()
	})
	r.info = parseInfo(t, entitiesInfo)
	r.ids = idsOf(r.info)
	return r
}

// inTime bounds calls, so that one that hangs fails its test.
func inTime(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return call(ctx, method, req, reply, cc, opts...)
}

func parseInfo(t testing.TB, text []byte) *p4cfg.P4Info {
	t.Helper()
	info := &p4cfg.P4Info{}
	if err := prototext.Unmarshal(text, info); err != nil {
		t.Fatal(err)
	}
	return info
}

// idsOf returns all ids of a P4Info by name.
func idsOf(info *p4cfg.P4Info) map[string]uint32 {
	ids := map[string]uint32{}
	put := func(p *p4cfg.Preamble) { ids[p.GetName()] = p.GetId() }
	for _, x := range info.GetTables() {
		put(x.GetPreamble())
	}
	for _, x := range info.GetActions() {
		put(x.GetPreamble())
	}
	for _, x := range info.GetActionProfiles() {
		put(x.GetPreamble())
	}
	for _, x := range info.GetCounters() {
		put(x.GetPreamble())
	}
	for _, x := range info.GetMeters() {
		put(x.GetPreamble())
	}
	for _, x := range info.GetRegisters() {
		put(x.GetPreamble())
	}
	for _, x := range info.GetValueSets() {
		put(x.GetPreamble())
	}
	for _, x := range info.GetDigests() {
		put(x.GetPreamble())
	}
	return ids
}

// ready is a rig with a primary (election id 1) and a pipeline.
func ready(t testing.TB) (*rig, *session) {
	t.Helper()
	r := newRig(t, Options{})
	s := r.open(1)
	s.expectArbitration(codes.OK, 1)
	r.set(p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, r.config())
	return r, s
}

func (r *rig) config() *p4.ForwardingPipelineConfig {
	return &p4.ForwardingPipelineConfig{
		P4Info:         proto.CloneOf(r.info),
		P4DeviceConfig: entitiesJSON,
		Cookie:         &p4.ForwardingPipelineConfig_Cookie{Cookie: 77},
	}
}

func (r *rig) trySet(a p4.SetForwardingPipelineConfigRequest_Action, c *p4.ForwardingPipelineConfig) error {
	_, err := r.client.SetForwardingPipelineConfig(r.t.Context(), &p4.SetForwardingPipelineConfigRequest{
		DeviceId: device, ElectionId: &p4.Uint128{Low: 1}, Action: a, Config: c,
	})
	return err
}

func (r *rig) set(a p4.SetForwardingPipelineConfigRequest_Action, c *p4.ForwardingPipelineConfig) {
	r.t.Helper()
	if err := r.trySet(a, c); err != nil {
		r.t.Fatal(err)
	}
}

var nameRef = regexp.MustCompile(`@([\w.]+)`)

// text parses a message; @name stands for the id of that name.
func text[M proto.Message](r *rig, m M, s string) M {
	r.t.Helper()
	s = nameRef.ReplaceAllStringFunc(s, func(n string) string {
		id, ok := r.ids[n[1:]]
		if !ok {
			r.t.Fatalf("no object %s in the P4Info", n)
		}
		return fmt.Sprint(id)
	})
	if err := prototext.Unmarshal([]byte(s), m); err != nil {
		r.t.Fatalf("%v in %s", err, s)
	}
	return m
}

func (r *rig) entity(s string) *p4.Entity { r.t.Helper(); return text(r, &p4.Entity{}, s) }

// updates reads lines of "INSERT entity".
func (r *rig) updates(lines ...string) []*p4.Update {
	r.t.Helper()
	var out []*p4.Update
	for _, l := range lines {
		kind, rest, _ := strings.Cut(strings.TrimSpace(l), " ")
		out = append(out, &p4.Update{Type: p4.Update_Type(p4.Update_Type_value[kind]), Entity: r.entity(rest)})
	}
	return out
}

func (r *rig) request(a p4.WriteRequest_Atomicity, lines ...string) *p4.WriteRequest {
	r.t.Helper()
	return &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{Low: 1}, Atomicity: a, Updates: r.updates(lines...)}
}

func (r *rig) tryWrite(a p4.WriteRequest_Atomicity, lines ...string) error {
	r.t.Helper()
	_, err := r.client.Write(r.t.Context(), r.request(a, lines...))
	return err
}

func (r *rig) write(lines ...string) {
	r.t.Helper()
	if err := r.tryWrite(p4.WriteRequest_CONTINUE_ON_ERROR, lines...); err != nil {
		r.t.Fatal(describe(err))
	}
}

func (r *rig) tryRead(entities ...string) ([]*p4.Entity, error) {
	r.t.Helper()
	req := &p4.ReadRequest{DeviceId: device}
	for _, e := range entities {
		req.Entities = append(req.Entities, r.entity(e))
	}
	stream, err := r.client.Read(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	var out []*p4.Entity
	for {
		m, err := stream.Recv()
		if err != nil {
			if err.Error() == "EOF" {
				return out, nil
			}
			return out, err
		}
		out = append(out, m.GetEntities()...)
	}
}

func (r *rig) read(entities ...string) []*p4.Entity {
	r.t.Helper()
	out, err := r.tryRead(entities...)
	if err != nil {
		r.t.Fatal(describe(err))
	}
	return out
}

// expectRead reads and compares with what is expected, in any order of fields.
func (r *rig) expectRead(request string, want ...string) {
	r.t.Helper()
	var entities []*p4.Entity
	for _, w := range want {
		entities = append(entities, r.entity(w))
	}
	if diff := cmp.Diff(entities, r.read(request), protocmp.Transform()); diff != "" {
		r.t.Errorf("read %s (-want +got):\n%s", request, diff)
	}
}

// everything reads the whole state.
func (r *rig) everything() []*p4.Entity {
	r.t.Helper()
	return r.read(
		`table_entry { counter_data {} meter_config {} }`,
		`table_entry { is_default_action: true counter_data {} meter_config {} }`,
		`action_profile_member {}`, `action_profile_group {}`, `counter_entry {}`, `meter_entry {}`,
		`register_entry {}`, `value_set_entry {}`, `digest_entry {}`,
		`packet_replication_engine_entry { multicast_group_entry {} }`,
		`packet_replication_engine_entry { clone_session_entry {} }`,
	)
}

// describe writes an error with the details of its batch.
func describe(err error) string {
	var b strings.Builder
	fmt.Fprintln(&b, err)
	for i, e := range details(err) {
		fmt.Fprintf(&b, "%d: %v: %s\n", i, codes.Code(e.GetCanonicalCode()), e.GetMessage())
	}
	return b.String()
}

func details(err error) []*p4.Error {
	var out []*p4.Error
	for _, d := range status.Convert(err).Details() {
		if e, ok := d.(*p4.Error); ok {
			out = append(out, e)
		}
	}
	return out
}

// expectError checks code and text of an error.
func expectError(t testing.TB, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("error %v, want %v with %q", err, code, text)
	}
}

// expectDetail checks element i of a batch.
func expectDetail(t testing.TB, err error, i int, code codes.Code, text string) {
	t.Helper()
	list := details(err)
	if status.Code(err) != codes.Unknown || i >= len(list) {
		t.Errorf("error %v with %d details, want UNKNOWN with detail %d", err, len(list), i)
		return
	}
	if e := list[i]; codes.Code(e.GetCanonicalCode()) != code || !strings.Contains(e.GetMessage(), text) {
		t.Errorf("detail %d: %v: %q, want %v with %q", i, codes.Code(e.GetCanonicalCode()), e.GetMessage(), code, text)
	}
}

// eventually polls until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
