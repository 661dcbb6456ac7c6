package simnet

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/mcrdma/mcrdma/internal/topology"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

const none = int32(-1)

// A node is a host or a switch. Its address in packets is its index.
type node struct {
	*topology.Node
	ports  []int32
	routes [][]int32 // of a switch: the ports to a host, by the host's index
	seed   uint32    // of its hash
	addr   [4]byte   // of a host
	form   Switch    // of a switch that is not this package's
	wakes  int64     // when it is to be called; 0: it has nothing to do
	used   int       // bytes that wait in it
	room   int       // bytes of its buffer that are no headroom
	ready  []int32   // of a host: the endpoints that may have something to send, in turns
}

// A port is one end of a link, and what waits there to be sent.
type port struct {
	node, peer int32 // the node that it is at; the port at the other end
	number     uint32
	link       int
	perByte    float64 // picoseconds
	delay      int64   // picoseconds
	loss       float64

	data, control queue
	changed       int64 // when data last came or left
	sending       int32 // bytes of the packet under way; 0: the port is free
	from          int32 // the port that this packet came by
	paused        bool  // by the other end

	held    int  // bytes of data that came in here and wait in the node
	pausing bool // the other end has been told so

	stats PortStats
}

// PortStats are what a port has sent, and lost.
type PortStats struct {
	Packets, Bytes uint64  // on the wire, with preamble and gap
	Data           uint64  // of these, bytes of data packets
	Marked         uint64  // packets
	Dropped        uint64  // packets that found no room
	Lost           uint64  // packets, on the link
	Pauses         uint64  // how often the other end has paused it
	MaxQueue       int     // bytes of data
	Queued         float64 // seconds that bytes of data have waited, summed over the bytes
}

// Wait is for how long data has waited for its turn, in the mean of all bytes.
func (p *PortStats) Wait() time.Duration {
	return time.Duration(p.Queued / float64(max(1, p.Data)) * float64(time.Second))
}

// A queue is a list of packets.
type queue struct {
	head, tail int32
	bytes      int
}

// A Sim is a fabric with its hosts, and what happens in it. The zero value is not usable; see [New].
type Sim struct {
	p        Params
	now      int64 // picoseconds
	end      int64
	events   events
	later    events     // timers of endpoints that are not soon, mostly of many that do nothing: not to be in the way
	rng      *rand.Rand // of the fabric: losses and marks
	requests *rand.Rand
	nodes    []node
	ports    []port
	packets  pool
	ends     []*Endpoint
	groups   []*Group
	calls    []func() // by the event's number; nil: called
	called   []int    // numbers that are free
	scratch  scratch
	fabric   *fabric
	counts   Counts
	flows    uint16 // source ports given out
	watch    func(*Seen)
	frames   map[int32][]byte // of packets that come from switches that are not this package's
}

// Counts are sums over the whole simulation.
type Counts struct {
	Events     uint64 `json:"events"`    // that were handled
	Delivered  uint64 `json:"delivered"` // packets to hosts
	Stray      uint64 `json:"stray"`     // packets that no endpoint or rule was for
	Damaged    uint64 `json:"damaged"`   // packets to hosts whose ICRC was wrong
	Absorbed   uint64 `json:"absorbed"`  // answers that merging did not pass on
	Marked     uint64 `json:"marked"`    // packets
	Dropped    uint64 `json:"dropped"`   // packets that found no room
	Lost       uint64 `json:"lost"`      // packets, on links
	Pauses     uint64 `json:"pauses"`
	Copies     uint64 `json:"copies"`      // that replication made
	InFlight   int    `json:"in_flight"`   // packets under way now
	MaxPackets int    `json:"max_packets"` // the most that there were
}

