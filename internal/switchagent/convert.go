package switchagent

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/switchagent/groups"
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

func groupKeyFrom(k *mcrdmav1.GroupKey) (groups.Key, error) {
	source, err := addrFrom(k.GetSource(), "source of the group")
	if err != nil {
		return groups.Key{}, err
	}
	if id := k.GetMcId(); id == 0 || id > 0xffffff {
		return groups.Key{}, invalid("MC_ID %#x is not in 0x1 to 0xffffff", id)
	}
	return groups.Key{Source: source, ID: k.GetMcId()}, nil
}

func stepKeyFrom(k *mcrdmav1.GroupKey, destination string) (groups.StepKey, error) {
	g, err := groupKeyFrom(k)
	if err != nil {
		return groups.StepKey{}, err
	}
	dst, err := addrFrom(destination, "destination")
	return groups.StepKey{Key: g, Dst: dst}, err
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

func groupFrom(m *mcrdmav1.Group, lease time.Duration) (groups.Info, error) {
	k, err := groupKeyFrom(m.GetKey())
	if err != nil {
		return groups.Info{}, err
	}
	if m.GetSenderQpn() == k.ID {
		return groups.Info{}, invalid("MC_ID %#x is the sender's own QPN", k.ID)
	}
	g := groups.Info{Group: bifurcation.Group{Source: k.Source, ID: k.ID, SenderQPN: m.GetSenderQpn(), InitialPSN: m.GetInitialPsn()},
		Lease: lease, CNPGap: m.GetCnpGap().AsDuration(), Number: m.GetKey().GetNumber()}
	if m.GetAddress() != "" {
		if g.Address, err = addrFrom(m.GetAddress(), "address of the group"); err != nil {
			return groups.Info{}, err
		}
	}
	if err := groups.CheckTimes(g.CNPGap, g.Lease); err != nil {
		return groups.Info{}, err
	}
	g.Receivers, err = receiversFrom(m.GetReceivers())
	return g, err
}

func groupKeyProto(k groups.Key) *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: k.Source.String(), McId: k.ID}
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
