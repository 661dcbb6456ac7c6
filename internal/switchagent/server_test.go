package switchagent

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A refused is the error that a request must fail with.
type refused struct {
	code   codes.Code
	reason string   // of the ErrorInfo
	at     string   // switch that the ErrorInfo names
	words  []string // in the message: what is wrong, and where
}

func (w refused) check(t testing.TB, what string, err error) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != w.code {
		t.Errorf("%s: %v; want %v", what, err, w.code)
		return
	}
	for _, word := range w.words {
		if !strings.Contains(s.Message(), word) {
			t.Errorf("%s: no word of %q in: %s", what, word, s.Message())
		}
	}
	if w.reason == "" {
		return
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if info.GetDomain() != "mcrdma" || info.GetReason() != w.reason || info.GetMetadata()["switch"] != w.at ||
				!strings.HasPrefix(s.Message(), "switch "+w.at+": ") {
				t.Errorf("%s: %v; want reason %s at %s", what, s.Proto(), w.reason, w.at)
			}
			return
		}
	}
	t.Errorf("%s: no ErrorInfo: %v", what, s.Proto())
}

// A snapshot is all that outlives a fabric's agents.
type snapshot struct {
	switches []*switchspec.State
	stores   []map[string]string
}

func (l *line) snapshot() snapshot {
	l.t.Helper()
	var s snapshot
	for i, n := range l.nodes {
		have := l.state(i + 1)
		have.Delete(switchspec.Settings{}.Key()) // numbers that are reserved stay so
		s.switches = append(s.switches, have)
		stored := map[string]string{}
		if n.agent != nil {
			for k, v := range n.agent.store.Load(bucket) {
				stored[fmt.Sprintf("%x", k)] = string(v)
			}
		}
		s.stores = append(s.stores, stored)
	}
	return s
}

// differs says what is not as in another snapshot; "": nothing.
func (s snapshot) differs(o snapshot) string {
	for i := range s.switches {
		if d := switchspec.Diff(o.switches[i], s.switches[i]); len(d) > 0 {
			return fmt.Sprintf("sw%d: %d changes, such as %v", i+1, len(d), d[0])
		}
		if !maps.Equal(s.stores[i], o.stores[i]) {
			return fmt.Sprintf("state of sw%d: %.500v, was %.500v", i+1, s.stores[i], o.stores[i])
		}
	}
	return ""
}

func (l *line) unchanged(what string, since snapshot) {
	l.t.Helper()
	if d := l.snapshot().differs(since); d != "" {
		l.t.Errorf("%s: it has changed %s", what, d)
	}
}

