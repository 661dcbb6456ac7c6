package connmgr

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
)

// Limits on what other daemons and applications may ask for.
const (
	maxQPN     = 0x7fffff  // above are MC_IDs
	maxPSN     = 0xffffff  // 24 bits
	maxRegion  = 1 << 40   // regions lie 1 TiB apart
	maxLease   = time.Hour // of memberships
	maxService = 64
	maxAddress = 300 // of a host:port
	maxMembers = 16  // of a view, as the switches' program allows
)

func (id groupID) String() string {
	return id.source.String() + "/" + strconv.FormatUint(id.number, 10)
}

func addrFrom(s, what string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is4() || addr.IsUnspecified() {
		return netip.Addr{}, failure.New(mcrdmav1.Reason_INVALID, "%s: %q is no IPv4 address of a host", what, failure.Clip(s, failure.MaxName))
	}
	return addr, nil
}

func groupIDFrom(g *mcrdmav1.GroupID) (groupID, error) {
	source, err := addrFrom(g.GetSource(), "source of the group")
	if err != nil {
		return groupID{}, err
	}
	if g.GetNumber() == 0 {
		return groupID{}, failure.New(mcrdmav1.Reason_INVALID, "a group of %v without number", source)
	}
	return groupID{source, g.GetNumber()}, nil
}

// checkService says what is wrong with a service's name.
func checkService(s string) error {
	bad := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(".-_", r))
	}
	if s == "" || len(s) > maxService || strings.ContainsFunc(s, bad) {
		return failure.New(mcrdmav1.Reason_INVALID, "the name of a service has 1 to %d letters, digits, '.', '-' and '_', and %q is none", maxService, failure.Clip(s, 2*maxService))
	}
	return nil
}

// checkEndpoint says what is wrong with a host:port at which a member listens.
func checkEndpoint(s, what string) error {
	host, port, err := net.SplitHostPort(s)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 || len(s) > maxAddress {
		return failure.New(mcrdmav1.Reason_INVALID, "%s: %q is no host:port of a listener", what, failure.Clip(s, maxAddress))
	}
	return nil
}

func validMTU(mtu uint32) bool {
	return slices.Contains([]uint32{256, 512, 1024, 2048, 4096}, mtu)
}

// invitationFrom checks another daemon's request.
func (m *Manager) invitationFrom(id groupID, sender string, req *mcrdmav1.PrepareRequest) (machine.Invitation, error) {
	in := machine.Invitation{Request: req, Membership: machine.Membership{Formation: req.GetFormation(), Service: req.GetService(), Sender: sender,
		Program: failure.Clip(req.GetProgram(), failure.MaxName), Joins: req.GetJoins(), Lease: cmp.Or(req.GetLease().AsDuration(), m.cfg.Leases.Member)}}
	if err := checkService(req.GetService()); err != nil {
		return in, err
	}
	if req.GetFormation() == 0 {
		return in, failure.New(mcrdmav1.Reason_INVALID, "formations count from 1")
	}
	if in.Lease < 0 || in.Lease > maxLease {
		return in, failure.New(mcrdmav1.Reason_INVALID, "a lease of %v is not in 0 to %v", in.Lease, maxLease)
	}
	if c := req.GetConnection(); c != nil {
		if c.GetAddress() != id.source.String() || c.GetQpn() < firstMCID || c.GetQpn() > firstMCID+countMCID-1 || c.GetPsn() > maxPSN ||
			!validMTU(c.GetMtu()) || c.GetDscp() > 63 {
			return in, failure.New(mcrdmav1.Reason_INVALID, "a connection to %q, QPN %#x, PSN %#x, MTU %d, DSCP %d is none to the group's sender",
				failure.Clip(c.GetAddress(), failure.MaxName), c.GetQpn(), c.GetPsn(), c.GetMtu(), c.GetDscp())
		}
	} else if !req.GetRelay() {
		return in, failure.New(mcrdmav1.Reason_INVALID, "neither switches nor hosts are to be used")
	}
	if n := len(req.GetRegions()); n > m.cfg.Limits.Regions {
		return in, failure.New(mcrdmav1.Reason_LIMIT, "%d regions, and %d are allowed: ask for fewer, or raise limits.regions there", n, m.cfg.Limits.Regions)
	}
	for i, r := range req.GetRegions() {
		if r.GetLength() == 0 || r.GetLength() > maxRegion || len(r.GetName()) > failure.MaxName || r.GetRkey() == 0 || r.GetVa() > r.GetVa()+r.GetLength() {
			return in, failure.New(mcrdmav1.Reason_INVALID, "region %d (%q) of %d bytes at %#x is impossible", i, failure.Clip(r.GetName(), failure.MaxName), r.GetLength(), r.GetVa())
		}
		in.Memory += r.GetLength()
	}
	content := proto.CloneOf(req)
	content.Timeout = nil
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(content)
	in.Content = string(b)
	return in, err
}

