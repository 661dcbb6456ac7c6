package connmgr

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/agent"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/grouptree"
)

// install installs a formation in the switches if possible, or else chooses a relay. It first
// removes the previous formation from the switches.
func (m *Manager) install(ctx context.Context, g *group, f, old *formation) (in machine.Installation, err error) {
	if old != nil {
		undo, cancel := context.WithTimeout(ctx, undoTime)
		if err := m.tor.Remove(undo, old.MCID); err != nil {
			m.log.Warn("a formation that has ended is still at the switch; it will be removed", "group", g.id, "error", err)
			in.OldLeft = true
		}
		cancel()
	}
	why, sw := m.host.NoSwitch(&g.spec, f), ""
	if why == "" {
		most, err := m.tor.Install(ctx, g.id.number, &g.spec, f)
		if in.Left = true; err == nil {
			in.Path, in.MaxPackets = mcrdmav1.Path_PATH_SWITCH, most
			in.Why = []string{"by switches: " + m.tor.Name + " merges"} // not how many receivers: some may be removed later
			return in, nil
		}
		if ctx.Err() != nil {
			return in, ctx.Err()
		}
		why, sw = err.Error(), m.tor.Name
		if e, ok := errors.AsType[*agent.Error](err); ok {
			sw, in.Transient, in.Left = e.Switch, e.Transient, !e.Unchanged
		}
	}
	if !g.spec.Relays(f.Sender) {
		e := failure.New(mcrdmav1.Reason_NO_SWITCH, "mode require, and switches cannot copy: %s", why)
		e.Switch = sw
		return in, e
	}
	var secret [8]byte
	_, _ = rand.Read(secret[:]) // never fails
	choice := machine.RelayChoice{Algorithm: notAuto(g.spec.Algorithm, m.cfg.Relay.Algorithm), Transport: notAuto(g.spec.Transport, m.cfg.Relay.Transport),
		Block: m.cfg.Relay.Block, Typical: g.spec.Typical, Host: m.cfg.Name, Rack: m.cfg.Rack, Group: max(binary.BigEndian.Uint64(secret[:]), 1)}
	if in.Relay, err = choice.For(f); err != nil {
		cannot := failure.Of(err)
		cannot.Text += " (switches cannot copy: " + why + ")"
		return in, cannot
	}
	in.Path, in.Why = mcrdmav1.Path_PATH_RELAY, []string{"by hosts: " + why, fmt.Sprintf("relayed as %s over %s", in.Relay.Algorithm, in.Relay.Transport)}
	if no, _ := machine.NoRDMA(f); no != "" && no != why {
		in.Why = append(in.Why, "over TCP: "+no)
	}
	return in, nil
}

// notAuto returns the first choice that is not left to the daemon; "": there is none.
func notAuto(choices ...string) string {
	for _, c := range choices {
		if c != "" && c != machine.Auto {
			return c
		}
	}
	return ""
}

// treeTime limits the request for a tree, which is only for people.
const treeTime = 500 * time.Millisecond

// draw describes the tree of a formation in lines of text, and why switches copy; nil: unknown.
func (m *Manager) draw(ctx context.Context, f *formation) (tree, why []string) {
	steps := m.tor.Steps(ctx, f.MCID)
	if len(steps) == 0 {
		return nil, nil
	}
	hosts := map[string]string{}
	for _, r := range f.Receivers {
		hosts[r.Addr.String()] = r.Host
	}
	tree = append([]string{fmt.Sprintf("%s (%v) sends to %s, which merges", m.cfg.Name, m.cfg.Address, m.tor.Name)}, grouptree.Lines(steps, hosts)...)
	return tree, []string{fmt.Sprintf("by switches: %s merges, %s behind %s", m.tor.Name, machine.Plural(len(f.Receivers), "receiver"),
		strings.Join(grouptree.Behind(steps, m.tor.Name), ", "))}
}
