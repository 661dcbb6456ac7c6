package journey

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// ErrNoWrite says that there was no complete write among the packets.
var ErrNoWrite = errors.New("no whole write was seen")

// Options say what to explain.
type Options struct {
	// All explains all of the group's packets, not only those of one write.
	All bool
	// Latest selects the last completed write, instead of the first.
	Latest bool
	// After ignores writes that began before: when not all ports were watched, and little was known
	// of the members.
	After time.Time
	// PSN, if not nil, selects the write with this packet, whenever it began.
	PSN *rocev2.PSN
}

// A Journey is the result.
type Journey struct {
	Packets []Packet   // in the order of their times
	First   rocev2.PSN // of the write
	Dropped int        // packets that were lost or dropped
	Text    string     // summary, in one sentence
}

// An Explainer explains packets of one group.
type Explainer struct {
	tree  *grouptree.Tree
	group groupInfo
	ports map[switchPort]bool // watched switches and ports
}

type switchPort struct {
	sw   string
	port uint32
}

// New returns an Explainer of a group whose packets are watched at some ports. It fails if the
// agents do not report the group.
func New(tree *grouptree.Tree) (*Explainer, error) {
	g, err := infoOf(tree)
	if err != nil {
		return nil, err
	}
	return &Explainer{tree: tree, group: g, ports: map[switchPort]bool{}}, nil
}

// Watch records that a switch's port is watched: a packet that is not seen there was not there.
func (e *Explainer) Watch(sw string, port uint32) { e.ports[switchPort{sw, port}] = true }

// Relevant reports whether a packet belongs to the group. Explain does not parse it again.
func (e *Explainer) Relevant(p *Packet) bool {
	own := *p
	x := parse(&own)
	if x == nil || !e.group.holds(x) {
		return false
	}
	p.read = x
	return true
}

// parse returns the group's packets, sorted by time; at the same time, arriving packets come before
// leaving ones.
func (e *Explainer) parse(packets []Packet) []*parsed {
	var list []*parsed
	for _, p := range packets {
		if p.read != nil || e.Relevant(&p) {
			list = append(list, p.read)
		}
	}
	slices.SortStableFunc(list, func(a, b *parsed) int {
		if c := a.Time.Compare(b.Time); c != 0 || a.Out == b.Out {
			return c
		}
		if a.Out {
			return 1
		}
		return -1
	})
	return list
}

// Explain explains packets. The error wraps ErrNoWrite.
func (e *Explainer) Explain(packets []Packet, o Options) (*Journey, error) {
	list := e.parse(packets)
	w := write{}
	if !o.All {
		var err error
		if w, err = e.choose(list, o); err != nil {
			return nil, err
		}
	} else if len(list) == 0 {
		return nil, fmt.Errorf("%w: none of the packets is of group %v", ErrNoWrite, e.tree.Key)
	}
	for i, x := range list { // keep the parsed packets for the next time
		own, packet := *x, *x.Packet
		own.n, own.Packet = i, &packet
		list[i] = &own
	}
	e.follow(list)
	j := &Journey{First: w.first}
	for _, x := range list {
		if !o.All && !w.holds(x) {
			continue
		}
		if slices.ContainsFunc(x.notes, func(n string) bool { return strings.HasPrefix(n, "dropped") }) {
			j.Dropped++
		}
		x.Comment = strings.Join(x.notes, "; ")
		j.Packets = append(j.Packets, *x.Packet)
	}
	j.Text = fmt.Sprintf("group %v, %d receivers: %d packets", e.tree.Key, len(e.group.members), len(j.Packets))
	if !o.All {
		j.Text = fmt.Sprintf("group %v, %d receivers: one write, PSN %d to %d, seen as %d packets in %v", e.tree.Key, len(e.group.members),
			w.first, w.last, len(j.Packets), j.Packets[len(j.Packets)-1].Time.Sub(j.Packets[0].Time).Round(time.Microsecond))
	}
	return j, nil
}

// A write is one of the sender's messages.
type write struct {
	first, last rocev2.PSN
	begun, end  time.Time
}

// choose finds the write to explain: from its first arrival, to the merged answer that completes
// it.
func (e *Explainer) choose(list []*parsed, o Options) (write, error) {
	var whole []write
	begun := map[rocev2.PSN]*parsed{} // first packets, by PSN
	var open *parsed                  // the message that is arriving
	var waiting []write               // messages that have arrived
	for _, x := range list {
		switch {
		case e.group.fromSender(x) && x.Switch == e.group.root && !x.Out:
			if x.h.Opcode.IsFirst() {
				if begun[x.h.PSN] != nil {
					continue // a retransmission
				}
				open, begun[x.h.PSN] = x, x
			}
			if x.h.Opcode.IsLast() && open != nil && !x.h.PSN.Before(open.h.PSN) {
				waiting = append(waiting, write{first: open.h.PSN, last: x.h.PSN, begun: open.Time})
				open = nil
			}
		case e.group.merged(x) && x.h.Opcode == rocev2.Acknowledge && x.h.AETH.Syndrome.IsAck():
			waiting = slices.DeleteFunc(waiting, func(w write) bool {
				done := !w.last.After(x.h.PSN)
				if w.end = x.Time; done {
					whole = append(whole, w)
				}
				return done
			})
		}
	}
	if o.PSN != nil {
		i := slices.IndexFunc(whole, func(w write) bool { return !o.PSN.Before(w.first) && !o.PSN.After(w.last) })
		if i < 0 {
			return write{}, fmt.Errorf("%w with PSN %d among %d", ErrNoWrite, *o.PSN, len(whole))
		}
		return whole[i], nil
	}
	whole = slices.DeleteFunc(whole, func(w write) bool { return w.begun.Before(o.After) })
	switch {
	case len(whole) == 0:
		return write{}, fmt.Errorf("%w: of the captured packets, %d belong to group %v; the port of the sender's link at switch %s must be captured",
			ErrNoWrite, len(list), e.tree.Key, e.group.root)
	case o.Latest:
		return whole[len(whole)-1], nil
	}
	return whole[0], nil
}

// holds reports whether a packet belongs to the write.
func (w *write) holds(x *parsed) bool {
	if x.h.Opcode == rocev2.CNP {
		return !x.Time.Before(w.begun) && !x.Time.After(w.end)
	}
	return !x.h.PSN.Before(w.first) && !x.h.PSN.After(w.last)
}
