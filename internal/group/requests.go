package group

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
)

// ProtocolVersion is that of the protocols with applications and among daemons.
const ProtocolVersion = 1

// MC_IDs are virtual QPNs that devices don't hand out.
const (
	FirstMCID = 0x800000
	CountMCID = 0x800000
)

// A Host has the data of the daemon's host for the checks of requests.
type Host struct {
	Name      string
	Addr      netip.Addr
	Hosts     map[string]netip.Addr // others, by name
	Switch    bool                  // an agent is configured
	Receivers int                   // most of a group
	Regions   int                   // the same
	Lease     time.Duration         // of a membership, where the sender names none
}

// Limits on requests of other daemons and applications.
const (
	maxQPN     = 0x7fffff  // above are MC_IDs
	MaxPSN     = 0xffffff  // 24 bits
	maxRegion  = 1 << 40   // regions lie 1 TiB apart
	maxLease   = time.Hour // of memberships
	maxService = 64
	maxAddress = 300 // of a host:port
	MaxMembers = 16  // of a view, as the switches' program allows
)

// AddrFrom reads the address of a host.
func AddrFrom(s, what string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is4() || addr.IsUnspecified() {
		return netip.Addr{}, failure.New(mcrdmav1.Reason_INVALID, "%s: %q is not an IPv4 address of a host", what, failure.Clip(s, failure.MaxName))
	}
	return addr, nil
}

// CheckService says what is wrong with a service's name.
func CheckService(s string) error {
	bad := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(".-_", r))
	}
	if s == "" || len(s) > maxService || strings.ContainsFunc(s, bad) {
		return failure.New(mcrdmav1.Reason_INVALID, "the name of a service has 1 to %d letters, digits, '.', '-' and '_', and %q is not one", maxService, failure.Clip(s, 2*maxService))
	}
	return nil
}

// checkEndpoint says what is wrong with a host:port at which a member listens.
func checkEndpoint(s, what string) error {
	i := strings.LastIndexByte(s, ':')
	host, port := s[:max(i, 0)], s[i+1:]
	if ip, ok := strings.CutPrefix(host, "["); ok {
		host, ok = strings.CutSuffix(ip, "]")
		if _, err := netip.ParseAddr(host); err != nil || !ok {
			host = ""
		}
	} else if strings.ContainsAny(host, ":[]") {
		host = ""
	}
	if n, err := strconv.ParseUint(port, 10, 16); host == "" || err != nil || n == 0 || len(s) > maxAddress {
		return failure.New(mcrdmav1.Reason_INVALID, "%s: %q is not the host:port of a listener", what, failure.Clip(s, maxAddress))
	}
	return nil
}

func validMTU(mtu uint32) bool {
	return slices.Contains([]uint32{256, 512, 1024, 2048, 4096}, mtu)
}

// Invitation checks another daemon's request, which is of a group of that source.
func (h Host) Invitation(source netip.Addr, sender string, req *mcrdmav1.PrepareRequest) (Invitation, error) {
	lease := cmp.Or(req.GetLease().AsDuration(), h.Lease)
	if err := h.checkInvitation(source, lease, req); err != nil {
		return Invitation{}, err
	}
	in := Invitation{Request: req, Membership: Membership{Formation: req.GetFormation(), Service: req.GetService(), Sender: sender,
		Program: failure.Clip(req.GetProgram(), failure.MaxName), Joins: req.GetJoins(), Lease: lease}}
	for _, r := range req.GetRegions() {
		in.Memory += r.GetLength()
	}
	content := proto.CloneOf(req)
	content.Timeout = nil
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(content)
	in.Content = string(b)
	return in, err
}

func (h Host) checkInvitation(source netip.Addr, lease time.Duration, req *mcrdmav1.PrepareRequest) error {
	if err := CheckService(req.GetService()); err != nil {
		return err
	}
	if req.GetFormation() == 0 {
		return failure.New(mcrdmav1.Reason_INVALID, "formations count from 1")
	}
	if lease < 0 || lease > maxLease {
		return failure.New(mcrdmav1.Reason_INVALID, "a lease of %v is not in 0 to %v", lease, maxLease)
	}
	if c := req.GetConnection(); c != nil {
		if c.GetAddress() != source.String() || c.GetQpn() < FirstMCID || c.GetQpn() > FirstMCID+CountMCID-1 || c.GetPsn() > MaxPSN ||
			!validMTU(c.GetMtu()) || c.GetDscp() > 63 {
			return failure.New(mcrdmav1.Reason_INVALID, "a connection to %q, QPN %#x, PSN %#x, MTU %d, DSCP %d is not one to the group's sender",
				failure.Clip(c.GetAddress(), failure.MaxName), c.GetQpn(), c.GetPsn(), c.GetMtu(), c.GetDscp())
		}
	} else if !req.GetRelay() {
		return failure.New(mcrdmav1.Reason_INVALID, "neither switches nor hosts are to be used")
	}
	if n := len(req.GetRegions()); n > h.Regions {
		return failure.New(mcrdmav1.Reason_LIMIT, "%d regions, and %d are allowed: ask for fewer, or raise limits.regions there", n, h.Regions)
	}
	for i, r := range req.GetRegions() {
		if r.GetLength() == 0 || r.GetLength() > maxRegion || len(r.GetName()) > failure.MaxName || r.GetRkey() == 0 || r.GetVa() > math.MaxUint64-r.GetLength() {
			return failure.New(mcrdmav1.Reason_INVALID, "region %d (%q) of %d bytes at %#x is impossible", i, failure.Clip(r.GetName(), failure.MaxName), r.GetLength(), r.GetVa())
		}
	}
	return nil
}

