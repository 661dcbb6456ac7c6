package group_test

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	fine    = mcrdmav1.Reason_REASON_UNSPECIFIED
	invalid = mcrdmav1.Reason_INVALID
)

var checking = group.Host{Name: "h1", Addr: netip.MustParseAddr("10.0.0.1"), Hosts: map[string]netip.Addr{"h2": netip.MustParseAddr("10.0.0.2")},
	Switch: true, Receivers: 3, Regions: 2, Lease: 10 * time.Second}

// expect judges the outcome of a check; nil has the reason fine.
func expect(t *testing.T, what any, err error, want mcrdmav1.Reason) {
	t.Helper()
	got := fine
	if err != nil {
		got = failure.Of(err).Reason
	}
	if got != want {
		t.Errorf("%v: %v (%v), want %v", what, got, err, want)
	}
}

func TestSpecs(t *testing.T) {
	type request = mcrdmav1.CreateGroupRequest
	good := func() *request {
		return &request{Service: "kv", Receivers: []string{"h2", "10.0.0.3"}, Regions: []*mcrdmav1.RegionSpec{{Name: "log", Length: 4096}}}
	}
	for i, c := range []struct {
		change func(r *request)
		want   mcrdmav1.Reason
	}{
		{func(*request) {}, fine},
		{func(r *request) { r.Service = "" }, invalid},
		{func(r *request) { r.Service = "azAZ09.-_" }, fine},
		{func(r *request) { r.Service = strings.Repeat("s", 64) }, fine},
		{func(r *request) { r.Service = strings.Repeat("s", 65) }, invalid},
		{func(r *request) { r.Service = "a/b" }, invalid},
		{func(r *request) { r.Service = "a:" }, invalid},
		{func(r *request) { r.Service = "a@" }, invalid},
		{func(r *request) { r.Service = "a[" }, invalid},
		{func(r *request) { r.Service = "a`" }, invalid},
		{func(r *request) { r.Service = "a{" }, invalid},
		{func(r *request) { r.Receivers = nil }, invalid},
		{func(r *request) { r.Receivers = append(r.Receivers, "10.0.0.4") }, fine},
		{func(r *request) { r.Receivers = append(r.Receivers, "10.0.0.4", "10.0.0.5") }, mcrdmav1.Reason_TOO_MANY_RECEIVERS},
		{func(r *request) { r.Receivers[1] = "10.0.0.2" }, mcrdmav1.Reason_DUPLICATE_ADDRESS},
		{func(r *request) { r.Receivers[1] = "h1" }, invalid},
		{func(r *request) { r.Receivers[1] = "h3" }, mcrdmav1.Reason_NO_SUCH_HOST},
		{func(r *request) { r.Receivers[1] = "fe80::1" }, invalid},
		{func(r *request) { r.Receivers[1] = "0.0.0.0" }, invalid},
		{func(r *request) { r.Receivers[1] = "224.0.0.1" }, invalid},
		{func(r *request) { r.Receivers[1] = "255.255.255.255" }, invalid},
		{func(r *request) { r.Receivers[1] = "255.255.255.254" }, fine},
		{func(r *request) { r.Mode = 99 }, invalid},
		{func(r *request) { r.Dscp = 63 }, fine},
		{func(r *request) { r.Dscp = 64 }, invalid},
		{func(r *request) { r.MinSize = 3 }, fine},
		{func(r *request) { r.MinSize = 4 }, mcrdmav1.Reason_MIN_SIZE},
		{func(r *request) { r.CnpGap = durationpb.New(time.Hour) }, fine},
		{func(r *request) { r.CnpGap = durationpb.New(time.Hour + 1) }, invalid},
		{func(r *request) { r.CnpGap = durationpb.New(-1) }, invalid},
		{func(r *request) { r.Regions[0].Length = 0 }, invalid},
		{func(r *request) { r.Regions[0].Length = 1 << 40 }, fine},
		{func(r *request) { r.Regions[0].Length = 1<<40 + 1 }, invalid},
		{func(r *request) { r.Regions[0].Name = strings.Repeat("n", 253) }, fine},
		{func(r *request) { r.Regions[0].Name = strings.Repeat("n", 254) }, invalid},
		{func(r *request) { r.Regions = append(r.Regions, &mcrdmav1.RegionSpec{Name: "map", Length: 1}) }, fine},
		{func(r *request) { r.Regions = append(r.Regions, &mcrdmav1.RegionSpec{Name: "log", Length: 1}) }, invalid},
		{func(r *request) {
			r.Regions = []*mcrdmav1.RegionSpec{{Length: 1}, {Length: 1}} // without names
		}, fine},
		{func(r *request) {
			r.Regions = append(r.Regions, &mcrdmav1.RegionSpec{Name: "a", Length: 1}, &mcrdmav1.RegionSpec{Name: "b", Length: 1})
		}, mcrdmav1.Reason_LIMIT},
		{func(r *request) { r.Algorithm = "auto" }, fine},
		{func(r *request) { r.Algorithm = "chain" }, fine},
		{func(r *request) { r.Algorithm = "fast" }, invalid},
		{func(r *request) { r.Transport = "auto" }, fine},
		{func(r *request) { r.Transport = "rdma" }, fine},
		{func(r *request) { r.Transport = "tcp" }, fine},
		{func(r *request) { r.Transport = "udp" }, invalid},
	} {
		r := good()
		c.change(r)
		_, _, err := checking.Spec("program", r)
		expect(t, i, err, c.want)
	}
}

