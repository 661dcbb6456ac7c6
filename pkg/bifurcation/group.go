package bifurcation

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// Reasons why a group is not possible. Errors of this package wrap one of these, and name the
// address or switch.
var (
	ErrNoReceivers      = errors.New("no receivers")
	ErrTooManyReceivers = errors.New("too many receivers")
	ErrDuplicateAddress = errors.New("two receivers on one address")
	ErrSenderReceives   = errors.New("sender is among the receivers")
	ErrNoRoute          = errors.New("no route")
	ErrLoop             = errors.New("routing loop")
	ErrNoMergePoint     = errors.New("no merge point")
	ErrInvalid          = errors.New("invalid group")

	// ErrAmbiguous: a switch got two branches of one group with the same representative and
	// different receivers. The previous switch makes its step again, with the branch's receivers in
	// Request.Early.
	ErrAmbiguous = errors.New("two branches with one representative meet")
)

// MaxReceivers is the number of members that a switch can merge answers of.
const MaxReceivers = 16

const maxQPN = 1<<24 - 1

// Switch names a switch. No switch has the empty name.
type Switch string

// Region is a memory region that the sender's WRITEs may address, and the corresponding region of
// the receiver.
type Region struct {
	RKey   uint32 // the sender's: what its packets carry
	VA     uint64 // the sender's: first byte
	Length uint64 // bytes, at least 1; VA+Length does not exceed 2^64

	ReceiverRKey uint32
	ReceiverVA   uint64 // the receiver's first byte
}

// last is the sender's address of the region's last byte.
func (r Region) last() uint64 { return r.VA + (r.Length - 1) }

// Receiver is one member of a group.
type Receiver struct {
	Addr               netip.Addr // IPv4
	QPN                uint32     // 24 bits
	Regions            []Region   // do not overlap where the sender's rkeys are equal
	SeesIdentification bool       `json:",omitempty"` // takes packets with any IPv4 identification
}

// Group is a multicast group ⟨SRC, DST₁ … DSTₙ⟩.
type Group struct {
	Source     netip.Addr // the sender's IPv4 address
	ID         uint32     // MC_ID: the QPN that the sender's queue pair is connected to, 24 bits
	SenderQPN  uint32     // the queue pair's own number, 24 bits
	InitialPSN uint32     // its first PSN, 24 bits

	// Receivers, 1 to MaxReceivers.
	Receivers []Receiver

	// Address is the address that the sender's queue pair is connected to: its packets go there,
	// and answers come from there. Zero: the first receiver's. It stays when that receiver leaves
	// the group, and no host needs to be reachable there.
	Address netip.Addr

	// Late is Request.Late of Plan's requests.
	Late bool
}

// Destination returns the destination address of the sender's packets.
func (g Group) Destination() netip.Addr { return destination(g.Address, g.Receivers) }

func destination(dst netip.Addr, receivers []Receiver) netip.Addr {
	if !dst.IsValid() && len(receivers) > 0 {
		return receivers[0].Addr
	}
	return dst
}

// toFront returns the receivers with that of an address, if it is among them,
// before the others.
func toFront(dst netip.Addr, receivers []Receiver) []Receiver {
	i := slices.IndexFunc(receivers, func(r Receiver) bool { return r.Addr == dst })
	if i <= 0 {
		return receivers
	}
	return slices.Concat(receivers[i:i+1], receivers[:i], receivers[i+1:])
}

// Validate checks that the group is valid, wherever its members are.
func (g Group) Validate() error {
	if g.SenderQPN > maxQPN || g.InitialPSN > maxQPN {
		return fmt.Errorf("%w: sender's QPN %#x or initial PSN %#x has more than 24 bits", ErrInvalid, g.SenderQPN, g.InitialPSN)
	}
	return validate(g.Source, g.ID, g.Address, g.Receivers)
}