// as is a connection to switch i's agent by a caller other than the administrator.
func (l *line) as(i int, id identity.Identity) *grpc.ClientConn {
	l.t.Helper()
	c := l.dial(l.nodes[i-1].addr, id)
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

func aSwitch(name string) identity.Identity {
	return identity.Identity{Role: identity.Switch, Name: name}
}

func aHost(addrs ...netip.Addr) identity.Identity {
	return identity.Identity{Role: identity.Host, Name: "h", Addrs: addrs}
}

var (
	otherRack = netip.MustParseAddr("10.2.0.77") // a sender's
	silent    = netip.MustParseAddr("10.1.0.99") // attached to sw1, and does not answer ARP
	nowhere   = netip.MustParseAddr("192.0.2.9")
)

// badGroups are changes of a good group that make it impossible.
func badGroups() map[string]struct {
	edit func(g *mcrdmav1.Group)
	want refused
} {
	type entry = struct {
		edit func(g *mcrdmav1.Group)
		want refused
	}
	invalid := func(words ...string) refused { return refused{codes.InvalidArgument, "INVALID", "sw1", words} }
	region := func(f func(r *mcrdmav1.Receiver)) func(g *mcrdmav1.Group) {
		return func(g *mcrdmav1.Group) { f(g.Receivers[1]) }
	}
	out := map[string]entry{
		"no key":         {func(g *mcrdmav1.Group) { g.Key = nil }, invalid("source of the group", `""`)},
		"no source":      {func(g *mcrdmav1.Group) { g.Key.Source = "" }, invalid("source of the group", `""`, "not an IPv4")},
		"source is junk": {func(g *mcrdmav1.Group) { g.Key.Source = "10.1.0" }, invalid("source of the group", "10.1.0")},
		"IPv6 source":    {func(g *mcrdmav1.Group) { g.Key.Source = "fe80::1" }, invalid("source of the group", "fe80::1", "not an IPv4")},
		"mapped source":  {func(g *mcrdmav1.Group) { g.Key.Source = "::ffff:10.1.0.11" }, invalid("not an IPv4")},
		"MC_ID 0":        {func(g *mcrdmav1.Group) { g.Key.McId = 0 }, invalid("MC_ID 0x0", "0x1 to 0xffffff")},
		"MC_ID long":     {func(g *mcrdmav1.Group) { g.Key.McId = 1 << 24 }, invalid("MC_ID 0x1000000")},
		"sender's QPN":   {func(g *mcrdmav1.Group) { g.SenderQpn = 1 << 24 }, invalid("QPN 0x1000000", "24 bits")},
		"PSN":            {func(g *mcrdmav1.Group) { g.InitialPsn = 1 << 24 }, invalid("PSN 0x1000000", "24 bits")},
		"IPv6 address":   {func(g *mcrdmav1.Group) { g.Address = "::1" }, invalid("address of the group", "::1")},
		"own address":    {func(g *mcrdmav1.Group) { g.Address = g.Key.Source }, invalid("10.1.0.11", "sender's own")},
		"CNP gap":        {func(g *mcrdmav1.Group) { g.CnpGap = durationpb.New(2 * time.Hour) }, invalid("2h0m0s", "0 to 1 h")},
		"CNP gap < 0":    {func(g *mcrdmav1.Group) { g.CnpGap = durationpb.New(-1) }, invalid("-1ns")},
		"CNP gap junk":   {func(g *mcrdmav1.Group) { g.CnpGap = &durationpb.Duration{Seconds: math.MaxInt64, Nanos: -5} }, invalid("CNPs")},

		"no receivers": {func(g *mcrdmav1.Group) { g.Receivers = nil },
			refused{codes.InvalidArgument, "NO_RECEIVERS", "sw1", []string{"no receivers", "10.1.0.11"}}},
		"17 receivers": {func(g *mcrdmav1.Group) {
			for i := len(g.Receivers); i < 17; i++ {
				g.Receivers = append(g.Receivers, aReceiver(netip.AddrFrom4([4]byte{10, 2, 0, byte(100 + i)}), 1))
			}
		}, refused{codes.InvalidArgument, "TOO_MANY_RECEIVERS", "sw1", []string{"17", "16 is the most"}}},
		"two on one": {func(g *mcrdmav1.Group) { g.Receivers[2].Address = g.Receivers[0].Address },
			refused{codes.InvalidArgument, "DUPLICATE_ADDRESS", "sw1", []string{"two receivers", "10.1.0.12"}}},
		"sender receives": {func(g *mcrdmav1.Group) { g.Receivers[1].Address = g.Key.Source },
			refused{codes.InvalidArgument, "SENDER_RECEIVES", "sw1", []string{"sender", "10.1.0.11"}}},
		"nil receiver":      {func(g *mcrdmav1.Group) { g.Receivers[1] = &mcrdmav1.Receiver{} }, invalid("receiver", `""`)},
		"IPv6 receiver":     {func(g *mcrdmav1.Group) { g.Receivers[1].Address = "2001:db8::1" }, invalid("receiver", "2001:db8::1")},
		"receiver's QPN":    {func(g *mcrdmav1.Group) { g.Receivers[1].Qpn = 1 << 24 }, invalid("QPN 0x1000000", "10.2.0.11")},
		"no length":         {region(func(r *mcrdmav1.Receiver) { r.Regions[0].Length = 0 }), invalid("10.2.0.11", "0x1000", "length 0")},
		"VA wraps":          {region(func(r *mcrdmav1.Receiver) { r.Regions[0].Va = math.MaxUint64 - 0xffe }), invalid("10.2.0.11", "length 4096")},
		"receiver VA wraps": {region(func(r *mcrdmav1.Receiver) { r.Regions[1].ReceiverVa = math.MaxUint64 - 0xffe }), invalid("receiver's 0xfffffffffffff001")},
		"overlap": {region(func(r *mcrdmav1.Receiver) {
			r.Regions[1].Rkey, r.Regions[1].Va = r.Regions[0].Rkey, r.Regions[0].Va+0xfff
		}), invalid("overlap", "rkey 0x7", "0x1fff")},
		"one region twice": {region(func(r *mcrdmav1.Receiver) { r.Regions[1] = r.Regions[0] }), invalid("overlap")},
		"1025 regions": {region(func(r *mcrdmav1.Receiver) {
			r.Regions = nil
			for i := range uint64(1025) {
				r.Regions = append(r.Regions, &mcrdmav1.MemoryRegion{Rkey: 1, Va: i << 12, Length: 1 << 12})
			}
		}), refused{codes.ResourceExhausted, "LIMIT", "sw1", []string{"10.2.0.11", "1025", "1024 is the most"}}},

		"no route": {func(g *mcrdmav1.Group) { g.Receivers[1].Address = nowhere.String() },
			refused{codes.FailedPrecondition, "NO_ROUTE", "sw1", []string{"no route", nowhere.String()}}},
		"silent host": {func(g *mcrdmav1.Group) { g.Receivers[1].Address = silent.String() },
			refused{codes.FailedPrecondition, "NO_ROUTE", "sw1", []string{silent.String(), "ARP"}}},
		"silent host elsewhere": {func(g *mcrdmav1.Group) {
			g.Receivers = append(g.Receivers, aReceiver(netip.MustParseAddr("10.2.0.99"), 5))
		}, refused{codes.FailedPrecondition, "NO_ROUTE", "sw2", []string{"10.2.0.99", "ARP"}}},
		"sender of another rack": {func(g *mcrdmav1.Group) { g.Key.Source = otherRack.String() },
			refused{codes.FailedPrecondition, "NO_MERGE_POINT", "sw1", []string{otherRack.String(), "10.1.0.0/24", "its own ToR, which is switch sw2"}}},
		"sender from nowhere": {func(g *mcrdmav1.Group) { g.Key.Source = nowhere.String() },
			refused{codes.FailedPrecondition, "NO_MERGE_POINT", "sw1", []string{nowhere.String(), "own ToR"}}},
	}
	return out
}

// TestMalformedInstallChangesNothing asks for impossible groups, beside an existing
// one.
func TestMalformedInstallChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.start(1, func(c *config.Config, _ *Options) {
			c.Switches[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/24")}
		})
		l.start(2)
		good := func() *mcrdmav1.Group {
			return aGroup(hostAddr(1, 1), 0x800002, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		}
		there := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		l.install(1, there)
		before := l.snapshot()
		c := l.groups(1)
		for name, b := range badGroups() {
			g := good()
			b.edit(g)
			_, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g})
			b.want.check(t, name, err)
			l.unchanged(name, before)
		}
		for _, lease := range []*durationpb.Duration{durationpb.New(-1), durationpb.New(25 * time.Hour), {Seconds: math.MaxInt64},
			{Seconds: 1, Nanos: math.MinInt32}} {
			_, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: good(), Lease: lease})
			refused{codes.InvalidArgument, "INVALID", "sw1", []string{"lease", "24h0m0s"}}.check(t, lease.String(), err)
		}
		_, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{})
		refused{codes.InvalidArgument, "INVALID", "sw1", nil}.check(t, "nothing", err)

		// Another group under the key of one that is there.
		for name, edit := range map[string]func(g *mcrdmav1.Group){
			"receivers": func(g *mcrdmav1.Group) { g.Receivers = g.Receivers[:2] },
			"order":     func(g *mcrdmav1.Group) { slices.Reverse(g.Receivers[1:]) },
			"region":    func(g *mcrdmav1.Group) { g.Receivers[2].Regions[0].Length++ },
			"PSN":       func(g *mcrdmav1.Group) { g.InitialPsn++ },
			"QPN":       func(g *mcrdmav1.Group) { g.SenderQpn++ },
			"address":   func(g *mcrdmav1.Group) { g.Address = hostAddr(2, 1).String() },
			"CNP gap":   func(g *mcrdmav1.Group) { g.CnpGap = durationpb.New(time.Millisecond) },
		} {
			g := good()
			g.Key.McId = 0x800001
			edit(g)
			_, err := c.Install(t.Context(), &mcrdmav1.InstallRequest{Group: g})
			refused{codes.AlreadyExists, "EXISTS", "sw1", []string{"10.1.0.11/0x800001", "remove it first, or update it"}}.check(t, name, err)
			l.unchanged(name, before)
		}
		l.install(1, there) // the same: renewed
		l.unchanged("again", before)
		l.remove(1, there)
		l.noLeftovers()
	})
}

func TestMalformedUpdateChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.start(1, func(c *config.Config, _ *Options) { c.Limits.Receivers = 4 })
		l.start(2)
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		l.install(1, g)
		before := l.snapshot()
		c := l.groups(1)
		psn := func(n uint32) *uint32 { return &n }
		with := func(more ...netip.Addr) []*mcrdmav1.Receiver {
			out := slices.Clone(g.Receivers)
			for i, m := range more {
				out = append(out, aReceiver(m, uint32(0x300+i)))
			}
			return out
		}
		for name, x := range map[string]struct {
			req  *mcrdmav1.UpdateRequest
			want refused
		}{
			"missing": {&mcrdmav1.UpdateRequest{Key: &mcrdmav1.GroupKey{Source: "10.1.0.11", McId: 5}, Receivers: with()},
				refused{codes.NotFound, "NOT_FOUND", "sw1", []string{"10.1.0.11/0x5"}}},
			"no key":       {&mcrdmav1.UpdateRequest{Receivers: with()}, refused{codes.InvalidArgument, "INVALID", "sw1", nil}},
			"no receivers": {&mcrdmav1.UpdateRequest{Key: g.Key}, refused{codes.InvalidArgument, "NO_RECEIVERS", "sw1", nil}},
			"new without PSN": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with(hostAddr(1, 3))},
				refused{codes.InvalidArgument, "INVALID", "sw1", []string{"10.1.0.13 is new", "PSN"}}},
			"changed without PSN": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: []*mcrdmav1.Receiver{g.Receivers[0], aReceiver(hostAddr(2, 1), 0x999)}},
				refused{codes.InvalidArgument, "INVALID", "sw1", []string{"10.2.0.11 is new", "PSN"}}},
			"long PSN": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with(hostAddr(1, 3)), InitialPsn: psn(1 << 24)},
				refused{codes.InvalidArgument, "INVALID", "sw1", []string{"PSN 0x1000000", "24 bits"}}},
			"sender": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with(hostAddr(1, 1)), InitialPsn: psn(1)},
				refused{codes.InvalidArgument, "SENDER_RECEIVES", "sw1", nil}},
			"twice": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with(hostAddr(2, 1)), InitialPsn: psn(1)},
				refused{codes.InvalidArgument, "DUPLICATE_ADDRESS", "sw1", nil}},
			"nowhere": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with(nowhere), InitialPsn: psn(1)},
				refused{codes.FailedPrecondition, "NO_ROUTE", "sw1", []string{nowhere.String()}}},
			"silent": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with(silent), InitialPsn: psn(1)},
				refused{codes.FailedPrecondition, "NO_ROUTE", "sw1", []string{silent.String()}}},
			"silent elsewhere": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with(netip.MustParseAddr("10.2.0.99")), InitialPsn: psn(1)},
				refused{codes.FailedPrecondition, "NO_ROUTE", "sw2", []string{"10.2.0.99"}}},
			"more than configured": {&mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with(hostAddr(1, 3), hostAddr(2, 3)), InitialPsn: psn(1)},
				refused{codes.InvalidArgument, "TOO_MANY_RECEIVERS", "sw1", []string{"5", "take 4"}}},
		} {
			_, err := c.Update(t.Context(), x.req)
			x.want.check(t, name, err)
			l.unchanged(name, before)
		}
		// An update without a difference changes nothing.
		if _, err := c.Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, Receivers: with()}); err != nil {
			t.Error(err)
		}
		l.unchanged("the same", before)
		// Remove is idempotent, and says what is malformed.
		for range 2 {
			l.remove(1, g)
		}
		for _, k := range []*mcrdmav1.GroupKey{nil, {}, {Source: "10.1.0.11", McId: 1 << 24}, {Source: "::1", McId: 1}} {
			_, err := c.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: k})
			refused{codes.InvalidArgument, "INVALID", "sw1", nil}.check(t, "remove", err)
			_, err = c.Get(t.Context(), &mcrdmav1.GetRequest{Key: k})
			refused{codes.InvalidArgument, "INVALID", "sw1", nil}.check(t, "get", err)
			_, err = c.Renew(t.Context(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{g.Key, k}})
			refused{codes.InvalidArgument, "INVALID", "sw1", nil}.check(t, "renew", err)
			if k != nil {
				_, err = mcrdmav1.NewSwitchStatusClient(l.conn(1)).ListSteps(t.Context(), &mcrdmav1.ListStepsRequest{Group: k})
				refused{codes.InvalidArgument, "INVALID", "sw1", nil}.check(t, "list steps", err)
			}
		}
		_, err := c.Get(t.Context(), &mcrdmav1.GetRequest{Key: g.Key})
		refused{codes.NotFound, "NOT_FOUND", "sw1", []string{"10.1.0.11/0x800001"}}.check(t, "get", err)
		_, err = c.List(t.Context(), &mcrdmav1.ListRequest{Source: "10.1.0.0/24"})
		refused{codes.InvalidArgument, "INVALID", "sw1", []string{"source", "10.1.0.0/24"}}.check(t, "list", err)
		w, err := c.Watch(within(t, 30*time.Second), &mcrdmav1.WatchRequest{Source: "x"})
		if err == nil {
			_, err = w.Recv()
		}
		refused{codes.InvalidArgument, "INVALID", "sw1", nil}.check(t, "watch", err)
		res, err := c.Renew(t.Context(), &mcrdmav1.RenewRequest{Keys: []*mcrdmav1.GroupKey{g.Key}})
		if err != nil || len(res.GetMissing()) != 1 {
			t.Errorf("%v, %v", res, err)
		}
		l.noLeftovers()
	})
}