// TestTexts: a refusal says what was asked for first, and then what is the most.
func TestTexts(t *testing.T) {
	for _, c := range []struct {
		r    *mcrdmav1.CreateGroupRequest
		want string
	}{
		{&mcrdmav1.CreateGroupRequest{Service: "kv", Receivers: []string{"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"}}, "4 receivers, and 3 is the most: make several groups"},
		{&mcrdmav1.CreateGroupRequest{Service: "kv", Receivers: []string{"h2"}, Regions: make([]*mcrdmav1.RegionSpec, 3)}, "3 memory regions, and 2 is the most: join some, or raise limits.regions"},
		{&mcrdmav1.CreateGroupRequest{Service: "kv", Receivers: []string{"h2"}, Regions: []*mcrdmav1.RegionSpec{{Length: 1}, {Name: "m"}}}, `memory region 1 ("m") of 0 bytes: the length is 1 to 2^40`},
		{&mcrdmav1.CreateGroupRequest{Service: "kv", Receivers: []string{"h2"}, Regions: []*mcrdmav1.RegionSpec{{Length: 1}, {Name: strings.Repeat("n", 300), Length: 1}}},
			"the name of memory region 1 has 300 characters, and 253 is the most"},
		{&mcrdmav1.CreateGroupRequest{Service: "kv", Receivers: []string{"h2", "10.0.0.2"}}, `receivers "h2" and "10.0.0.2" both are 10.0.0.2: name each host once`},
	} {
		if _, _, err := checking.Spec("program", c.r); err == nil || failure.Of(err).Text != c.want {
			t.Errorf("%v; want %q", err, c.want)
		}
	}
}