func validate(source netip.Addr, id uint32, dst netip.Addr, receivers []Receiver) error {
	switch {
	case !source.Is4():
		return fmt.Errorf("%w: sender's address %v is not IPv4", ErrInvalid, source)
	case id > maxQPN:
		return fmt.Errorf("%w: MC_ID %#x has more than 24 bits", ErrInvalid, id)
	case dst.IsValid() && (!dst.Is4() || dst == source):
		return fmt.Errorf("%w: packets to %v: the address is not IPv4, or the sender's own", ErrInvalid, dst)
	case len(receivers) == 0:
		return fmt.Errorf("%w: group %v %#x", ErrNoReceivers, source, id)
	case len(receivers) > MaxReceivers:
		return fmt.Errorf("%w: %d, and %d is the most that answers can be merged of", ErrTooManyReceivers, len(receivers), MaxReceivers)
	}
	for i := range receivers {
		r := &receivers[i]
		switch {
		case !r.Addr.Is4():
			return fmt.Errorf("%w: receiver's address %v is not IPv4", ErrInvalid, r.Addr)
		case r.Addr == source:
			return fmt.Errorf("%w: %v", ErrSenderReceives, source)
		case r.QPN > maxQPN:
			return fmt.Errorf("%w: QPN %#x of %v has more than 24 bits", ErrInvalid, r.QPN, r.Addr)
		}
		for j := range i {
			if receivers[j].Addr == r.Addr {
				return fmt.Errorf("%w: %v", ErrDuplicateAddress, r.Addr)
			}
		}
		if err := validateRegions(r); err != nil {
			return err
		}
	}
	return nil
}

func validateRegions(r *Receiver) error {
	for _, m := range r.Regions {
		if m.Length == 0 || m.Length-1 > math.MaxUint64-m.VA {
			return fmt.Errorf("%w: region of %v at %#x has length %d", ErrInvalid, r.Addr, m.VA, m.Length)
		}
		if m.ReceiverVA > math.MaxUint64-(m.Length-1) {
			return fmt.Errorf("%w: region of %v at the receiver's %#x has length %d", ErrInvalid, r.Addr, m.ReceiverVA, m.Length)
		}
	}
	order := func(a, b Region) int { return cmp.Or(cmp.Compare(a.RKey, b.RKey), cmp.Compare(a.VA, b.VA)) }
	regions := r.Regions
	if !slices.IsSortedFunc(regions, order) {
		regions = slices.Clone(regions)
		slices.SortFunc(regions, order)
	}
	for i := 1; i < len(regions); i++ {
		if a, b := regions[i-1], regions[i]; a.RKey == b.RKey && b.VA <= a.last() {
			return fmt.Errorf("%w: regions of %v under rkey %#x overlap at %#x", ErrInvalid, r.Addr, b.RKey, b.VA)
		}
	}
	return nil
}

// MergeMember says how to recognize a member's answers.
type MergeMember struct {
	Index uint8      // the member's bit and record, 0 to 15: its place in the group
	Src   netip.Addr // the receiver's address
	Dst   netip.Addr // the sender's
	QPN   uint32     // the receivers' queue pairs are connected to the MC_ID
}

// Merge is the rule by which the merge point merges the answers of all receivers into those of one.
// The switch's agent chooses slot, epoch, `learn` and the CNP gap.
type Merge struct {
	Current    uint16     // a bit for each current member
	InitialPSN uint32     // 24 bits
	Source     netip.Addr // the address that answers come from, as the sender sees it
	SenderQPN  uint32     // the queue pair that they go to, 24 bits
	Members    []MergeMember
}

// MergeOf returns the merge rule of a valid group.
func MergeOf(g Group) Merge {
	m := Merge{
		Current:    uint16(1<<len(g.Receivers) - 1),
		InitialPSN: g.InitialPSN,
		Source:     g.Destination(),
		SenderQPN:  g.SenderQPN,
		Members:    make([]MergeMember, len(g.Receivers)),
	}
	for i, r := range g.Receivers {
		m.Members[i] = MergeMember{Index: uint8(i), Src: r.Addr, Dst: g.Source, QPN: g.ID}
	}
	return m
}