// TestUpdateThatFailsHalfway: receivers have left, and those to join cannot.
func TestUpdateThatFailsHalfway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		l.install(1, g)
		c := l.groups(1)
		w, err := c.Watch(within(t, 30*time.Second), &mcrdmav1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_INSTALLED, mcrdmav1.WatchResponse_TYPE_SYNCED)
		psn := uint32(4)
		_, err = c.Update(t.Context(), &mcrdmav1.UpdateRequest{Key: g.Key, InitialPsn: &psn,
			Receivers: []*mcrdmav1.Receiver{g.Receivers[0], g.Receivers[1], aReceiver(nowhere, 1)}})
		refused{codes.FailedPrecondition, "NO_ROUTE", "sw1", []string{nowhere.String()}}.check(t, "update", err)
		e := expectEvents(t, w, mcrdmav1.WatchResponse_TYPE_UPDATED)[0]
		if r := e.GetGroup().GetGroup().GetReceivers(); len(r) != 2 {
			t.Errorf("watchers see %d receivers", len(r))
		}
		for i := 1; i <= 2; i++ {
			if err := l.state(i).Check(); err != nil {
				t.Error(err)
			}
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}

// within is the test's context, with a deadline.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func expectEvents(t testing.TB, w grpc.ServerStreamingClient[mcrdmav1.WatchResponse], types ...mcrdmav1.WatchResponse_Type) []*mcrdmav1.WatchResponse {
	t.Helper()
	var out []*mcrdmav1.WatchResponse
	for _, want := range types {
		e, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetType() != want {
			t.Fatalf("%v instead of %v: %v", e.GetType(), want, e)
		}
		out = append(out, e)
	}
	return out
}