// TestSpecIs: what a request becomes.
func TestSpecIs(t *testing.T) {
	sp, addrs, err := checking.Spec("program", &mcrdmav1.CreateGroupRequest{Service: "kv", Receivers: []string{"10.0.0.3", "h2"}, Dscp: 5, Mtu: 1024,
		Regions:   []*mcrdmav1.RegionSpec{{Name: "log", Length: 4096}, {Name: "m\xffp", Length: 1}},
		Algorithm: "chain", Transport: "tcp", TypicalSize: 7, CnpGap: durationpb.New(time.Second)})
	regions := []group.Region{{Name: "log", Length: 4096, RKey: 0x6d630000, VA: 1 << 40}, {Name: "m\ufffdp", Length: 1, RKey: rocev2.PortKey(1), VA: 2 << 40}}
	if err != nil || !slices.Equal(addrs, []netip.Addr{netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.2")}) || !slices.Equal(sp.Regions, regions) {
		t.Errorf("%+v, %v, %v", sp, addrs, err)
	}
	if sp.Service != "kv" || sp.Program != "program" || sp.Mode != mcrdmav1.Mode_MODE_AUTO || sp.DSCP != 5 || sp.MTU != 1024 || sp.Algorithm != "chain" ||
		sp.Transport != "tcp" || sp.Typical != 7 || sp.CNPGap != time.Second {
		t.Errorf("%+v", sp)
	}
	for i, want := range []uint32{1, 2, 2} { // more than half of receivers and sender, or just half
		list := []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}[:i+1]
		if sp, _, err := checking.Spec("", &mcrdmav1.CreateGroupRequest{Service: "kv", Receivers: list}); err != nil || sp.MinSize != want {
			t.Errorf("of %d receivers, %d have to stay, want %d: %v", len(list), sp.MinSize, want, err)
		}
	}
	for _, least := range []uint32{1, 4} {
		r := &mcrdmav1.CreateGroupRequest{Service: "kv", Receivers: []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}, MinSize: least}
		if sp, _, err := checking.Spec("", r); err != nil || sp.MinSize != least {
			t.Errorf("%d have to stay, want %d: %v", sp.MinSize, least, err)
		}
	}
	for i, r := range sp.RegionSpecs() {
		if x := regions[i]; r.GetName() != x.Name || r.GetLength() != x.Length || r.GetRkey() != x.RKey || r.GetVa() != x.VA {
			t.Errorf("%+v", r)
		}
	}
	to := sp.SwitchReceivers([]group.Receiver{{Addr: addrs[0], QPN: 9, SeesIdentification: true, Regions: []group.Region{{RKey: 5, VA: 6}, {RKey: 7, VA: 8}}}})
	if len(to) != 1 || to[0].GetAddress() != "10.0.0.3" || to[0].GetQpn() != 9 || !to[0].GetSeesIdentification() || len(to[0].GetRegions()) != 2 {
		t.Fatalf("%v", to)
	}
	for i, r := range to[0].GetRegions() {
		if x := regions[i]; r.GetRkey() != x.RKey || r.GetVa() != x.VA || r.GetLength() != x.Length || r.GetReceiverRkey() != uint32(5+2*i) || r.GetReceiverVa() != uint64(6+2*i) {
			t.Errorf("%v", r)
		}
	}
}

