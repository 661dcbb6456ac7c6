package bifurcation

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// DefaultMaxPREGroups is how many PRE groups one step may take for equal-cost
// paths, unless the request says otherwise.
const DefaultMaxPREGroups = 16

// maxHops keeps the RIDs of all receivers' next hops within 16 bits.
const maxHops = 65535 / MaxReceivers

// Hop is a next hop of a switch.
type Hop struct {
	NextHop uint16 // the switch's number of it, not 0; an index of its next_hops and neighbors
	Port    uint32 // data plane port
}

// Route is the result of Algorithm 1's NextHop(dst): one switch's route to a receiver.
type Route struct {
	// Hops are the equal-cost next hops, in any order. None: no route.
	Hops []Hop

	// Next are the next programmable switches on all of the paths, in any order; non-programmable
	// ones are skipped.
	Next []Switch

	// Direct: a path leads to the receiver through no further programmable switch.
	Direct bool
}

// Request asks for a switch's step of a group.
type Request struct {
	Source netip.Addr // the sender's
	ID     uint32     // MC_ID

	// Receivers that are to be reached from here, in the group's order.
	Receivers []Receiver

	// Dst is the destination address of arriving packets. Zero: the first receiver's. Otherwise it
	// belongs to a receiver that has left, which the sender or upstream switches still use; no copy
	// keeps it. If it is another receiver's, that receiver counts as the first.
	Dst netip.Addr

	// Via are the programmable switches that packets have passed, including this one. Packets that
	// pass one of them again are in a loop.
	Via []Switch

	// Early are receivers that get separate copies here, although they could share one for longer.
	// See ErrAmbiguous.
	Early []netip.Addr

	// Late leaves the full rewriting of a copy to the last programmable switch on its path, except
	// for Early receivers. See the package comment.
	Late bool

	// MaxPREGroups limits Rules.PREGroups; 0 is DefaultMaxPREGroups. Of a branch
	// with more next hops, only so many are used, in ascending order.
	MaxPREGroups int
}

// Replica is a copy that the packet replication engine makes.
type Replica struct {
	RID  uint16 // from 1 on
	Port uint32
}

// Rewrite says how the copy with this RID is rewritten.
type Rewrite struct {
	RID     uint16
	NextHop uint16
	Dst     netip.Addr // new destination address
	Last    bool       // to_receiver, with QPN; otherwise to_branch, and the MC_ID stays
	QPN     uint32     // new destination QPN, if Last

	// Neutral is the constant that the switch XORs into identification and source port, so that the
	// ICRC stays right; 0: the ICRC is recomputed. Step leaves it 0; see Neutralize.
	Neutral uint32
}

// Translation rewrites the RETH of a last copy: it adds Offset, modulo 2^64, to a virtual address
// in [First, Last] under RKey, and sets NewRKey. A switch's translations do not overlap, so their
// priorities do not matter.
type Translation struct {
	RID         uint16
	RKey        uint32
	First, Last uint64 // the sender's virtual addresses, both inclusive
	Offset      uint64
	NewRKey     uint32
	Neutral     uint32 // for the change of the rkey, in addition to Rewrite.Neutral
}

// A Change is a change of a packet's headers, by a rewrite or a translation, that is the same for
// all packets: the virtual address stays.
type Change struct {
	Dst, NewDst   netip.Addr // zero in a translation's
	QPN, NewQPN   uint32
	RKey, NewRKey uint32
}

// Neutralize sets the constants, by calling neutral, for packets ⟨dst, id⟩, which are those of the
// rules. Translations that change the virtual address have none: the bits that this changes depend
// on the address.
func (r *Rules) Neutralize(dst netip.Addr, id uint32, neutral func(Change) uint32) {
	for i := range r.Rewrites {
		w := &r.Rewrites[i]
		c := Change{Dst: dst, NewDst: w.Dst, QPN: id, NewQPN: id}
		if w.Last {
			c.NewQPN = w.QPN
		}
		w.Neutral = neutral(c)
	}
	for i := range r.Translations {
		if t := &r.Translations[i]; t.Offset == 0 {
			t.Neutral = neutral(Change{RKey: t.RKey, NewRKey: t.NewRKey})
		}
	}
}