// New returns a fabric that nothing happens in yet. Errors wrap ErrParams.
func New(t *topology.Topology, p Params, seed uint64) (*Sim, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	s := &Sim{p: p, rng: rand.New(rand.NewPCG(seed, 0x6d63726d61)), requests: rand.New(rand.NewPCG(seed, 0x72657175657374)), packets: pool{unused: none}}
	index := map[*topology.Node]int32{}
	for i, n := range t.Nodes() {
		index[n] = int32(i)
		s.nodes = append(s.nodes, node{Node: n, seed: uint32(mix(seed<<16 + uint64(i) + 1))}) //nolint:gosec // half of it
		if n.Switch == nil {
			s.nodes[i].addr = n.Address.As4()
		}
	}
	for l, link := range t.Links {
		a, b := index[t.Node(link.A.Node)], index[t.Node(link.B.Node)]
		rate, delay := p.FabricRate, p.FabricDelay
		if s.nodes[a].Switch == nil || s.nodes[b].Switch == nil {
			rate, delay = p.HostRate, p.HostDelay
		}
		at := int32(len(s.ports))
		for i, end := range []topology.End{link.A, link.B} {
			own := []int32{a, b}[i]
			s.ports = append(s.ports, port{node: own, peer: at + 1 - int32(i), number: end.Port, link: l, perByte: 8e12 / rate,
				delay: delay.Nanoseconds() * 1000, data: queue{head: none, tail: none}, control: queue{head: none, tail: none}})
			s.nodes[own].ports = append(s.nodes[own].ports, at+int32(i))
		}
	}
	s.fabric = newFabric(s, t)
	for i := range s.nodes {
		n := &s.nodes[i]
		if n.Switch == nil {
			continue
		}
		n.room = p.Buffer
		for _, at := range n.ports {
			n.room -= s.headroom(&s.ports[at])
		}
		if p.PFC && n.room < p.Buffer/4 {
			return nil, fmt.Errorf("%w: switch %s has a buffer of %d bytes, of which PFC's headroom for %d links takes %d; want a larger buffer",
				ErrParams, n.Name, p.Buffer, len(n.ports), p.Buffer-n.room)
		}
	}
	return s, nil
}

// headroom is what may still arrive after a port has paused the other end.
func (s *Sim) headroom(p *port) int {
	if !s.p.PFC {
		return 0
	}
	back := &s.ports[p.peer]
	return int(float64(2*back.delay)/back.perByte) + 3*(s.p.MTU+s.p.Overhead())
}

// A fabric is the topology as the bifurcation sees it. Next hops are numbered as ports are.
type fabric struct {
	s    *Sim
	host map[netip.Addr]int32
	sw   map[bifurcation.Switch]int32
}

func newFabric(s *Sim, t *topology.Topology) *fabric {
	f := &fabric{s: s, host: map[netip.Addr]int32{}, sw: map[bifurcation.Switch]int32{}}
	at := map[topology.End]int32{}
	for i := range s.ports {
		p := &s.ports[i]
		at[topology.End{Node: s.nodes[p.node].Name, Port: p.number}] = int32(i)
	}
	for i := range s.nodes {
		if n := &s.nodes[i]; n.Switch == nil {
			f.host[n.Address] = int32(i)
		} else {
			f.sw[bifurcation.Switch(n.Name)] = int32(i)
			n.routes = make([][]int32, len(s.nodes))
		}
	}
	for dst := range s.nodes {
		to := &s.nodes[dst]
		if to.Switch != nil {
			continue
		}
		for i := range s.nodes {
			n := &s.nodes[i]
			if n.Switch == nil {
				continue
			}
			for _, hop := range t.HopsTo(n.Node, to.Node, nil) {
				number, _ := strconv.ParseUint(hop.Port, 10, 32) // the topology has made it of a number
				n.routes[dst] = append(n.routes[dst], at[topology.End{Node: n.Name, Port: uint32(number)}])
			}
			slices.SortFunc(n.routes[dst], func(a, b int32) int { return cmp.Compare(s.ports[a].number, s.ports[b].number) })
		}
	}
	return f
}

// Uplinks implements bifurcation.Fabric.
func (f *fabric) Uplinks(host netip.Addr) (list []bifurcation.Switch) {
	if i, ok := f.host[host]; ok {
		for _, p := range f.s.nodes[i].ports {
			list = append(list, f.name(f.s.ports[f.s.ports[p].peer].node))
		}
	}
	return list
}

