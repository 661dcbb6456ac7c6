package connmgr

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"slices"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// minBlock is the smallest block that is chosen: messages may be larger than they
// typically are.
const minBlock = 4096

// auto is a choice that is left to the daemon.
const auto = "auto"

// relayFor decides how hosts relay in a formation. An error names the host that cannot.
func (m *Manager) relayFor(g *group, f *formation) (*machine.Relay, error) {
	if f.Sender.Bootstrap == "" {
		return nil, failure.New(mcrdmav1.Reason_INVALID, "hosts would have to relay, and the sender's application has no address where it listens for that")
	}
	for _, r := range f.Receivers {
		if r.Bootstrap == "" {
			return nil, failure.New(mcrdmav1.Reason_INVALID, "hosts would have to relay, and the receiver's application has no address where it listens for that").AtHost(r.Host)
		}
	}
	out := &machine.Relay{Block: m.cfg.Relay.Block, Group: relayGroup()}
	var err error
	if out.Transport, err = m.transportFor(g, f); err != nil {
		return nil, err
	}
	racks := m.racksOf(f)
	name := cmp.Or(notAuto(g.spec.Algorithm), notAuto(m.cfg.Relay.Algorithm))
	if name == "" {
		name = schedule.BinomialPipeline.String()
		if g.spec.Typical > 0 {
			h := schedule.Hints{MaxBlock: int64(m.cfg.Relay.Block)}
			if racks != nil {
				if h.Racks, err = schedule.RacksOf(racks); err != nil {
					return nil, failure.New(mcrdmav1.Reason_INVALID, "racks: %v", err)
				}
			}
			plan, err := schedule.Choose(int64(min(g.spec.Typical, 1<<50)), len(f.Receivers)+1, h) //nolint:gosec // bounded
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

func notAuto(s string) string {
	if s == auto {
		return ""
	}
	return s
}

// transportFor is "rdma" if all can, unless something else is wanted.
func (m *Manager) transportFor(g *group, f *formation) (string, error) {
	want := cmp.Or(notAuto(g.spec.Transport), notAuto(m.cfg.Relay.Transport))
	if want == "tcp" {
		return want, nil
	}
	without := ""
	if f.Sender.QPN == 0 {
		without = m.name
	}
	for _, r := range f.Receivers {
		if r.Transport != "rdma" {
			without = r.Host
		}
	}
	switch {
	case without == "":
		return "rdma", nil
	case want == "rdma":
		return "", failure.New(mcrdmav1.Reason_INVALID, "hosts are to relay by RDMA, and the application has no device: open one, or use transport auto").AtHost(without)
	}
	return "tcp", nil
}

// racksOf returns the racks of all members; nil: not all are known.
func (m *Manager) racksOf(f *formation) []int {
	racks := []int{int(m.cfg.Rack)}
	for _, r := range f.Receivers {
		racks = append(racks, int(r.Rack))
	}
	if slices.Contains(racks, 0) {
		return nil
	}
	return racks
}

// relayGroup returns a number that no other formation has and no stranger can guess, so
// that members that meet by mistake notice it, and strangers are turned away.
func relayGroup() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return max(binary.BigEndian.Uint64(b[:]), 1)
}
