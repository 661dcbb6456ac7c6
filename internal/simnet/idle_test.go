package simnet

import (
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// TestIdle: when nothing is under way any more, switches hold nothing, whatever was copied, absorbed, lost or dropped before.
func TestIdle(t *testing.T) {
	for _, pfc := range []bool{true, false} {
		p := Defaults()
		p.PFC, p.Buffer, p.HostDelay = pfc, 256<<10, 100*time.Nanosecond
		s := racks(t, p, 1)
		h := hosts(t, s, "h1", "h2", "h3", "h4")
		if err := s.SetLoss("spine", "torB", 0.01); err != nil {
			t.Fatal(err)
		}
		for i := range h {
			var others []int
			for k := 1; k < len(h); k++ {
				others = append(others, h[(i+k)%len(h)])
			}
			g, err := s.Group(h[i], others...)
			if err != nil {
				t.Fatal(err)
			}
			for range 40 {
				if err := g.Sender.Post(qp.OpWrite, 200_000, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.Run(time.Minute)
		c := s.Counts()
		if c.InFlight != 0 || c.Lost == 0 || c.Absorbed == 0 || pfc != (c.Pauses > 0) || pfc == (c.Dropped > 0) {
			t.Fatalf("PFC %v: %+v", pfc, c)
		}
		for i := range s.nodes {
			if n := &s.nodes[i]; n.used != 0 {
				t.Errorf("PFC %v: %d bytes wait in %s", pfc, n.used, n.Name)
			}
		}
		for i := range s.ports {
			if p := &s.ports[i]; p.held != 0 || p.pausing || p.paused || p.data.bytes != 0 || p.control.bytes != 0 || p.stats.MaxQueue > s.p.Buffer {
				t.Errorf("PFC %v: port %d of %s: %+v", pfc, p.number, s.nodes[p.node].Name, *p)
			}
		}
	}
}

// TestRoom: without PFC a queue of data takes at most what it leaves free, and a switch holds what its buffer has room for.
func TestRoom(t *testing.T) {
	const size, buffer = 1000, 200_000
	fill := func(s *Sim, port int32, control bool) (n int) {
		for before := s.counts.Dropped; ; n++ {
			i := s.packets.take()
			s.packets.list[i] = packet{wire: size, control: control, in: port}
			if s.put(port, i); s.counts.Dropped > before {
				return n
			}
		}
	}
	for _, c := range []struct {
		pfc                  bool
		data, other, control int
	}{{false, 100, 50, 50}, {true, 200, 0, 0}} {
		p := Defaults()
		p.PFC, p.Buffer, p.HostDelay, p.FabricDelay = c.pfc, buffer, 0, 0
		s := racks(t, p, 1)
		ports := s.nodes[s.fabric.sw["torA"]].ports
		if data, other, control := fill(s, ports[0], false), fill(s, ports[1], false), fill(s, ports[0], true); data != c.data || other != c.other || control != c.control {
			t.Errorf("PFC %v: %d packets in one queue, %d in another, %d of control; want %d, %d and %d", c.pfc, data, other, control, c.data, c.other, c.control)
		}
	}
}