// TestMalformedPeerRequests are invalid requests of a neighbor.
func TestMalformedPeerRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		l.install(1, g)
		before := l.snapshot()
		c := mcrdmav1.NewSwitchPeerClient(l.as(2, aSwitch("sw1")))
		good := func() *mcrdmav1.HoldRequest {
			return &mcrdmav1.HoldRequest{Group: &mcrdmav1.GroupKey{Source: "10.1.0.13", McId: 9}, Generation: 1, Sequence: 1, Via: []string{"sw1"},
				Destination: "10.2.0.13", Receivers: []*mcrdmav1.Receiver{aReceiver(hostAddr(2, 3), 1), aReceiver(hostAddr(2, 4), 2)}}
		}
		invalid := refused{codes.InvalidArgument, "INVALID", "sw2", nil}
		for name, x := range map[string]struct {
			edit func(r *mcrdmav1.HoldRequest)
			want refused
		}{
			"no group":          {func(r *mcrdmav1.HoldRequest) { r.Group = nil }, invalid},
			"MC_ID":             {func(r *mcrdmav1.HoldRequest) { r.Group.McId = 1 << 24 }, invalid},
			"no destination":    {func(r *mcrdmav1.HoldRequest) { r.Destination = "" }, invalid},
			"IPv6 destination":  {func(r *mcrdmav1.HoldRequest) { r.Destination = "::1" }, invalid},
			"not the first":     {func(r *mcrdmav1.HoldRequest) { r.Destination = "10.2.0.14" }, invalid},
			"no receivers":      {func(r *mcrdmav1.HoldRequest) { r.Receivers = nil }, invalid},
			"no via":            {func(r *mcrdmav1.HoldRequest) { r.Via = nil }, invalid},
			"another in via":    {func(r *mcrdmav1.HoldRequest) { r.Via = []string{"sw7"} }, invalid},
			"caller not last":   {func(r *mcrdmav1.HoldRequest) { r.Via = []string{"sw1", "sw7"} }, invalid},
			"one twice in via":  {func(r *mcrdmav1.HoldRequest) { r.Via = []string{"sw7", "sw7", "sw1"} }, invalid},
			"caller twice":      {func(r *mcrdmav1.HoldRequest) { r.Via = []string{"sw1", "sw7", "sw1"} }, invalid},
			"no name in via":    {func(r *mcrdmav1.HoldRequest) { r.Via = []string{"", "sw1"} }, invalid},
			"long name in via":  {func(r *mcrdmav1.HoldRequest) { r.Via = []string{strings.Repeat("x", 254), "sw1"} }, invalid},
			"65 in via":         {func(r *mcrdmav1.HoldRequest) { r.Via = append(slices.Repeat([]string{"sw7"}, 64), "sw1") }, invalid},
			"QPN":               {func(r *mcrdmav1.HoldRequest) { r.Receivers[0].Qpn = 1 << 24 }, invalid},
			"region":            {func(r *mcrdmav1.HoldRequest) { r.Receivers[1].Regions[0].Length = 0 }, invalid},
			"has passed before": {func(r *mcrdmav1.HoldRequest) { r.Via = []string{"sw2", "sw1"} }, refused{codes.FailedPrecondition, "LOOP", "sw2", []string{"sw2"}}},
			"sender receives":   {func(r *mcrdmav1.HoldRequest) { r.Group.Source = "10.2.0.14" }, refused{codes.InvalidArgument, "SENDER_RECEIVES", "sw2", nil}},
			"sender is here":    {func(r *mcrdmav1.HoldRequest) { r.Group.Source = "10.2.0.99" }, refused{codes.FailedPrecondition, "LOOP", "sw2", []string{"10.2.0.99"}}},
			"two on one":        {func(r *mcrdmav1.HoldRequest) { r.Receivers[1].Address = "10.2.0.13" }, refused{codes.InvalidArgument, "DUPLICATE_ADDRESS", "sw2", nil}},
			"17": {func(r *mcrdmav1.HoldRequest) { r.Receivers = slices.Repeat(r.Receivers, 9) },
				refused{codes.InvalidArgument, "TOO_MANY_RECEIVERS", "sw2", nil}},
			"back to the caller": {func(r *mcrdmav1.HoldRequest) {
				r.Receivers = []*mcrdmav1.Receiver{aReceiver(hostAddr(1, 5), 1), aReceiver(hostAddr(1, 6), 1)}
				r.Destination = r.Receivers[0].Address
			}, refused{codes.FailedPrecondition, "LOOP", "sw2", []string{"sw1"}}},
			"nowhere": {func(r *mcrdmav1.HoldRequest) { r.Receivers[1].Address = nowhere.String() },
				refused{codes.FailedPrecondition, "NO_ROUTE", "sw2", []string{nowhere.String()}}},
		} {
			r := good()
			x.edit(r)
			_, err := c.Hold(t.Context(), r)
			x.want.check(t, name, err)
			l.unchanged(name, before)
		}
		for _, k := range []*mcrdmav1.GroupKey{nil, {Source: "x", McId: 1}, {Source: "10.1.0.11"}} {
			_, err := c.Release(t.Context(), &mcrdmav1.ReleaseRequest{Group: k, Destination: "10.2.0.11", Sequence: math.MaxUint64})
			invalid.check(t, "release", err)
			_, err = c.Sync(t.Context(), &mcrdmav1.SyncRequest{Sequence: math.MaxUint64, Branches: []*mcrdmav1.HeldBranch{{Group: k, Destination: "10.2.0.11"}}})
			invalid.check(t, "sync", err)
		}
		_, err := c.Sync(t.Context(), &mcrdmav1.SyncRequest{Sequence: math.MaxUint64, Branches: []*mcrdmav1.HeldBranch{nil}})
		invalid.check(t, "sync", err)
		// A release of a branch that no switch holds changes nothing.
		if _, err := c.Release(t.Context(), &mcrdmav1.ReleaseRequest{Group: good().Group, Destination: "10.2.0.13", Sequence: math.MaxUint64}); err != nil {
			t.Error(err)
		}
		l.unchanged("release and sync", before)
		if n := l.nodes[1].agent.table.Usage().Steps; n != 1 {
			t.Errorf("%d steps", n)
		}
		l.remove(1, g)
		l.noLeftovers()
	})
}