func TestSenders(t *testing.T) {
	const (
		auto, require, off = mcrdmav1.Mode_MODE_AUTO, mcrdmav1.Mode_MODE_REQUIRE, mcrdmav1.Mode_MODE_OFF
		noSwitch           = mcrdmav1.Reason_NO_SWITCH
		at                 = "h1:7000"
	)
	for _, c := range []struct {
		mode      mcrdmav1.Mode
		agent     bool
		mtu, qpn  uint32
		bootstrap string
		catchUp   bool
		want      mcrdmav1.Reason
	}{
		{auto, true, 1024, 2, at, false, fine},
		{auto, true, 1024, 0x7fffff, at, false, fine},
		{auto, true, 1024, 0x800000, at, false, invalid},
		{auto, true, 1024, 1, at, false, invalid},
		{auto, true, 1000, 2, at, false, mcrdmav1.Reason_MTU},
		{auto, true, 256, 2, at, false, fine},
		{auto, true, 512, 2, at, false, fine},
		{auto, true, 2048, 2, at, false, fine},
		{auto, true, 4096, 2, at, false, fine},
		{auto, true, 0, 0, at, false, fine},
		{auto, true, 0, 0, "", false, invalid},
		{auto, true, 1024, 2, "", false, fine},
		{auto, true, 1024, 2, "", true, invalid},
		{auto, false, 1024, 2, "", false, invalid},
		{auto, false, 1024, 2, at, false, fine},
		{auto, true, 1024, 2, "h1", false, invalid},
		{off, true, 1024, 2, "", false, invalid},
		{off, true, 1024, 2, at, false, fine},
		{require, true, 1024, 2, "", false, fine},
		{require, false, 1024, 2, at, false, noSwitch},
		{require, true, 0, 0, at, false, noSwitch},
		{require, false, 0, 0, at, true, fine},
		{require, true, 1024, 2, "", true, invalid},
	} {
		h := checking
		h.Switch = c.agent
		sp := group.Spec{Mode: c.mode, MTU: c.mtu}
		got, err := h.Sender(&sp, &mcrdmav1.Forming{Qpn: c.qpn, Bootstrap: c.bootstrap, CatchUp: c.catchUp, Sent: 3})
		expect(t, c, err, c.want)
		if want := (group.Endpoint{QPN: c.qpn, Bootstrap: c.bootstrap, CatchUp: c.catchUp, Sent: 3}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func TestNoSwitch(t *testing.T) {
	f := func(catchUp bool, qpns ...uint32) *group.Formation {
		f := &group.Formation{Sender: group.Endpoint{QPN: qpns[0], CatchUp: catchUp}}
		for _, n := range qpns[1:] {
			f.Receivers = append(f.Receivers, group.Receiver{Host: "h2", QPN: n})
		}
		return f
	}
	without := checking
	without.Switch = false
	closed := f(false, 2, 2, 0)
	closed.Receivers[1].NoDevice = "the port is down"
	for _, c := range []struct {
		h    group.Host
		mode mcrdmav1.Mode
		f    *group.Formation
		want string
	}{
		{checking, mcrdmav1.Mode_MODE_AUTO, f(false, 2, 2, 2), ""},
		{checking, mcrdmav1.Mode_MODE_OFF, f(false, 2, 2, 2), "mode off"},
		{checking, mcrdmav1.Mode_MODE_AUTO, f(true, 2, 2, 2), "catch up"},
		{without, mcrdmav1.Mode_MODE_AUTO, f(false, 2, 2, 2), "no switch agent"},
		{checking, mcrdmav1.Mode_MODE_AUTO, f(false, 0, 2, 2), "sender's application"},
		{checking, mcrdmav1.Mode_MODE_AUTO, f(false, 2, 2, 0), "h2: the receiver's application has no RDMA device"},
		{checking, mcrdmav1.Mode_MODE_AUTO, closed, "h2: the receiver's application has no RDMA device: the port is down"},
	} {
		if got := c.h.NoSwitch(&group.Spec{Mode: c.mode}, c.f); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestNames: a host is called what the configuration calls it.
func TestNames(t *testing.T) {
	for addr, want := range map[string]string{"10.0.0.2": "h2", "10.0.0.3": ""} {
		if got := checking.NameOf(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is called %q, want %q", addr, got, want)
		}
	}
}

func TestInvitations(t *testing.T) {
	type request = mcrdmav1.PrepareRequest
	source := netip.MustParseAddr("10.0.0.9")
	good := func() *request {
		return &request{Formation: 1, Service: "kv", Program: "p", Connection: &mcrdmav1.Connection{Address: "10.0.0.9", Qpn: 0x800000, Psn: 0xffffff, Mtu: 1024, Dscp: 63},
			Regions: []*mcrdmav1.RegionSpec{{Name: "log", Length: 1 << 40, Rkey: 1, Va: 1}, {Length: 2, Rkey: 1, Va: 1}}, Lease: durationpb.New(time.Hour)}
	}
	for i, c := range []struct {
		change func(r *request)
		want   mcrdmav1.Reason
	}{
		{func(*request) {}, fine},
		{func(r *request) { r.Service = "" }, invalid},
		{func(r *request) { r.Formation = 0 }, invalid},
		{func(r *request) { r.Lease = durationpb.New(time.Hour + 1) }, invalid},
		{func(r *request) { r.Lease = durationpb.New(-1) }, invalid},
		{func(r *request) { r.Connection = nil }, invalid},
		{func(r *request) { r.Connection, r.Relay = nil, true }, fine},
		{func(r *request) { r.Connection.Address = "10.0.0.8" }, invalid},
		{func(r *request) { r.Connection.Qpn = 0x7fffff }, invalid},
		{func(r *request) { r.Connection.Qpn = 0xffffff }, fine},
		{func(r *request) { r.Connection.Qpn = 0x1000000 }, invalid},
		{func(r *request) { r.Connection.Psn = 0x1000000 }, invalid},
		{func(r *request) { r.Connection.Mtu = 1000 }, invalid},
		{func(r *request) { r.Connection.Dscp = 64 }, invalid},
		{func(r *request) { r.Regions = append(r.Regions, r.Regions[1]) }, mcrdmav1.Reason_LIMIT},
		{func(r *request) { r.Regions[0].Length = 0 }, invalid},
		{func(r *request) { r.Regions[0].Length = 1<<40 + 1 }, invalid},
		{func(r *request) { r.Regions[0].Name = strings.Repeat("n", 253) }, fine},
		{func(r *request) { r.Regions[0].Name = strings.Repeat("n", 254) }, invalid},
		{func(r *request) { r.Regions[0].Rkey = 0 }, invalid},
		{func(r *request) { r.Regions[1].Va = math.MaxUint64 - 2 }, fine},
		{func(r *request) { r.Regions[1].Va = math.MaxUint64 - 1 }, invalid},
	} {
		r := good()
		c.change(r)
		_, err := checking.Invitation(source, "h9", r)
		expect(t, i, err, c.want)
	}
	r := good()
	r.Joins, r.Lease, r.Program = true, nil, strings.Repeat("p", 300)
	in, err := checking.Invitation(source, "h9", r)
	if err != nil || in.Memory != 1<<40+2 || in.Lease != 10*time.Second || in.Sender != "h9" || in.Service != "kv" || in.Formation != 1 || !in.Joins || len(in.Program) > 260 {
		t.Errorf("%+v, %v", in, err)
	}
	r.Timeout = durationpb.New(time.Second) // which makes no other request of it
	again, err := checking.Invitation(source, "h9", r)
	if err != nil || again.Content != in.Content || in.Content == "" {
		t.Errorf("%q, %q, %v", in.Content, again.Content, err)
	}
	r.Formation = 2
	if other, err := checking.Invitation(source, "h9", r); err != nil || other.Content == in.Content {
		t.Errorf("%q, %v", other.Content, err)
	}
	r.Regions[0].Name = "\xff" // requests that cannot be told apart are none
	if _, err := checking.Invitation(source, "h9", r); err == nil {
		t.Error("a name that is no text is taken")
	}
}

func TestViewsToRecord(t *testing.T) {
	members := func(addrs ...string) (list []*mcrdmav1.Member) {
		for _, a := range addrs {
			list = append(list, &mcrdmav1.Member{Address: a, Host: "h" + a})
		}
		return list
	}
	many := []string{"10.0.0.1"}
	for len(many) < 17 {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, 1, byte(len(many))}).String())
	}
	for _, c := range []struct {
		number  uint32
		members []*mcrdmav1.Member
		want    mcrdmav1.Reason
	}{
		{1, members("10.0.0.2", "10.0.0.1"), fine},
		{0, members("10.0.0.2", "10.0.0.1"), invalid},
		{1, members(many[:16]...), fine},
		{1, members(many...), mcrdmav1.Reason_LIMIT},
		{1, members("10.0.0.1", "x"), invalid},
		{1, members("10.0.0.1", "fe80::1"), invalid},
		{1, members("10.0.0.1", "0.0.0.0"), invalid},
		{1, members("10.0.0.1", "10.0.0.2", "10.0.0.1"), mcrdmav1.Reason_DUPLICATE_ADDRESS},
		{1, members("10.0.0.2"), invalid},
		{1, members("10.0.0.1", "10.0.0.2"), fine},
	} {
		v, err := checking.View(c.number, c.members)
		expect(t, c.members, err, c.want)
		if err == nil && (v.View != c.number || len(v.Members) != len(c.members) || v.Members[0].Addr != checking.Addr || v.Members[0].Host != "h10.0.0.1") {
			t.Errorf("%+v", v)
		}
	}
}

func TestAnswersOfApplications(t *testing.T) {
	asked := &mcrdmav1.PrepareRequest{Regions: []*mcrdmav1.RegionSpec{{Length: 2}}}
	region := func(va uint64) []*mcrdmav1.ReceiverRegion { return []*mcrdmav1.ReceiverRegion{{Rkey: 1, Va: va}} }
	for i, c := range []struct {
		answer *mcrdmav1.AnswerAttachRequest
		want   mcrdmav1.Reason
	}{
		{&mcrdmav1.AnswerAttachRequest{Qpn: 2, Regions: region(1)}, fine},
		{&mcrdmav1.AnswerAttachRequest{Qpn: 0x7fffff, Regions: region(1)}, fine},
		{&mcrdmav1.AnswerAttachRequest{Qpn: 0x800000, Regions: region(1)}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Qpn: 1, Regions: region(1)}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Regions: region(1)}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Bootstrap: "h2:1", Transport: "tcp", Regions: region(1)}, fine},
		{&mcrdmav1.AnswerAttachRequest{Bootstrap: "h2:1", Transport: "tcp"}, fine},
		{&mcrdmav1.AnswerAttachRequest{Bootstrap: "h2:1", Transport: "udp"}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Bootstrap: "h2", Transport: "tcp"}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Bootstrap: "h2:1", Transport: "rdma", Qpn: 2}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Bootstrap: "h2:1", Transport: "rdma", Regions: append(region(1), region(1)...)}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Qpn: 2}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Qpn: 2, Regions: region(1), Unicast: make([]byte, 256)}, fine},
		{&mcrdmav1.AnswerAttachRequest{Qpn: 2, Regions: region(1), Unicast: make([]byte, 257)}, invalid},
		{&mcrdmav1.AnswerAttachRequest{Qpn: 2, Regions: region(math.MaxUint64 - 2)}, fine},
		{&mcrdmav1.AnswerAttachRequest{Qpn: 2, Regions: region(math.MaxUint64 - 1)}, invalid},
	} {
		expect(t, i, group.CheckAnswer(asked, c.answer), c.want)
	}
	expect(t, "refused", group.Refusal(&mcrdmav1.AnswerAttachRequest{Refused: "no"}), mcrdmav1.Reason_DENIED)
	expect(t, "refused", group.Refusal(&mcrdmav1.AnswerAttachRequest{Refused: "no", Reason: "LIMIT"}), mcrdmav1.Reason_LIMIT)
}