// View checks a view of another daemon, in which this host is a member.
func (h Host) View(number uint32, members []*mcrdmav1.Member) (v RecordedView, err error) {
	if number == 0 {
		return RecordedView{}, failure.New(mcrdmav1.Reason_INVALID, "views count from 1")
	}
	if n := len(members); n > MaxMembers {
		return RecordedView{}, failure.New(mcrdmav1.Reason_LIMIT, "a view of %d receivers, and at most %d are in a group", n, MaxMembers)
	}
	v.View = number
	self := false
	for _, x := range members {
		addr, err := AddrFrom(x.GetAddress(), "member of a view")
		if err != nil {
			return RecordedView{}, err
		}
		self = self || addr == h.Addr
		v.Members = append(v.Members, ViewMember{Addr: addr, Host: failure.Clip(x.GetHost(), failure.MaxName)})
	}
	slices.SortFunc(v.Members, func(x, y ViewMember) int { return x.Addr.Compare(y.Addr) })
	if len(slices.CompactFunc(slices.Clone(v.Members), func(x, y ViewMember) bool { return x.Addr == y.Addr })) < len(members) {
		return RecordedView{}, failure.New(mcrdmav1.Reason_DUPLICATE_ADDRESS, "a view has a receiver twice")
	}
	if !self {
		return RecordedView{}, failure.New(mcrdmav1.Reason_INVALID, "a view that is to be recorded by %v does not have it as a receiver", h.Addr)
	}
	return v, nil
}

// Refusal is an application's refusal.
func Refusal(req *mcrdmav1.AnswerAttachRequest) error {
	r := cmp.Or(mcrdmav1.Reason(mcrdmav1.Reason_value[req.GetReason()]), mcrdmav1.Reason_DENIED)
	return failure.New(r, "the application refuses: %s", failure.Clip(req.GetRefused(), failure.MaxText))
}

// CheckAnswer says what is wrong with an application's answer.
func CheckAnswer(asked *mcrdmav1.PrepareRequest, req *mcrdmav1.AnswerAttachRequest) error {
	switch {
	case req.GetQpn() > maxQPN || req.GetQpn() == 1:
		return failure.New(mcrdmav1.Reason_INVALID, "%#x is not the QPN of a device", req.GetQpn())
	case req.GetQpn() == 0 && req.GetBootstrap() == "":
		return failure.New(mcrdmav1.Reason_INVALID, "an answer has a QPN, an address for relaying, or both")
	case len(req.GetRegions()) != len(asked.GetRegions()) && (req.GetQpn() != 0 || len(req.GetRegions()) != 0):
		return failure.New(mcrdmav1.Reason_INVALID, "%d regions were asked for, and the answer has %d", len(asked.GetRegions()), len(req.GetRegions()))
	case len(req.GetUnicast()) > maxUnicast:
		return failure.New(mcrdmav1.Reason_INVALID, "%d bytes for the unicast connection; at most %d", len(req.GetUnicast()), maxUnicast)
	case req.GetBootstrap() != "" && !slices.Contains(transports, req.GetTransport()):
		return failure.New(mcrdmav1.Reason_INVALID, "the transport of relaying is one of %q, and not %q", transports, failure.Clip(req.GetTransport(), failure.MaxName))
	}
	for i, r := range req.GetRegions() {
		if n := asked.GetRegions()[i].GetLength(); r.GetVa() > math.MaxUint64-n {
			return failure.New(mcrdmav1.Reason_INVALID, "region %d at %#x has no room for %d bytes", i, r.GetVa(), n)
		}
	}
	if req.GetBootstrap() == "" {
		return nil
	}
	return checkEndpoint(req.GetBootstrap(), "address for relaying")
}

// maxUnicast is the maximum size in bytes of a member's address and secret for the unicast
// connection.
const maxUnicast = 256

// transports are the transports for relaying.
var transports = []string{"rdma", "tcp"}

// ReceiverFrom checks what another daemon has answered.
func ReceiverFrom(a netip.Addr, req *mcrdmav1.PrepareRequest, res *mcrdmav1.PrepareResponse) (Receiver, error) {
	r := Receiver{Addr: a, Host: cmp.Or(failure.Clip(res.GetHost(), failure.MaxName), a.String()), QPN: res.GetQpn(), Bootstrap: res.GetBootstrap(),
		Transport: res.GetTransport(), Have: res.GetHave(), Rack: res.GetRack(), Unicast: res.GetUnicast(),
		NoDevice: failure.Clip(res.GetNoDevice(), failure.MaxText), SeesIdentification: res.GetSeesIdentification()}
	if v := res.GetVersion(); v != ProtocolVersion {
		return r, failure.New(mcrdmav1.Reason_VERSION, "its daemon speaks version %d of the protocol, and this one %d: update the older of the two", v, ProtocolVersion).AtHost(r.Host)
	}
	answer := &mcrdmav1.AnswerAttachRequest{Qpn: r.QPN, Regions: res.GetRegions(), Bootstrap: r.Bootstrap, Transport: r.Transport, Unicast: r.Unicast}
	if err := CheckAnswer(req, answer); err != nil {
		return r, failure.Of(err).AtHost(r.Host)
	}
	if mtu := res.GetMtu(); r.QPN != 0 && mtu != 0 && mtu < req.GetConnection().GetMtu() {
		return r, failure.New(mcrdmav1.Reason_MTU, "its path MTU is %d bytes, and the sender's %d: use the same at all devices", mtu, req.GetConnection().GetMtu()).AtHost(r.Host)
	}
	for _, x := range res.GetRegions() {
		r.Regions = append(r.Regions, Region{RKey: x.GetRkey(), VA: x.GetVa()})
	}
	return r, nil
}
