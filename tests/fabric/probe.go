package fabric

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Probe sends packets to a group at regular times, and sees which arrive where.
type Probe struct {
	f        *Fabric
	g        *Group
	id       []byte
	interval time.Duration
	once     sync.Once
	stop     chan struct{}
	done     chan struct{}
	qpn      map[string]uint32 // of the receivers
	deaf     func()

	mu     sync.Mutex
	sent   []time.Time
	got    map[string][]int // by receiver: copies of each packet
	strays int
}

// Probe begins to send packets of one flow. Stop ends it.
func (f *Fabric) Probe(g *Group, flow uint16, interval time.Duration) *Probe {
	p := &Probe{f: f, g: g, id: f.nonce(), interval: interval, stop: make(chan struct{}), done: make(chan struct{}), got: map[string][]int{}, qpn: map[string]uint32{}}
	for _, r := range g.Receivers {
		p.got[r.Host] = nil
		p.qpn[r.Host] = r.QPN
	}
	p.deaf = f.listen(p.see)
	f.t.Cleanup(p.end) // if the test does not come to Stop
	go p.run(flow, rocev2.PSN(g.sent))
	return p
}

func (p *Probe) run(flow uint16, psn rocev2.PSN) {
	defer close(p.done)
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	for n := uint64(0); ; n++ {
		p.mu.Lock()
		p.sent = append(p.sent, time.Now())
		p.mu.Unlock()
		psn = psn.Add(1)
		p.f.write(p.g, flow, rocev2.WriteOnly, uint32(psn), 64, binary.BigEndian.AppendUint64(p.id[:16:16], n))
		select {
		case <-tick.C:
		case <-p.stop:
			p.mu.Lock()
			p.g.sent = uint32(psn)
			p.mu.Unlock()
			return
		}
	}
}

func (p *Probe) see(h *host, b []byte) {
	at := bytes.Index(b, p.id)
	if at < 0 || len(b) < at+24 {
		return
	}
	n := int(binary.BigEndian.Uint64(b[at+16:]))
	c := roce(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if qpn, member := p.qpn[h.Name]; c == nil || !member || uint32(c.DestQP) != qpn || !c.ICRC {
		p.strays++
		return
	}
	list := p.got[h.Name]
	for len(list) <= n {
		list = append(list, 0)
	}
	list[n]++
	p.got[h.Name] = list
}

// An Outage is what a Probe found.
type Outage struct {
	Sent       int
	Lost       int           // packets that some receiver did not get
	Losers     []string      // such receivers
	Longest    time.Duration // time in which all packets were lost for some receiver
	Last       time.Time     // when the last lost packet was sent; zero: none was
	Duplicates int           // copies that a receiver got too much
	Strays     int           // packets that were not for the host that got them
}

func (p *Probe) end() {
	p.once.Do(func() { close(p.stop) })
	<-p.done
}

// Stop ends a Probe and reports what got lost.
func (p *Probe) Stop() Outage {
	p.end()
	_ = p.f.until("the last packet", arrival, p.last) // if it does not come, it is lost
	p.f.pause(quiet)                                  // for what is on other ways
	p.deaf()
	p.mu.Lock()
	defer p.mu.Unlock()
	o := Outage{Sent: len(p.sent), Strays: p.strays}
	lost := make([]bool, len(p.sent))
	for name, list := range p.got {
		for _, n := range list {
			o.Duplicates += max(n-1, 0)
		}
		longest, any := p.gap(list, lost)
		if o.Longest = max(o.Longest, longest); any {
			o.Losers = append(o.Losers, name)
		}
	}
	for n, l := range lost {
		if l {
			o.Lost++
			o.Last = p.sent[n]
		}
	}
	return o
}

// last says who has not got the last packet.
func (p *Probe) last() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, list := range p.got {
		if len(list) < len(p.sent) {
			return fmt.Errorf("%s has not got it", name)
		}
	}
	return nil
}

// gap notes which packets one receiver lost, and returns its longest outage, and whether there was any.
func (p *Probe) gap(list []int, lost []bool) (longest time.Duration, any bool) {
	begun := -1
	for n := range p.sent {
		if n < len(list) && list[n] > 0 {
			if begun >= 0 {
				longest = max(longest, p.sent[n].Sub(p.sent[begun]))
			}
			begun = -1
			continue
		}
		lost[n], any = true, true
		if begun < 0 {
			begun = n
		}
	}
	if begun >= 0 {
		longest = max(longest, p.sent[len(p.sent)-1].Sub(p.sent[begun]))
	}
	return longest, any
}

// Noticed is when, after some time, each of the two agents at a wire took it for
// down, the later of the two.
func (f *Fabric) Noticed(w *Wire) (last time.Time) {
	f.t.Helper()
	for _, e := range []End{w.A, w.B} {
		last = later(last, f.since(e))
	}
	return last
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