func TestAnswersOfDaemons(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.2")
	req := &mcrdmav1.PrepareRequest{Regions: []*mcrdmav1.RegionSpec{{Length: 2}}, Connection: &mcrdmav1.Connection{Mtu: 1024}}
	relay := &mcrdmav1.PrepareRequest{Relay: true}
	regions := []*mcrdmav1.ReceiverRegion{{Rkey: 5, Va: 6}}
	for i, c := range []struct {
		req  *mcrdmav1.PrepareRequest
		res  *mcrdmav1.PrepareResponse
		want mcrdmav1.Reason
	}{
		{req, &mcrdmav1.PrepareResponse{Version: 1, Qpn: 2, Regions: regions, Mtu: 1024}, fine},
		{req, &mcrdmav1.PrepareResponse{Version: 1, Qpn: 2, Regions: regions, Mtu: 4096}, fine},
		{req, &mcrdmav1.PrepareResponse{Version: 1, Qpn: 2, Regions: regions}, fine},
		{req, &mcrdmav1.PrepareResponse{Version: 1, Qpn: 2, Regions: regions, Mtu: 512}, mcrdmav1.Reason_MTU},
		{req, &mcrdmav1.PrepareResponse{Version: 1, Bootstrap: "h2:1", Transport: "tcp", Mtu: 512}, fine},
		{relay, &mcrdmav1.PrepareResponse{Version: 1, Qpn: 2, Mtu: 512}, fine},
		{req, &mcrdmav1.PrepareResponse{Version: 2, Qpn: 2, Regions: regions}, mcrdmav1.Reason_VERSION},
		{req, &mcrdmav1.PrepareResponse{Version: 1, Qpn: 2}, invalid},
	} {
		r, err := group.ReceiverFrom(addr, c.req, c.res)
		expect(t, i, err, c.want)
		if err != nil && failure.Of(err).Host != "10.0.0.2" || r.Host != "10.0.0.2" || r.Addr != addr {
			t.Errorf("%v: of %+v", err, r)
		}
	}
	r, err := group.ReceiverFrom(addr, req, &mcrdmav1.PrepareResponse{Version: 1, Qpn: 2, Regions: regions, Host: "h2", Bootstrap: "h2:1", Transport: "rdma", Have: 3, Rack: 4,
		Unicast: []byte{7}, NoDevice: strings.Repeat("n", 2000), SeesIdentification: true})
	if err != nil || r.Host != "h2" || r.QPN != 2 || r.Bootstrap != "h2:1" || r.Transport != "rdma" || r.Have != 3 || r.Rack != 4 ||
		string(r.Unicast) != "\x07" || r.NoDevice == "" || len(r.NoDevice) > 1100 || !r.SeesIdentification ||
		!slices.Equal(r.Regions, []group.Region{{RKey: 5, VA: 6}}) {
		t.Errorf("%+v, %v", r, err)
	}
}
