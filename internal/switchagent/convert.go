package switchagent

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// invalid is the error for an invalid message.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", bifurcation.ErrInvalid, fmt.Sprintf(format, args...))
}

func addrFrom(s, what string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is4() {
		return netip.Addr{}, invalid("%s: %q is not an IPv4 address", what, s)
	}
	return addr, nil
}

func groupKeyFrom(k *mcrdmav1.GroupKey) (groupKey, error) {
	source, err := addrFrom(k.GetSource(), "source of the group")
	if err != nil {
		return groupKey{}, err
	}
	if id := k.GetMcId(); id == 0 || id > 0xffffff {
		return groupKey{}, invalid("MC_ID %#x is not in 0x1 to 0xffffff", id)
	}
	return groupKey{source, k.GetMcId()}, nil
}

func stepKeyFrom(k *mcrdmav1.GroupKey, destination string) (stepKey, error) {
	g, err := groupKeyFrom(k)
	if err != nil {
		return stepKey{}, err
	}
	dst, err := addrFrom(destination, "destination")
	return stepKey{g, dst}, err
}

func receiversFrom(list []*mcrdmav1.Receiver) ([]bifurcation.Receiver, error) {
	if len(list) > bifurcation.MaxReceivers {
		return nil, fmt.Errorf("%w: %d, and %d is the most", bifurcation.ErrTooManyReceivers, len(list), bifurcation.MaxReceivers)
	}
	out := make([]bifurcation.Receiver, 0, len(list))
	for _, r := range list {
		addr, err := addrFrom(r.GetAddress(), "receiver")
		if err != nil {
			return nil, err
		}
		x := bifurcation.Receiver{Addr: addr, QPN: r.GetQpn(), SeesIdentification: r.GetSeesIdentification()}
		if len(r.GetRegions()) > maxRegions {
			return nil, fmt.Errorf("%w: receiver %v has %d memory regions, and %d is the most", ErrLimit, addr, len(r.GetRegions()), maxRegions)
		}
		for _, m := range r.GetRegions() {
			x.Regions = append(x.Regions, bifurcation.Region{RKey: m.GetRkey(), VA: m.GetVa(), Length: m.GetLength(),
				ReceiverRKey: m.GetReceiverRkey(), ReceiverVA: m.GetReceiverVa()})
		}
		out = append(out, x)
	}
	return out, nil
}

// maxRegions bounds a receiver's memory regions.
const maxRegions = 1024

// maxVia bounds how many switches a packet may pass.
const maxVia = 64

// viaFrom reads the list of switches that packets have passed, and sorts it. The caller is the last
// of them.
func viaFrom(list []string, caller bifurcation.Switch) ([]bifurcation.Switch, error) {
	if len(list) == 0 || len(list) > maxVia || list[len(list)-1] != string(caller) {
		return nil, invalid("the %d switches that packets passed are more than %d, or switch %s, which calls, is not the last of them", len(list), maxVia, caller)
	}
	out := make([]bifurcation.Switch, 0, len(list))
	for _, v := range list {
		if v == "" || len(v) > failure.MaxName {
			return nil, invalid("%.20q among the switches that packets passed is no name", v)
		}
		out = append(out, bifurcation.Switch(v))
	}
	slices.Sort(out)
	if n := len(out); len(slices.Compact(out)) != n {
		return nil, invalid("packets passed a switch twice: %q", list)
	}
	return out, nil
}

func groupFrom(m *mcrdmav1.Group, lease time.Duration) (*group, error) {
	k, err := groupKeyFrom(m.GetKey())
	if err != nil {
		return nil, err
	}
	if m.GetSenderQpn() == k.id {
		return nil, invalid("MC_ID %#x is the sender's own QPN", k.id)
	}
	g := &group{Group: bifurcation.Group{Source: k.source, ID: k.id, SenderQPN: m.GetSenderQpn(), InitialPSN: m.GetInitialPsn()},
		lease: lease, cnpGap: m.GetCnpGap().AsDuration(), number: m.GetKey().GetNumber()}
	if m.GetAddress() != "" {
		if g.Address, err = addrFrom(m.GetAddress(), "address of the group"); err != nil {
			return nil, err
		}
	}
	if err := checkTimes(g.cnpGap, g.lease); err != nil {
		return nil, err
	}
	g.Receivers, err = receiversFrom(m.GetReceivers())
	return g, err
}

// maxLease bounds leases.
const maxLease = 24 * time.Hour

func checkTimes(cnpGap, lease time.Duration) error {
	if cnpGap < 0 || cnpGap > time.Hour {
		return invalid("a least time of %v between CNPs is not in 0 to 1 h", cnpGap)
	}
	if lease <= 0 || lease > maxLease {
		return invalid("a lease of %v is not in 0 to %v", lease, maxLease)
	}
	return nil
}

func groupKeyProto(k groupKey) *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: k.source.String(), McId: k.id}
}

func receiversProto(list []bifurcation.Receiver) []*mcrdmav1.Receiver {
	out := make([]*mcrdmav1.Receiver, 0, len(list))
	for _, r := range list {
		x := &mcrdmav1.Receiver{Address: r.Addr.String(), Qpn: r.QPN, SeesIdentification: r.SeesIdentification}
		for _, m := range r.Regions {
			x.Regions = append(x.Regions, &mcrdmav1.MemoryRegion{Rkey: m.RKey, Va: m.VA, Length: m.Length,
				ReceiverRkey: m.ReceiverRKey, ReceiverVa: m.ReceiverVA})
		}
		out = append(out, x)
	}
	return out
}