// viewFrom checks a view of another daemon, in which this host is a member.
func (h *hostsServer) viewFrom(number uint32, members []*mcrdmav1.Member) (v machine.RecordedView, err error) {
	if number == 0 {
		return v, failure.New(mcrdmav1.Reason_INVALID, "views count from 1")
	}
	if n := len(members); n > maxMembers {
		return v, failure.New(mcrdmav1.Reason_LIMIT, "a view of %d receivers, and at most %d are in a group", n, maxMembers)
	}
	v.View = number
	self := false
	for _, x := range members {
		addr, err := addrFrom(x.GetAddress(), "member of a view")
		if err != nil {
			return v, err
		}
		self = self || addr == h.m.cfg.Address
		v.Members = append(v.Members, machine.ViewMember{Addr: addr, Host: failure.Clip(x.GetHost(), failure.MaxName)})
	}
	slices.SortFunc(v.Members, func(x, y machine.ViewMember) int { return x.Addr.Compare(y.Addr) })
	if len(slices.CompactFunc(slices.Clone(v.Members), func(x, y machine.ViewMember) bool { return x.Addr == y.Addr })) < len(members) {
		return v, failure.New(mcrdmav1.Reason_DUPLICATE_ADDRESS, "a view has a receiver twice")
	}
	if !self {
		return v, failure.New(mcrdmav1.Reason_INVALID, "a view that is to be recorded by %v does not have it as a receiver", h.m.cfg.Address)
	}
	return v, nil
}

// refusalOf is an application's refusal.
func refusalOf(req *mcrdmav1.AnswerAttachRequest) error {
	r := cmp.Or(mcrdmav1.Reason(mcrdmav1.Reason_value[req.GetReason()]), mcrdmav1.Reason_DENIED)
	return failure.New(r, "the application refuses: %s", failure.Clip(req.GetRefused(), failure.MaxText))
}

// checkAnswer says what is wrong with an application's answer.
func checkAnswer(asked *mcrdmav1.PrepareRequest, req *mcrdmav1.AnswerAttachRequest) error {
	switch {
	case req.GetQpn() > maxQPN || req.GetQpn() == 1:
		return failure.New(mcrdmav1.Reason_INVALID, "QPN %#x is none of a device", req.GetQpn())
	case req.GetQpn() == 0 && req.GetBootstrap() == "":
		return failure.New(mcrdmav1.Reason_INVALID, "an answer has a QPN, an address for relaying, or both")
	case len(req.GetRegions()) != len(asked.GetRegions()) && (req.GetQpn() != 0 || len(req.GetRegions()) != 0):
		return failure.New(mcrdmav1.Reason_INVALID, "%d regions were asked for, and the answer has %d", len(asked.GetRegions()), len(req.GetRegions()))
	case req.GetBootstrap() != "" && !slices.Contains(transports, req.GetTransport()):
		return failure.New(mcrdmav1.Reason_INVALID, "the transport of relaying is one of %q, and not %q", transports, failure.Clip(req.GetTransport(), failure.MaxName))
	}
	for i, r := range req.GetRegions() {
		if n := asked.GetRegions()[i].GetLength(); r.GetVa() > r.GetVa()+n {
			return failure.New(mcrdmav1.Reason_INVALID, "region %d at %#x has no room for %d bytes", i, r.GetVa(), n)
		}
	}
	if req.GetBootstrap() == "" {
		return nil
	}
	return checkEndpoint(req.GetBootstrap(), "address for relaying")
}

// transports are the transports for relaying.
var transports = []string{"rdma", "tcp"}

// plural formats a count for people.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