// Rules are the entries to install on a switch for packets ⟨Request.Source, Request.ID,
// Request.Dst⟩. The switch's agent chooses the indices of PRE groups and of the group.
type Rules struct {
	// PREGroups: the flow's hash selects one. Each has a replica for each branch. None: nothing
	// needs to be installed, and packets follow their unicast route.
	PREGroups    [][]Replica
	Rewrites     []Rewrite     // by ascending RID
	Translations []Translation // by ascending RID, then in the order of Receiver.Regions
}

// Empty reports whether nothing needs to be installed.
func (r Rules) Empty() bool { return len(r.PREGroups) == 0 }

// Branch is a set of receivers that share a copy, for the next switches.
type Branch struct {
	// Next are the next programmable switches on the branch's paths, in ascending order. Each must
	// make its step, because each gets some of the flows.
	Next []Switch

	// Receivers, at least two unless the request is Late, in the request's order. The first is the
	// representative: packets arrive with its address.
	Receivers []Receiver
}

// Result is the result of a step. It shares memory with the request only for the receivers' regions
// and, where nothing splits, the receivers.
type Result struct {
	Rules    Rules
	Branches []Branch // by their first receiver; without those that end here, rewritten in full
}

// branch is a set of receivers while it is collected.
type branch struct {
	route Route // of the representative
	count int   // receivers
	alone bool  // no other receiver may join
	last  bool  // rewritten in full
}

// Step computes one switch's part of Algorithm 1. route is NextHop of this switch; it is called
// once for each receiver, the representative first, and its results are only read.
//
// The same arguments give the same result, whatever the order within the routes' sets. An error
// wraps one of this package's, or is route's.
func Step(req Request, route func(dst netip.Addr) (Route, error)) (Result, error) {
	if err := validate(req.Source, req.ID, req.Dst, req.Receivers); err != nil {
		return Result{}, err
	}
	dst := destination(req.Dst, req.Receivers)
	req.Receivers = toFront(dst, req.Receivers)
	var (
		branches [MaxReceivers]branch
		of       [MaxReceivers]int // branch of each receiver
		n        int
	)
	for i := range req.Receivers {
		dst := req.Receivers[i].Addr
		r, err := route(dst)
		if err != nil {
			return Result{}, err
		}
		if err := check(dst, r, req.Via); err != nil {
			return Result{}, err
		}
		alone := r.Direct || slices.Contains(req.Early, dst)
		of[i] = n
		for b := 0; b < n && !alone; b++ {
			if !branches[b].alone && sameSet(branches[b].route.Next, r.Next) {
				of[i] = b
				break
			}
		}
		if of[i] == n {
			branches[n] = branch{route: r, alone: alone}
			n++
		}
		branches[of[i]].count++
	}
	for b := range branches[:n] {
		branches[b].last = branches[b].count == 1 && (branches[b].alone || !req.Late)
	}
	if n == 1 && !branches[0].last && dst == req.Receivers[0].Addr {
		return Result{Branches: []Branch{{Next: sorted(branches[0].route.Next, cmp.Compare), Receivers: req.Receivers}}}, nil
	}
	return Result{
		Rules:    rules(req, branches[:n], of[:len(req.Receivers)]),
		Branches: downstream(req, branches[:n], of[:len(req.Receivers)]),
	}, nil
}

// check refuses routes that lead nowhere or back.
func check(dst netip.Addr, r Route, via []Switch) error {
	if len(r.Hops) == 0 || len(r.Next) == 0 && !r.Direct {
		return fmt.Errorf("%w to %v", ErrNoRoute, dst)
	}
	if len(r.Hops) > maxHops {
		return fmt.Errorf("%w: %d next hops to %v, and %d is the most", ErrInvalid, len(r.Hops), dst, maxHops)
	}
	for _, s := range r.Next {
		if slices.Contains(via, s) {
			return fmt.Errorf("%w: packets to %v come by switch %q again", ErrLoop, dst, s)
		}
	}
	return nil
}

