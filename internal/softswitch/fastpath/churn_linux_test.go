package fastpath

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

const (
	churning = 6 // groups
	spare    = 6 // a port by which one member of each group may be reached, too
	lastPort = spare
)

// An arrival is what a request has become at a port.
type arrival struct {
	host int // whose address it has; 0: nothing comes to that port
	qpn  rocev2.QPN
	rkey uint32
}

// An outcome is the result of a group's requests, port by port.
type outcome [lastPort + 1]arrival

func (s *outcome) copies() (n int) {
	for _, a := range s {
		if a.host != 0 {
			n++
		}
	}
	return n
}

// A changing group is made, removed, and made again with other QPNs; members leave and come, or move to another port.
type changing struct {
	index   int
	mcid    rocev2.QPN
	life    int
	there   bool
	members [4]bool // hosts 2 to 5
	away    int     // which of them is reached by the spare port; -1: none

	states    []outcome // all that there were
	confirmed int       // the one that the control plane knows to be there
}

// state is what its requests come to now. Those of a group that is not there are routed.
func (g *changing) state() (s outcome) {
	if !g.there {
		s[2] = arrival{2, g.mcid, dataplane.SenderRKey}
		return s
	}
	for i, is := range g.members {
		if is {
			s[g.port(i)] = arrival{2 + i, g.qpn(i), dataplane.ReceiverRKey(i)}
		}
	}
	return s
}

func (g *changing) port(i int) int {
	if g.away == i {
		return spare
	}
	return 2 + i
}

func (g *changing) qpn(i int) rocev2.QPN { return rocev2.QPN(0x1000*(g.index+1) + 16*(g.life%200) + i) }

// A churn is a switch whose groups change while requests come in.
type churn struct {
	*wired
	mu     sync.Mutex // the switch's
	known  sync.Mutex // of what follows
	groups [churning]*changing
}

// replica is the entry of member i.
func (c *churn) replica(g *changing, i int) []uint64 {
	change := rocev2.HeaderChange{Dst: dataplane.HostIP(2 + i), QPN: g.mcid ^ g.qpn(i)}
	for j, b := range dataplane.HostIP(2) {
		change.Dst[j] ^= b
	}
	return []uint64{dataplane.Addr(dataplane.HostIP(2 + i)), uint64(g.qpn(i)), uint64(g.port(i)), uint64(rocev2.NeutralOf(change))} //nolint:gosec // few
}

func (c *churn) ports(g *changing) (list []pre.Replica) {
	for i, is := range g.members {
		if is {
			list = append(list, pre.Replica{Port: uint16(g.port(i)), Instance: uint16(i + 1)}) //nolint:gosec // few
		}
	}
	return list
}

// write brings the tables from one state of a group to the other, as the control plane does.
func (c *churn) write(g *changing, was bool) error {
	id := uint32(g.index + 1) //nolint:gosec // few
	switch {
	case was && !g.there:
		for _, table := range []string{"ingress.replication.groups", "egress.rewrite.replicas", "egress.rewrite.regions"} {
			t := c.Table(table)
			var gone []*pipeline.Entry
			for e := range t.All() {
				if table == "ingress.replication.groups" && e.Key[1].Value.Uint() == uint64(g.mcid) || table != "ingress.replication.groups" && key32(e, 0) == id {
					gone = append(gone, e)
				}
			}
			for _, e := range gone {
				if err := t.Delete(e.Key, e.Priority); err != nil {
					return err
				}
			}
		}
		return c.PRE.DeleteGroup(id)
	case g.there && !was:
		for i := range g.members {
			c.Add("egress.rewrite.replicas", []any{int(id), i + 1}, "egress.rewrite.to_receiver", c.replica(g, i)...)
			c.Add("egress.rewrite.regions", []any{int(id), i + 1, dataplane.SenderRKey, dataplane.Span{Low: dataplane.SenderVA, High: dataplane.SenderVA + 1<<20}},
				"egress.rewrite.translate", 0, uint64(dataplane.ReceiverRKey(i)), uint64(rocev2.NeutralOf(rocev2.HeaderChange{RKey: dataplane.SenderRKey ^ dataplane.ReceiverRKey(i)})))
		}
		if err := c.PRE.InsertGroup(id, c.ports(g)); err != nil {
			return err
		}
		c.Add("ingress.replication.groups", []any{dataplane.Addr(dataplane.HostIP(1)), uint64(g.mcid), dataplane.Addr(dataplane.HostIP(2))},
			"ingress.replication.replicate", uint64(id), uint64(id), 1)
	case g.there:
		for i := range g.members {
			c.Modify("egress.rewrite.replicas", []any{int(id), i + 1}, "egress.rewrite.to_receiver", c.replica(g, i)...)
		}
		return c.PRE.ModifyGroup(id, c.ports(g))
	}
	return nil
}