// TestHostsSeeTheirOwn: a host sees no group but its own, whatever it calls.
func TestHostsSeeTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2)
		l.startAll()
		mine := aGroup(hostAddr(1, 1), 1, hostAddr(1, 2), hostAddr(2, 1), hostAddr(2, 2))
		other := aGroup(hostAddr(1, 3), 2, hostAddr(1, 4), hostAddr(2, 1), hostAddr(2, 2))
		l.install(1, mine)
		l.install(1, other)
		steps := func(at int, as identity.Identity, only *mcrdmav1.GroupKey) (out []string) {
			t.Helper()
			conn := l.dial(l.nodes[at-1].addr, as)
			defer conn.Close()
			res, err := mcrdmav1.NewSwitchStatusClient(conn).ListSteps(t.Context(), &mcrdmav1.ListStepsRequest{Group: only})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range res.GetSteps() {
				out = append(out, s.GetGroup().GetSource())
			}
			return out
		}
		host := identity.Identity{Role: identity.Host, Name: "h", Addrs: []netip.Addr{hostAddr(1, 1)}}
		receiver := identity.Identity{Role: identity.Host, Name: "r", Addrs: []netip.Addr{hostAddr(2, 1)}}
		both := []string{hostAddr(1, 1).String(), hostAddr(1, 3).String()}
		for at := 1; at <= 2; at++ {
			for _, role := range []identity.Role{identity.Admin, identity.Switch} {
				if got := steps(at, identity.Identity{Role: role, Name: "sw1"}, nil); !slices.Equal(got, both) {
					t.Errorf("sw%d shows %v the groups of %v", at, role, got)
				}
			}
			if got := steps(at, host, nil); !slices.Equal(got, both[:1]) {
				t.Errorf("sw%d shows a host the groups of %v", at, got)
			}
			if got := steps(at, host, other.Key); len(got) > 0 {
				t.Errorf("sw%d shows a host the group of %v", at, got)
			}
			if got := steps(at, receiver, nil); len(got) > 0 {
				t.Errorf("sw%d shows a receiver the groups of %v", at, got)
			}
		}
	})
}

