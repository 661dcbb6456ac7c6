package group

import (
	"cmp"
	"math"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// minBlock is the smallest block size to choose, because messages may be larger than TypicalSize.
const minBlock = 4096

// A RelayChoice has the inputs for the choice of a Relay.
type RelayChoice struct {
	Algorithm string // "": any
	Transport string // "": any
	Block     uint32 // most; 0: what suits the transport
	Typical   uint64 // size of a message; 0: not known
	Host      string // the sender's
	Rack      uint32 // the same; 0: not known
	// Group is a number that no other formation has and no stranger can guess, so that members of
	// different formations detect their mistake, and strangers are refused.
	Group uint64
}

// For chooses how hosts relay in a formation. An error names the host that cannot.
func (c RelayChoice) For(f *Formation) (*Relay, error) {
	if f.Sender.Bootstrap == "" {
		return nil, failure.New(mcrdmav1.Reason_INVALID, "hosts would have to relay, and the sender's application has no address where it listens for that")
	}
	for _, r := range f.Receivers {
		if r.Bootstrap == "" {
			return nil, failure.New(mcrdmav1.Reason_INVALID, "hosts would have to relay, and the receiver's application has no address where it listens for that").AtHost(r.Host)
		}
	}
	out := &Relay{Block: c.Block, Group: c.Group}
	var err error
	if out.Transport, err = c.transport(f); err != nil {
		return nil, err
	}
	if out.Block == 0 {
		out.Block = map[string]uint32{"tcp": schedule.BlockTCP, "rdma": schedule.BlockRDMA}[out.Transport]
	}
	racks := c.racks(f)
	name := c.Algorithm
	if name == "" {
		name = schedule.BinomialPipeline.String()
		if c.Typical > 0 {
			h := schedule.Hints{MaxBlock: int64(out.Block)}
			if racks != nil {
				if h.Racks, err = schedule.RacksOf(racks); err != nil {
					return nil, failure.New(mcrdmav1.Reason_INVALID, "racks: %v", err)
				}
			}
			plan, err := schedule.Choose(int64(min(c.Typical, math.MaxInt64)), len(f.Receivers)+1, h) //nolint:gosec // bounded
			if err != nil {
				return nil, failure.New(mcrdmav1.Reason_INVALID, "no way of relaying can be chosen: %v", err)
			}
			name, out.Block = plan.Algorithm.String(), max(uint32(plan.BlockSize), min(minBlock, out.Block)) //nolint:gosec // at most MaxBlock
		}
	}
	if out.Algorithm = name; name == schedule.Hybrid.String() {
		if racks == nil {
			return nil, failure.New(mcrdmav1.Reason_INVALID, "the hybrid algorithm has to know each host's rack: configure rack at all of them, or use another algorithm")
		}
		for _, r := range racks {
			out.Racks = append(out.Racks, uint32(r)) //nolint:gosec // it was one
		}
	}
	return out, nil
}

// transport returns "rdma" if all members can, unless another is configured.
func (c RelayChoice) transport(f *Formation) (string, error) {
	if c.Transport == "tcp" {
		return c.Transport, nil
	}
	switch why, host := NoRDMA(f); {
	case why == "":
		return "rdma", nil
	case c.Transport == "rdma":
		return "", failure.New(mcrdmav1.Reason_INVALID, "hosts are to relay by RDMA, and %s: open one, or use transport auto", why).AtHost(cmp.Or(host, c.Host))
	}
	return "tcp", nil
}

// racks returns the racks of all members; nil: not all are known.
func (c RelayChoice) racks(f *Formation) []int {
	racks := []int{int(c.Rack)}
	for _, r := range f.Receivers {
		racks = append(racks, int(r.Rack))
	}
	if slices.Contains(racks, 0) {
		return nil
	}
	return racks
}