// step changes a group, and knows when it returns that this is so.
func (c *churn) step(rng *rand.Rand) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[rng.IntN(churning)]
	was := g.there
	switch i := rng.IntN(len(g.members)); {
	case !was || rng.IntN(4) == 0:
		g.there, g.life = !was, g.life+1
	case rng.IntN(2) == 0:
		if g.members[i] = !g.members[i]; g.members == [4]bool{} {
			g.members[i] = true // one has to be there
		}
	case g.away == i:
		g.away = -1
	default:
		g.away = i
	}
	c.known.Lock()
	g.states = append(g.states, g.state())
	c.known.Unlock()
	if err := c.write(g, was); err != nil {
		return err
	}
	for wait := c.Ends(); wait != nil; wait = c.Ends() {
		c.mu.Unlock()
		wait()
		c.mu.Lock()
	}
	c.Changed()
	c.known.Lock()
	g.confirmed = len(g.states) - 1
	c.known.Unlock()
	return nil
}

// A request is one that was sent, and what has come of it.
type request struct {
	g       *changing
	from    int // the state that was confirmed by then
	climbed bool
	became  outcome
}

// found notes a frame at a port.
func found(sent []*request, port int, frame []byte) error {
	f := dataplane.Frame{Data: frame}
	p, err := f.Parse()
	if err != nil || !f.GoodICRC() || len(p.Payload) < 4 {
		return fmt.Errorf("port %d: no right request: % x, %w", port, frame, err)
	}
	n := int(binary.BigEndian.Uint32(p.Payload))
	if n >= len(sent) {
		return fmt.Errorf("port %d: request %d is late", port, n)
	}
	a := arrival{qpn: p.H.DestQP, rkey: p.H.RETH.RKey, host: int(p.IP.Dst[3])}
	if dataplane.HostIP(a.host) != p.IP.Dst || port > lastPort || sent[n].became[port].host != 0 {
		return fmt.Errorf("port %d: request %d comes twice, or for %v", port, n, p.IP.Dst)
	}
	sent[n].became[port] = a
	return nil
}

// missing is how many copies of a request are missing, of those of one state that it may have met; the error says
// that what came is of none of them.
func (r *request) missing() (least int, err error) {
	least = -1
	for _, s := range r.g.states[r.from:] {
		fits := true
		for port, a := range r.became {
			fits = fits && (a.host == 0 || a == s[port])
		}
		if n := s.copies() - r.became.copies(); fits && (least < 0 || n < least) {
			least = n
		}
	}
	if least < 0 {
		return 0, fmt.Errorf("a request to group %d became %+v, which is of no state since it was sent: %+v", r.g.index, r.became, r.g.states[r.from:])
	}
	return least, nil
}

// expected is how many copies requests have at least that did not climb.
func (c *churn) expected(sent []*request) (n int) {
	for _, r := range sent {
		least := lastPort
		for _, s := range r.g.states[r.from:] {
			least = min(least, s.copies())
		}
		if !r.climbed {
			n += least
		}
	}
	return n
}

// burst sends requests to any groups, and judges what becomes of them.
func (c *churn) burst(rng *rand.Rand, n int) error {
	before := c.Stats()
	sent := make([]*request, n)
	for i := range sent {
		c.known.Lock()
		g := c.groups[rng.IntN(churning)]
		sent[i] = &request{g: g, from: g.confirmed}
		c.known.Unlock()
		p := dataplane.Between(1, 2, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.WriteOnly, PKey: rocev2.DefaultPKey, DestQP: g.mcid},
			RETH: rocev2.RETH{VA: dataplane.SenderVA, RKey: dataplane.SenderRKey, Length: 64}}, binary.BigEndian.AppendUint32(nil, uint32(i))) //nolint:gosec // few
		p.Payload = append(p.Payload, make([]byte, 60)...)
		c.wires.Send(c, 1, p.Frame())
	}
	if err := c.settle(sent, before); err != nil {
		return err
	}
	now := c.Stats()
	c.known.Lock()
	defer c.known.Unlock()
	lost := 0
	for _, r := range sent {
		m, err := r.missing()
		if err != nil {
			return err
		}
		if m > 0 && r.climbed {
			return fmt.Errorf("the switch has lost %d copies of a request", m)
		}
		lost += m
	}
	if dropped := int(now.Dropped - before.Dropped); lost > dropped || now.Dropped != now.Updates { //nolint:gosec // few
		return fmt.Errorf("%d copies are missing, and %d were dropped: %+v, before %+v", lost, dropped, now, before)
	}
	return nil
}