// NextHops implements bifurcation.Fabric.
func (f *fabric) NextHops(at bifurcation.Switch, dst netip.Addr) (list []bifurcation.Link) {
	for _, p := range f.s.nodes[f.sw[at]].routes[f.host[dst]] {
		out := &f.s.ports[p]
		list = append(list, bifurcation.Link{Hop: bifurcation.Hop{NextHop: uint16(out.number), Port: out.number}, //nolint:gosec // 509 at most
			To: f.name(f.s.ports[out.peer].node)})
	}
	return list
}

// Programmable implements bifurcation.Fabric.
func (f *fabric) Programmable(at bifurcation.Switch) bool {
	return f.s.nodes[f.sw[at]].Switch.Programmable
}

// name is "" for a host.
func (f *fabric) name(i int32) bifurcation.Switch {
	if n := &f.s.nodes[i]; n.Switch != nil {
		return bifurcation.Switch(n.Name)
	}
	return ""
}

// port is a switch's port by its number.
func (f *fabric) port(sw int32, number uint32) int32 {
	for _, p := range f.s.nodes[sw].ports {
		if f.s.ports[p].number == number {
			return p
		}
	}
	return none
}

// A Link is one direction of a link.
type Link struct {
	From, To string
	Port     uint32  // of From, 0 of a host
	Rate     float64 // bits a second
	PortStats
}

// Links are all links, each direction by itself, in the order of the topology.
func (s *Sim) Links() (list []Link) {
	for i := range s.ports {
		p := &s.ports[i]
		list = append(list, Link{From: s.nodes[p.node].Name, Port: p.number, To: s.nodes[s.ports[p.peer].node].Name, Rate: 8e12 / p.perByte, PortStats: p.stats})
	}
	return list
}

// SetLoss lets packets get lost, with a probability, on all links from one node to another. The error
// says that there is none, or wraps ErrParams.
func (s *Sim) SetLoss(from, to string, share float64) error {
	if !(share >= 0 && share < 1) {
		return fmt.Errorf("%w: loss of %g; want 0 to less than 1", ErrParams, share)
	}
	return s.each(from, to, func(p *port) { p.loss = share })
}

// SetRate gives all links from one node to another, in this direction, a rate in bits a second.
func (s *Sim) SetRate(from, to string, rate float64) error {
	if !(rate >= 1e6 && rate <= 10e12) {
		return fmt.Errorf("%w: rate of %g b/s; want 1 Mb/s to 10 Tb/s", ErrParams, rate)
	}
	return s.each(from, to, func(p *port) { p.perByte = 8e12 / rate })
}

func (s *Sim) each(from, to string, do func(*port)) error {
	found := false
	for i := range s.ports {
		if p := &s.ports[i]; s.nodes[p.node].Name == from && s.nodes[s.ports[p.peer].node].Name == to {
			do(p)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("%w: link from %q to %q", topology.ErrUnknown, from, to)
	}
	return nil
}

// Host finds a host's number by its name. The error wraps topology.ErrUnknown.
func (s *Sim) Host(name string) (int, error) {
	for i := range s.nodes {
		if n := &s.nodes[i]; n.Name == name && n.Switch == nil {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%w: host %q", topology.ErrUnknown, name)
}

// Hosts are the numbers of all hosts, in the order of the topology.
func (s *Sim) Hosts() (list []int) {
	for i := range s.nodes {
		if s.nodes[i].Switch == nil {
			list = append(list, i)
		}
	}
	return list
}

// Rack is the number of the switch that a host is at.
func (s *Sim) Rack(host int) int { return int(s.ports[s.ports[s.nodes[host].ports[0]].peer].node) }

// Addr is a host's address.
func (s *Sim) Addr(host int) netip.Addr { return s.nodes[host].Address }

// Name is a node's.
func (s *Sim) Name(n int) string { return s.nodes[n].Name }

// Rand is a source of random numbers for what is asked of the fabric. What happens in it draws from another one, so that the same is asked
// of different ways to replicate.
func (s *Sim) Rand() *rand.Rand { return s.requests }

// Params are those that the simulation was made with.
func (s *Sim) Params() Params { return s.p }

// Counts returns the sums until now.
func (s *Sim) Counts() Counts {
	c := s.counts
	c.InFlight, c.MaxPackets = s.packets.taken, len(s.packets.list)
	return c
}

// mix makes one number of another in which each bit depends on all bits (splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
