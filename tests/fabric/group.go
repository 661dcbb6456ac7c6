package fabric

import (
	"context"
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Group is what a daemon would have installed. Its fields may be changed before
// it is.
type Group struct {
	Sender          string // host
	MCID, SenderQPN uint32
	InitialPSN      uint32
	Address         netip.Addr // zero: that of the first receiver
	// The sender's region, which stands for each receiver's.
	RKey       uint32
	VA, Length uint64
	Receivers  []Receiver

	sent uint32 // PSN of the last packet of Walk
}

// A Receiver is a member of a Group.
type Receiver struct {
	Host      string
	QPN, RKey uint32
	VA        uint64
}

// Group makes up a group from one host to others; its numbers are unlike those of
// other groups, and its PSNs wrap soon.
func (f *Fabric) Group(sender string, receivers ...string) *Group {
	f.lastMCID++
	n := f.lastMCID
	g := &Group{Sender: sender, MCID: 0x800000 + n, SenderQPN: 0x100 + n, InitialPSN: rocev2.Mask24 - f.rand.Uint32N(8),
		RKey: 0x1000 + n, VA: groupVA(n), Length: 1 << 20}
	for i, r := range receivers {
		g.Receivers = append(g.Receivers, f.Receiver(r, n<<8+uint32(i)))
	}
	g.sent = uint32(rocev2.PSN(g.InitialPSN).Add(-1))
	return g
}

// Receiver makes up a receiver, out of a number that no other has. Every other has its memory where
// the sender's packets address it.
func (f *Fabric) Receiver(host string, n uint32) Receiver {
	r := Receiver{Host: host, QPN: 0x10000 + n, RKey: 0x200000 + n, VA: 0x550000000000 + uint64(n)<<24}
	if n%2 == 0 {
		r.VA = groupVA(n >> 8)
	}
	return r
}

// groupVA is where the sender of group number n addresses the region.
func groupVA(n uint32) uint64 { return 0x7f0000000000 + uint64(n)<<32 }

// address is what the group's packets are addressed to.
func (f *Fabric) address(g *Group) netip.Addr {
	if g.Address.IsValid() {
		return g.Address
	}
	return f.host(g.Receivers[0].Host).Addr
}

func (f *Fabric) receivers(list []Receiver, g *Group) (out []*mcrdmav1.Receiver) {
	for _, r := range list {
		x := &mcrdmav1.Receiver{Address: f.host(r.Host).Addr.String(), Qpn: r.QPN, SeesIdentification: true}
		if g.Length > 0 {
			x.Regions = []*mcrdmav1.MemoryRegion{{Rkey: g.RKey, Va: g.VA, Length: g.Length, ReceiverRkey: r.RKey, ReceiverVa: r.VA}}
		}
		out = append(out, x)
	}
	return out
}

// Key is the group's name in the fabric.
func (f *Fabric) Key(g *Group) *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: f.host(g.Sender).Addr.String(), McId: g.MCID}
}

// Proto is the group as it is installed.
func (f *Fabric) Proto(g *Group) *mcrdmav1.Group {
	p := &mcrdmav1.Group{Key: f.Key(g), SenderQpn: g.SenderQPN, InitialPsn: g.InitialPSN, Receivers: f.receivers(g.Receivers, g)}
	if g.Address.IsValid() {
		p.Address = g.Address.String()
	}
	return p
}

// TryInstall has a group installed by the agent of the sender's switch.
func (f *Fabric) TryInstall(g *Group) error {
	return within(func(ctx context.Context) error {
		_, err := f.GroupsAs(g.Sender).Install(ctx, &mcrdmav1.InstallRequest{Group: f.Proto(g), Lease: durationpb.New(groupLease)})
		return err
	})
}

// groupLease is longer than any test.
const groupLease = 3600e9

// Install is TryInstall, and must succeed.
func (f *Fabric) Install(g *Group) {
	f.t.Helper()
	if err := f.TryInstall(g); err != nil {
		f.t.Fatalf("installing a group from %s: %v", g.Sender, err)
	}
}

// Remove has a group removed.
func (f *Fabric) Remove(g *Group) {
	f.t.Helper()
	err := within(func(ctx context.Context) error {
		_, err := f.GroupsAs(g.Sender).Remove(ctx, &mcrdmav1.RemoveRequest{Key: f.Key(g)})
		return err
	})
	if err != nil {
		f.t.Fatalf("removing a group from %s: %v", g.Sender, err)
	}
}

// Problems are what the agents say is not as it should be with a group.
func (f *Fabric) Problems(g *Group) (problems []string) {
	f.t.Helper()
	for _, n := range f.order {
		if n.agent == nil {
			continue
		}
		err := within(func(ctx context.Context) error {
			res, err := f.Status(n.Name).ListSteps(ctx, &mcrdmav1.ListStepsRequest{Group: f.Key(g)})
			for _, s := range res.GetSteps() {
				for _, p := range s.Problems {
					problems = append(problems, fmt.Sprintf("%s: %s", n.Name, p))
				}
			}
			return err
		})
		f.must(err)
	}
	return problems
}