// rules makes the copies. RIDs count through the branches and, within a branch,
// through its next hops, as each next hop needs a rewriting of its own.
func rules(req Request, branches []branch, of []int) Rules {
	var width [MaxReceivers]int
	var hops [MaxReceivers][]Hop
	limit := req.MaxPREGroups
	if limit <= 0 {
		limit = DefaultMaxPREGroups
	}
	copies := 0
	for b := range branches {
		hops[b] = sorted(branches[b].route.Hops, compareHops)
		hops[b] = hops[b][:min(limit, len(hops[b]))]
		width[b] = len(hops[b])
		copies += width[b]
	}
	groups := spread(width[:len(branches)], limit)
	out := Rules{PREGroups: make([][]Replica, groups), Rewrites: make([]Rewrite, 0, copies)}
	for k := range groups {
		out.PREGroups[k] = make([]Replica, len(branches))
	}

	rid := uint16(1)
	for b := range branches {
		first := &req.Receivers[slices.Index(of, b)]
		last := branches[b].last
		shift := apart(out.PREGroups, b, hops[b])
		for k := range groups {
			w := (k + shift) % width[b]
			out.PREGroups[k][b] = Replica{RID: rid + uint16(w), Port: hops[b][w].Port}
		}
		for _, hop := range hops[b] {
			rewrite := Rewrite{RID: rid, NextHop: hop.NextHop, Dst: first.Addr, Last: last}
			if last {
				rewrite.QPN = first.QPN
				out.Translations = slices.Grow(out.Translations, len(first.Regions))
				for _, m := range first.Regions {
					out.Translations = append(out.Translations, Translation{
						RID: rid, RKey: m.RKey, First: m.VA, Last: m.last(), Offset: m.ReceiverVA - m.VA, NewRKey: m.ReceiverRKey})
				}
			}
			out.Rewrites = append(out.Rewrites, rewrite)
			rid++
		}
	}
	return out
}

// apart returns by how much branch b counts its next hops ahead of the PRE groups' numbers, so that
// the fewest of a packet's copies leave by a port that an earlier branch's copy leaves by.
func apart(groups [][]Replica, b int, hops []Hop) (shift int) {
	least := math.MaxInt
	for s := 0; s < len(hops) && least > 0; s++ {
		shared := 0
		for k, group := range groups {
			for _, r := range group[:b] {
				if r.Port == hops[(k+s)%len(hops)].Port {
					shared++
				}
			}
		}
		if shared < least {
			least, shift = shared, s
		}
	}
	return shift
}

// downstream hands on the branches that are to be split again.
func downstream(req Request, branches []branch, of []int) (out []Branch) {
	for b := range branches {
		if branches[b].last {
			continue
		}
		next := Branch{Next: sorted(branches[b].route.Next, cmp.Compare), Receivers: make([]Receiver, 0, branches[b].count)}
		for i, at := range of {
			if at == b {
				next.Receivers = append(next.Receivers, req.Receivers[i])
			}
		}
		out = append(out, next)
	}
	return out
}

// spread returns how many PRE groups to take for branches of these widths, none of
// which exceeds the limit: enough that each path is used, and such that the busiest
// path of any branch carries the least above its share; of several, the smallest. In
// n groups, a path of a branch of width w is taken ceil(n/w) times at most, and its
// share is n/w.
func spread(widths []int, limit int) int {
	best, bestOver := 0, 0
	for n := slices.Max(widths); n <= limit; n++ {
		over := 0 // above the share, in n-ths of it
		for _, w := range widths {
			over = max(over, (n+w-1)/w*w-n)
		}
		if over == 0 {
			return n
		}
		if best == 0 || over*best < bestOver*n {
			best, bestOver = n, over
		}
	}
	return best
}

func compareHops(a, b Hop) int {
	return cmp.Or(cmp.Compare(a.NextHop, b.NextHop), cmp.Compare(a.Port, b.Port))
}

// sorted returns a set's elements, each once, in ascending order.
func sorted[T comparable](set []T, compare func(a, b T) int) []T {
	out := slices.Clone(set)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}

// sameSet compares sets that are in any order, and may name an element twice.
func sameSet[T comparable](a, b []T) bool {
	subset := func(a, b []T) bool {
		return !slices.ContainsFunc(a, func(x T) bool { return !slices.Contains(b, x) })
	}
	return slices.Equal(a, b) || subset(a, b) && subset(b, a)
}
