package fabric

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/switchagent/links"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// A host answers ARP, asks for its gateway's MAC, and passes what it gets to
// its listeners.
type host struct {
	Host
	f    *Fabric
	node *node
	port uint16 // of the switch
	mac  switchspec.MAC
	socket
	// client is the connection of its daemon with the switch's agent; nil: none yet.
	client *grpc.ClientConn

	work sync.WaitGroup
	done chan struct{} // closed when the host is unplugged

	mu      sync.Mutex
	plug    *memnet.NIC    // nil: a device has taken the host's place, or it is closed
	gateway switchspec.MAC // zero: not known yet
	learnt  chan struct{}  // closed when it is known
}

func newHost(f *Fabric, n *node, spec Host, port uint16, w *Wire) *host {
	h := &host{Host: spec, f: f, node: n, port: port, socket: socket{w, 1}, mac: framelink.DefaultMAC(spec.Addr),
		learnt: make(chan struct{}), done: make(chan struct{})}
	h.plug = &memnet.NIC{Plug: h.socket.plug()}
	p := h.plug
	h.work.Go(func() { h.ask(p) })
	h.work.Go(func() { h.run(p) })
	return h
}

// close unplugs the host.
func (h *host) close() {
	h.mu.Lock()
	p := h.plug
	h.plug = nil
	h.mu.Unlock()
	if p != nil {
		_ = p.Close()
		h.work.Wait()
	}
}

// run receives until the host is unplugged.
func (h *host) run(p *memnet.NIC) {
	defer close(h.done)
	list := make([][]byte, 64)
	for {
		n, err := p.Recv(list)
		if err != nil {
			return
		}
		for _, b := range list[:n] {
			h.take(p, b)
		}
	}
}

// ask asks for the gateway until the host has heard from it, so that the switch learns
// the host, too.
func (h *host) ask(p *memnet.NIC) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = p.Send([][]byte{links.AppendRequest(nil, h.mac, h.Addr, h.node.gateway())})
		case <-h.learnt:
			return
		case <-h.done:
			return
		}
	}
}

func (h *host) take(p *memnet.NIC, b []byte) {
	var eth rocev2.Ethernet
	if _, err := eth.Parse(b); err != nil || eth.Dst != h.mac && eth.Dst[0]&1 == 0 {
		return
	}
	if eth.EtherType == rocev2.EtherTypeARP {
		if a, err := links.ParseARP(b); err == nil {
			h.takeARP(p, a)
		}
		return
	}
	h.f.tell(h, b)
}

func (h *host) takeARP(p *memnet.NIC, a links.ARP) {
	switch {
	case a.Op == links.ARPRequest && a.TargetAddr == h.Addr:
		_ = p.Send([][]byte{links.AppendReply(nil, h.mac, h.Addr, a.SenderMAC, a.SenderAddr)})
	case a.Op != links.ARPRequest && a.SenderAddr == h.node.gateway():
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.gateway == (switchspec.MAC{}) {
			close(h.learnt)
		}
		h.gateway = a.SenderMAC
	}
}

// send sends an IP packet by way of the gateway.
func (h *host) send(ip []byte) {
	h.mu.Lock()
	p, dst := h.plug, h.gateway
	h.mu.Unlock()
	if p == nil {
		return // unplugged
	}
	eth := rocev2.Ethernet{Dst: dst, Src: h.mac, EtherType: rocev2.EtherTypeIPv4}
	_ = p.Send([][]byte{append(eth.AppendTo(make([]byte, 0, rocev2.EthernetLen+len(ip))), ip...)})
}

// datagram is a UDP packet from the host that is no RoCE packet.
func (h *host) datagram(to netip.Addr, srcPort uint16, payload []byte) []byte {
	udp := rocev2.UDP{SrcPort: srcPort, DstPort: 9, Length: uint16(rocev2.UDPLen + len(payload))}
	ip := rocev2.IPv4{TotalLen: rocev2.IPv4Len + udp.Length, TTL: 64, Protocol: rocev2.ProtocolUDP, Src: h.Addr.As4(), Dst: to.As4()}
	return append(udp.AppendTo(ip.AppendTo(nil)), payload...)
}

// A listener is called with each IP packet that a host gets; it must not keep it.
type listener struct {
	f func(h *host, frame []byte)
}

// listen has a function called until the returned one is. It may be called by many
// goroutines at once.
func (f *Fabric) listen(do func(h *host, frame []byte)) (stop func()) {
	l := &listener{do}
	f.listening.Lock()
	defer f.listening.Unlock()
	f.listeners[l] = true
	return func() {
		f.listening.Lock()
		defer f.listening.Unlock()
		delete(f.listeners, l)
	}
}

func (f *Fabric) tell(h *host, frame []byte) {
	f.listening.Lock()
	defer f.listening.Unlock()
	for l := range f.listeners {
		l.f(h, frame)
	}
}

// nonce returns bytes that stand in no other packet.
func (f *Fabric) nonce() []byte {
	b := make([]byte, 16)
	binary.BigEndian.PutUint64(b, f.rand.Uint64())
	binary.BigEndian.PutUint64(b[8:], f.rand.Uint64())
	return b
}

// Reach sends a datagram from each host to each other, and waits until all have
// arrived. What gets lost while hosts are still found by ARP is sent again.
func (f *Fabric) Reach() {
	f.t.Helper()
	type pair struct{ from, to *host }
	var mu sync.Mutex
	missing := map[pair][]byte{}
	wrong := 0
	stop := f.listen(func(h *host, b []byte) {
		var ip rocev2.IPv4
		var udp rocev2.UDP
		payload, err := rocev2.ParseIPv4UDP(b[rocev2.EthernetLen:], &ip, &udp)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		p := pair{f.byAddr[netip.AddrFrom4(ip.Src)], h}
		if want, ok := missing[p]; ok && bytes.Equal(payload, want) {
			if ip.Dst != h.Addr.As4() {
				wrong++
			}
			delete(missing, p)
		}
	})
	defer stop()
	for _, from := range f.hostList {
		for _, to := range f.hostList {
			if from != to {
				missing[pair{from, to}] = f.nonce()
			}
		}
	}
	tries := uint16(0)
	f.eventually("hosts reaching each other", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		tries++
		var some pair
		for p, b := range missing {
			some = p
			if tries%20 == 1 { // again every 100 ms
				p.from.send(p.from.datagram(p.to.Addr, 0xc000+tries, b))
			}
		}
		return &unreached{some.from.Name, some.to.Name, len(missing)}
	})
	if wrong != 0 {
		f.t.Errorf("%d packets came to the wrong host", wrong)
	}
}

type unreached struct {
	from, to string
	n        int
}

func (u *unreached) Error() string { return u.from + " does not reach " + u.to + ", and others" }
