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
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// Limits on what other daemons and applications may ask for.
const (
	maxQPN     = 0x7fffff  // above are MC_IDs
	maxPSN     = 0xffffff  // 24 bits
	maxRegion  = 1 << 40   // regions lie 1 TiB apart
	maxLease   = time.Hour // of memberships
	maxService = 64
	maxAddress = 300 // of a host:port
)

func (id groupID) String() string {
	return id.source.String() + "/" + strconv.FormatUint(id.number, 10)
}

func addrFrom(s, what string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is4() || addr.IsUnspecified() {
		return netip.Addr{}, refuse(Invalid, "%s: %q is no IPv4 address of a host", what, clip(s, maxName))
	}
	return addr, nil
}

func groupIDFrom(g *mcrdmav1.GroupID) (groupID, error) {
	source, err := addrFrom(g.GetSource(), "source of the group")
	if err != nil {
		return groupID{}, err
	}
	if g.GetNumber() == 0 {
		return groupID{}, refuse(Invalid, "a group of %v without number", source)
	}
	return groupID{source, g.GetNumber()}, nil
}

// checkService says what is wrong with a service's name.
func checkService(s string) error {
	bad := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(".-_", r))
	}
	if s == "" || len(s) > maxService || strings.ContainsFunc(s, bad) {
		return refuse(Invalid, "the name of a service has 1 to %d letters, digits, '.', '-' and '_', and %q is none", maxService, clip(s, 2*maxService))
	}
	return nil
}

// checkEndpoint says what is wrong with a host:port at which a member listens.
func checkEndpoint(s, what string) error {
	host, port, err := net.SplitHostPort(s)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 || len(s) > maxAddress {
		return refuse(Invalid, "%s: %q is no host:port of a listener", what, clip(s, maxAddress))
	}
	return nil
}

func validMTU(mtu uint32) bool {
	return slices.Contains([]uint32{256, 512, 1024, 2048, 4096}, mtu)
}

// invitationFrom checks another daemon's request.
func (m *Manager) invitationFrom(id groupID, sender string, req *mcrdmav1.PrepareRequest) (invitation, error) {
	in := invitation{id: id, sender: sender, PrepareRequest: req, lease: cmp.Or(req.GetLease().AsDuration(), m.cfg.Leases.Member)}
	if err := checkService(req.GetService()); err != nil {
		return in, err
	}
	if req.GetFormation() == 0 {
		return in, refuse(Invalid, "formations count from 1")
	}
	if in.lease < 0 || in.lease > maxLease {
		return in, refuse(Invalid, "a lease of %v is not in 0 to %v", in.lease, maxLease)
	}
	if c := req.GetConnection(); c != nil {
		if c.GetAddress() != id.source.String() || c.GetQpn() < firstMCID || c.GetQpn() > firstMCID+countMCID-1 || c.GetPsn() > maxPSN ||
			!validMTU(c.GetMtu()) || c.GetDscp() > 63 {
			return in, refuse(Invalid, "a connection to %q, QPN %#x, PSN %#x, MTU %d, DSCP %d is none to the group's sender",
				clip(c.GetAddress(), maxName), c.GetQpn(), c.GetPsn(), c.GetMtu(), c.GetDscp())
		}
	} else if !req.GetRelay() {
		return in, refuse(Invalid, "neither switches nor hosts are to be used")
	}
	if n := len(req.GetRegions()); n > m.cfg.Limits.Regions {
		return in, refuse(Limit, "%d regions, and %d are allowed: ask for fewer, or raise limits.regions there", n, m.cfg.Limits.Regions)
	}
	for i, r := range req.GetRegions() {
		if r.GetLength() == 0 || r.GetLength() > maxRegion || len(r.GetName()) > maxName || r.GetRkey() == 0 || r.GetVa() > r.GetVa()+r.GetLength() {
			return in, refuse(Invalid, "region %d (%q) of %d bytes at %#x is impossible", i, clip(r.GetName(), maxName), r.GetLength(), r.GetVa())
		}
		in.memory += r.GetLength()
	}
	return in, nil
}

// event returns the event that asks the application.
func (in invitation) event(attach, previous uint64) *mcrdmav1.AttachRequested {
	return &mcrdmav1.AttachRequested{Attach: attach, Service: in.GetService(), Group: in.id.proto(), Formation: in.GetFormation(),
		Sender: in.sender, SenderProgram: clip(in.GetProgram(), maxName), Connection: in.GetConnection(), Regions: in.GetRegions(),
		Relay: in.GetRelay(), Deadline: timestamppb.New(in.deadline), Previous: previous, Joins: in.GetJoins()}
}

// sameInvitation compares all but the time to wait. An invitation that is no longer known
// (nil) equals none.
func sameInvitation(a, b *mcrdmav1.PrepareRequest) bool {
	if a == nil {
		return false
	}
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Timeout, b.Timeout = nil, nil
	return proto.Equal(a, b)
}

// refusalOf is an application's refusal.
func refusalOf(req *mcrdmav1.AnswerAttachRequest) error {
	r := Reason(req.GetReason())
	if _, ok := reasonCodes[r]; !ok {
		r = Denied
	}
	return refuse(r, "the application refuses: %s", clip(req.GetRefused(), maxText))
}

// checkAnswer says what is wrong with an application's answer.
func checkAnswer(asked *mcrdmav1.PrepareRequest, req *mcrdmav1.AnswerAttachRequest) error {
	switch {
	case req.GetQpn() > maxQPN || req.GetQpn() == 1:
		return refuse(Invalid, "QPN %#x is none of a device", req.GetQpn())
	case req.GetQpn() == 0 && req.GetBootstrap() == "":
		return refuse(Invalid, "an answer has a QPN, an address for relaying, or both")
	case len(req.GetRegions()) != len(asked.GetRegions()) && (req.GetQpn() != 0 || len(req.GetRegions()) != 0):
		return refuse(Invalid, "%d regions were asked for, and the answer has %d", len(asked.GetRegions()), len(req.GetRegions()))
	case req.GetBootstrap() != "" && !slices.Contains(transports, req.GetTransport()):
		return refuse(Invalid, "the transport of relaying is one of %q, and not %q", transports, clip(req.GetTransport(), maxName))
	}
	for i, r := range req.GetRegions() {
		if n := asked.GetRegions()[i].GetLength(); r.GetVa() > r.GetVa()+n {
			return refuse(Invalid, "region %d at %#x has no room for %d bytes", i, r.GetVa(), n)
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
	if stem, ok := strings.CutSuffix(what, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