// settle waits until each request has climbed, was copied or routed, and each copy has come or was dropped.
func (c *churn) settle(sent []*request, before Stats) error {
	climbed, came := 0, 0
	for end := time.Now().Add(10 * time.Second); ; {
		for f := c.wires.Climbs(1, unix.MSG_DONTWAIT); f != nil; f = c.wires.Climbs(1, unix.MSG_DONTWAIT) {
			c.mu.Lock()
			out := c.Alone(1, f)
			c.mu.Unlock()
			climbed++
			for _, x := range out {
				if err := found(sent, int(x.Port), x.Data); err != nil {
					return err
				}
			}
			sent[int(binary.BigEndian.Uint32(f[14+20+8+12+16:]))].climbed = true
		}
		now := c.Stats()
		for port := 2; port <= lastPort; port++ {
			for f := c.wires.Next(port, unix.MSG_DONTWAIT); f != nil; f = c.wires.Next(port, unix.MSG_DONTWAIT) {
				came++
				if err := found(sent, port, f); err != nil {
					return err
				}
			}
		}
		c.known.Lock()
		least := c.expected(sent)
		c.known.Unlock()
		routed, requests := int(now.Routed-before.Routed), int(now.Requests-before.Requests) //nolint:gosec // few
		left, dropped := int(now.Copies-before.Copies), int(now.Dropped-before.Dropped)      //nolint:gosec // few
		if climbed+routed+requests == len(sent) && came == left+routed && left+routed+dropped >= least && now == c.Stats() {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("of %d requests %d climbed; %d copies came of at least %d: %+v, before %+v", len(sent), climbed, came, least, now, before)
		}
	}
}

// TestVethChurn: while groups are created, removed and rerouted, no request is lost, and no copies
// except those counted; no copy is wrong or of two states of its group, and none reaches a member
// after its removal was confirmed. It takes a minute in the long mode.
func TestVethChurn(t *testing.T) {
	updates := 1500
	if os.Getenv("MCRDMA_LONG") != "" {
		updates = 50_000
	}
	c := &churn{wired: newWiredTo(t, lastPort)}
	c.Loaded(c.Pipeline, c.PRE)
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // for a test
	for i := range c.groups {
		g := &changing{index: i + 20, mcid: rocev2.QPN(0xe10000 + i), members: [4]bool{true, true, true}, away: -1}
		g.states = []outcome{g.state()}
		c.groups[i] = g
	}
	done := make(chan error, 1)
	var ends sync.WaitGroup
	defer ends.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ends.Go(func() {
		c.wires.Enter(t)                   // sets of ports are made where they are
		rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // for a test
		for i := 0; i < updates && ctx.Err() == nil; i++ {
			if err := c.step(rng); err != nil {
				done <- err
				return
			}
			time.Sleep(time.Duration(rng.IntN(200)) * time.Microsecond)
		}
		done <- nil
	})
	began, before, bursts := time.Now(), c.Stats(), 0
	const burst = 32
	for running := true; running; bursts++ {
		if err := c.burst(rng, burst); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if running = false; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	now := c.Stats()
	t.Logf("%d updates and %d requests in %v: %d copied by the kernel, %d routed, %d copies, %d dropped for half an update", updates, bursts*burst,
		time.Since(began).Round(time.Millisecond), now.Requests-before.Requests, now.Routed-before.Routed, now.Copies-before.Copies, now.Updates-before.Updates)
	if now.Requests == before.Requests || now.Routed == before.Routed || c.Status()[:3] != "xdp" {
		t.Error(c.Status())
	}
}

// TestVethOthers: changes of groups, their copies, members and merging, and learned MACs do not
// affect packets and answers of other groups: none climbs, and none is dropped.
func TestVethOthers(t *testing.T) {
	c := &churn{wired: newWiredTo(t, lastPort)}
	c.Install(c.group)
	c.Loaded(c.Pipeline, c.PRE)
	other := still(9)
	c.Install(other)
	c.Changed()
	for i := range c.groups {
		g := &changing{index: i + 20, mcid: rocev2.QPN(0xe10000 + i), members: [4]bool{true, true, true}, away: -1}
		g.states = []outcome{g.state()}
		c.groups[i] = g
	}
	var ends sync.WaitGroup
	defer ends.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var steps atomic.Int32
	ends.Go(func() {
		c.wires.Enter(t)                   // sets of ports are made where they are
		rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // for a test
		for ; ctx.Err() == nil; steps.Add(1) {
			if err := c.step(rng); err != nil {
				t.Error(err)
				return
			}
			other.Members = uint16(1 + steps.Load()%7) //nolint:gosec // few
			c.Merge(other)
			c.Add("ingress.unicast.bridge", []any{uint64(0x020000010000) + uint64(steps.Load())}, "ingress.unicast.to_port", 2) //nolint:gosec // few
			c.Changed()
		}
	})
	const updates, burst = 300, 32
	for n := 0; steps.Load() < updates; n++ {
		for i := range burst {
			c.wires.Send(t, 1, c.group.Data(rocev2.SendOnly, rocev2.PSN(i), make([]byte, 64)).Frame())
			c.wires.Send(t, c.group.Receivers[i%3], c.ack(i%3, rocev2.PSN(n*burst+i)))
		}
		want := uint64((n + 1) * burst) //nolint:gosec // few
		c.until("copies", func(s Stats) uint64 { return s.Copies }, 3*want)
		c.until("answers", func(s Stats) uint64 { return s.Answers + s.Dropped - s.Updates }, want)
		for port := 1; port <= lastPort; port++ {
			for c.wires.Next(port, unix.MSG_DONTWAIT) != nil {
			}
		}
	}
	stop()
	ends.Wait()
	now := c.Stats()
	if t.Logf("%d updates: %+v", steps.Load(), now); now.Updates > 0 || now.Strays > 0 {
		t.Error(c.Status())
	}
}