// TestStreamsOfHosts: a host may have some streams open, over whatever connections.
// More are refused; others have theirs, and there is room when one ends.
func TestStreamsOfHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		l.start(1)
		host := identity.Identity{Role: identity.Host, Name: "h", Addrs: []netip.Addr{hostAddr(1, 1)}}
		other := identity.Identity{Role: identity.Host, Name: "o", Addrs: []netip.Addr{hostAddr(1, 2)}}
		watch := func(as identity.Identity) (end func(), err error) {
			conn := l.dial(l.nodes[0].addr, as)
			t.Cleanup(func() { _ = conn.Close() })
			s, err := mcrdmav1.NewSwitchGroupsClient(conn).Watch(t.Context(), &mcrdmav1.WatchRequest{})
			if err == nil {
				_, err = s.Recv()
			}
			return func() { _ = conn.Close() }, err
		}
		end, err := watch(host)
		for n := 1; err == nil; n++ {
			if n > 100 {
				t.Fatal("100 streams, and no end")
			}
			_, err = watch(host)
		}
		refused{codes.ResourceExhausted, "LIMIT", "sw1", []string{"host h", "streams"}}.check(t, "one more", err)
		for _, as := range []identity.Identity{other, {Role: identity.Admin, Name: "h"}} {
			if _, err := watch(as); err != nil {
				t.Errorf("%v: %v", as, err)
			}
		}
		end()
		eventually(t, "there is room again", func() bool { _, err := watch(host); return err == nil })
	})
}
