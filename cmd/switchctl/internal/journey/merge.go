package journey

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A merger follows the merging switch with the model of merging. Where packets were not seen from
// the group's first on, it learns the members' progress like a restarted switch; until then it does
// not know.
type merger struct {
	group  *groupInfo
	config ackmerge.Config
	state  ackmerge.State
	begun  time.Time
}

// memberState is the model's state after an answer.
type memberState struct {
	verdict ackmerge.Verdict
	known   bool // the model knows what the switch did
	out     ackmerge.Answer
	acked   []*rocev2.PSN // by each member; nil: not known
}

func newMerger(g *groupInfo, list []*parsed) merger {
	m := merger{group: g, config: ackmerge.Config{Members: uint16(1<<min(len(g.members), ackmerge.MaxMembers) - 1), Epoch: 1, InitialPSN: g.initial, Learn: true}} //nolint:gosec // 16 bits
	m.config.Learn = !slices.ContainsFunc(list, func(x *parsed) bool { return g.fromSender(x) && !x.Out && x.h.PSN == g.initial })
	if len(list) > 0 {
		m.begun = list[0].Time
	}
	return m
}

// take processes an answer of a member, and comments on it.
func (m *merger) take(x *parsed, member int) {
	if member < 0 || member >= ackmerge.MaxMembers {
		x.state.verdict = ackmerge.NotMember
		x.note("dropped: %v is not a member, or no longer (not_member)", x.src)
		return
	}
	a := ackmerge.Answer{Member: member, CNP: x.h.Opcode == rocev2.CNP, Syndrome: x.h.AETH.Syndrome, PSN: x.h.PSN, MSN: x.h.AETH.MSN}
	s := &x.state
	s.out, s.verdict = ackmerge.Merge(&m.config, &m.state, a, x.Time.Sub(m.begun)+1)
	silent := m.silent(s)
	s.known = !m.config.Learn || len(silent) == 0
	switch s.verdict {
	case ackmerge.Pass:
		if a.CNP {
			x.note("passed on, unless the sender had one just before")
			s.known = false
			return
		}
		x.note("passed on to the sender, as the answer of all: %s", s.text(m.group))
	case ackmerge.Absorbed, ackmerge.UndecidedNAK:
		if !s.known {
			x.note("merged: what became of it is not known, as nothing was seen of %s before", strings.Join(silent, ", "))
			return
		}
		x.note("merged away (%s): the sender learns nothing from it yet: %s", words[s.verdict], s.text(m.group))
	case ackmerge.StaleNAK:
		x.note("dropped: it has acknowledged that packet since (%s)", words[s.verdict])
	case ackmerge.OutsideWindow:
		x.note("dropped: behind what the sender was told, or too far ahead (%s)", words[s.verdict])
	default:
		x.note("dropped (%s)", words[s.verdict])
	}
}

// words are the verdicts by the names of the switch's counters.
var words = map[ackmerge.Verdict]string{ackmerge.NotMember: "not_member", ackmerge.BadSyndrome: "syndrome", ackmerge.Absorbed: "absorbed",
	ackmerge.StaleNAK: "stale_nak", ackmerge.UndecidedNAK: "undecided_nak", ackmerge.FilteredCNP: "cnp_filter", ackmerge.OutsideWindow: "window"}

// silent returns the members that have not answered, and records the progress of the others.
func (m *merger) silent(s *memberState) (silent []string) {
	for i, x := range m.group.members {
		r := m.state.Acked[min(i, ackmerge.MaxMembers-1)]
		if r.Epoch != m.config.Epoch {
			silent = append(silent, x.addr.String())
			s.acked = append(s.acked, nil)
			continue
		}
		s.acked = append(s.acked, &r.PSN)
	}
	return silent
}

// text returns the progress of each member.
func (s *memberState) text(g *groupInfo) string {
	var list []string
	for i, psn := range s.acked {
		if psn == nil {
			list = append(list, fmt.Sprintf("%v nothing yet", g.members[i].addr))
			continue
		}
		list = append(list, fmt.Sprintf("%v has up to %d", g.members[i].addr, *psn))
	}
	return strings.Join(list, ", ")
}

// became reports whether one answer left the switch as the other. Where the model knows nothing, it
// accepts any answer.
func (m *merger) became(in, out *parsed) bool {
	if in.h.Opcode != out.h.Opcode {
		return false
	}
	if in.h.Opcode == rocev2.CNP {
		return true
	}
	if in.state.known {
		return in.state.verdict == ackmerge.Pass && in.state.out.PSN == out.h.PSN && in.state.out.Syndrome == out.h.AETH.Syndrome
	}
	return len(in.state.acked) > 0 && in.h.PSN == out.h.PSN
}
