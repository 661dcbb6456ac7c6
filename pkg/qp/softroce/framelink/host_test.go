package framelink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

func newHost(t testing.TB, conn Conn, cfg Config) *Host {
	t.Helper()
	h, err := New(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// packet returns a packet to dst: a SEND_ONLY whose payload, of a multiple of
// four bytes, is s.
func packet(dst netip.Addr, flow uint16, s string) link.Tx {
	h := rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, PKey: rocev2.DefaultPKey, DestQP: 17}}
	parts := [][]byte{h.AppendTo(nil), []byte(s[:len(s)/2]), []byte(s[len(s)/2:])}
	return link.Tx{Dst: dst, TOS: 0x6a, Flow: flow, Parts: parts, Len: rocev2.BTHLen + len(s)}
}

// A got is a packet received, copied.
type got struct {
	Src     netip.Addr
	TOS     uint8
	Payload string
}

// receiver runs l's Recv until it is closed, as a device does.
func receiver(t testing.TB, l link.Link) <-chan got {
	ch := make(chan got, 4096)
	go func() {
		defer close(ch)
		batch := make([]link.Rx, 16)
		for {
			n, err := l.Recv(batch)
			if err != nil {
				if err != net.ErrClosed { //nolint:errorlint // the contract is this very value
					t.Errorf("Recv of %v: %v", l.Addr(), err)
				}
				return
			}
			for _, r := range batch[:n] {
				ch <- got{r.Src, r.TOS, string(r.Data[rocev2.BTHLen:])}
			}
		}
	}()
	return ch
}

func expect(t *testing.T, ch <-chan got, want ...got) {
	t.Helper()
	for i, w := range want {
		select {
		case g := <-ch:
			if diff := cmp.Diff(w, g, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Fatalf("packet %d (-want +got):\n%s", i, diff)
			}
		case <-time.After(patience):
			t.Fatalf("packet %d did not come", i)
		}
	}
}

func counters(l interface{ Counters(map[string]uint64) }) map[string]uint64 {
	m := map[string]uint64{}
	l.Counters(m)
	return m
}

// checkCounters compares those that want names.
func checkCounters(t *testing.T, l interface{ Counters(map[string]uint64) }, want map[string]uint64) {
	t.Helper()
	have := counters(l)
	for name, w := range want {
		if g, ok := have[name]; g != w || !ok {
			t.Errorf("%s = %d, want %d", name, g, w)
		}
	}
}

// exchange sends both ways at once, more than a batch each, and expects all of
// it in order.
func exchange(t *testing.T, a, b *Host) {
	t.Helper()
	fromA, fromB := receiver(t, b), receiver(t, a)
	const n = 3*batch + 5
	var wg sync.WaitGroup
	for _, dir := range [][2]*Host{{a, b}, {b, a}} {
		wg.Go(func() {
			var txs []link.Tx
			for i := range n {
				txs = append(txs, packet(dir[1].Addr(), uint16(i), fmt.Sprintf("%04d", i)))
			}
			// Singly while ARP is under way: those that wait for it and those
			// that come just after stay in order.
			for i := range arpHeldEach {
				if err := dir[0].Send(txs[i : i+1]); err != nil {
					t.Error(err)
				}
			}
			if err := waitReceived(t, dir[1], arpHeldEach); err != nil {
				t.Error(err)
			}
			if err := dir[0].Send(txs[arpHeldEach:]); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range n {
		expect(t, fromA, got{a.Addr(), 0x6a, fmt.Sprintf("%04d", i)})
		expect(t, fromB, got{b.Addr(), 0x6a, fmt.Sprintf("%04d", i)})
	}
	wg.Wait()
	for _, h := range []*Host{a, b} {
		checkCounters(t, h, map[string]uint64{"tx_roce": n, "rx_roce": n, "tx_drop_unresolved": 0, "tx_drop_bad": 0, "rx_drop_icrc": 0})
	}
}

// waitReceived waits until h has received n packets.
func waitReceived(t *testing.T, h *Host, n uint64) error {
	for deadline := time.Now().Add(patience); counters(h)["rx_roce"] < n; {
		if t.Context().Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("%v did not receive %d packets: %v", h.Addr(), n, counters(h))
		}
		time.Sleep(100 * time.Microsecond) // between polls
	}
	return nil
}

func TestPair(t *testing.T) {
	ca, cb := pipe.New(pipe.Config{})
	a := newHost(t, ca, Config{Prefix: prefix("10.0.0.1/24")})
	b := newHost(t, cb, Config{Prefix: prefix("10.0.0.2/24")})
	if a.MTU() != DefaultMTU || a.Addr() != addr("10.0.0.1") || a.cfg.MAC != (macAddr{2, 0, 10, 0, 0, 1}) || a.conn != ca {
		t.Errorf("MTU %d, address %v, MAC %v", a.MTU(), a.Addr(), a.cfg.MAC)
	}
	exchange(t, a, b)
}

// Two hosts in different networks, a router with a leg in each between them.
func TestRouted(t *testing.T) {
	ca, ra := pipe.New(pipe.Config{})
	cb, rb := pipe.New(pipe.Config{})
	startRouter(t, ra, prefix("10.0.1.254/24"), rb, prefix("10.0.2.254/24"))
	a := newHost(t, ca, Config{Prefix: prefix("10.0.1.1/24"), Gateway: addr("10.0.1.254")})
	b := newHost(t, cb, Config{Prefix: prefix("10.0.2.1/24"), Gateway: addr("10.0.2.254")})
	exchange(t, a, b)
}

// A router for tests: two legs, ARP on each, IPv4 from one to the other.
func startRouter(t *testing.T, c0 Conn, p0 netip.Prefix, c1 Conn, p1 netip.Prefix) {
	var mu sync.Mutex
	start := time.Now()
	conns := [2]Conn{c0, c1}
	arps := [2]*arp{newARP(macAddr{2, 1, 0, 0, 0, 1}, p0), newARP(macAddr{2, 1, 0, 0, 0, 2}, p1)}
	forward := func(in int, f []byte) {
		mu.Lock()
		defer mu.Unlock()
		var eth rocev2.Ethernet
		p, err := eth.Parse(f)
		if err != nil {
			t.Error(err)
			return
		}
		now := time.Since(start)
		out := 1 - in
		if eth.EtherType == rocev2.EtherTypeARP {
			out = in
			arps[in].input(p, now)
		} else if eth.Dst == arps[in].mac {
			p[8]--
			p[10], p[11] = 0, 0
			sum := rocev2.Checksum(p[:20])
			p[10], p[11] = byte(sum>>8), byte(sum)
			copy(f[6:], arps[out].mac[:])
			if mac, ok := arps[out].lookup(ipAddr(p[16:])); ok {
				copy(f, mac[:])
				_ = conns[out].Send([][]byte{f})
			} else {
				arps[out].hold(ipAddr(p[16:]), f, now)
			}
		}
		_ = conns[out].Send(arps[out].take())
	}
	for i, c := range conns {
		t.Cleanup(func() { c.Close() })
		go func() {
			frames := make([][]byte, 8)
			for {
				n, err := c.Recv(frames)
				if err != nil {
					return
				}
				for _, f := range frames[:n] {
					forward(i, f)
				}
			}
		}()
	}
}

// A packet whose neighbor stays silent is given up by the timer alone, and
// counted; the host goes on. The clock is the test bubble's.
func TestSilentNeighbor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, wire := pipe.New(pipe.Config{})
		a := newHost(t, ca, Config{Prefix: prefix("10.0.0.1/24")})
		start := time.Now()
		var log []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			frames := make([][]byte, 8)
			for {
				n, err := wire.Recv(frames)
				if err != nil {
					return
				}
				for _, f := range frames[:n] {
					log = append(log, fmt.Sprintf("%v %s", time.Since(start), describe(f)))
				}
			}
		}()
		time.Sleep(10 * time.Second)
		if err := a.Send([]link.Tx{packet(addr("10.0.0.2"), 0, "lost")}); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		checkCounters(t, a, map[string]uint64{"arp_announcements": 2, "arp_requests": 3, "arp_failed": 1,
			"tx_drop_unresolved": 1, "tx_roce": 1, "tx_frames": 5})
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		wire.Close()
		<-done
		const at = " tell 10.0.0.1 at 02:00:0a:00:00:01"
		want := []string{"0s who has 10.0.0.1" + at, "2s who has 10.0.0.1" + at,
			"10s who has 10.0.0.2" + at, "11s who has 10.0.0.2" + at, "12s who has 10.0.0.2" + at}
		if diff := cmp.Diff(want, log); diff != "" {
			t.Errorf("frames (-want +got):\n%s", diff)
		}
	})
}

func TestSendErrors(t *testing.T) {
	ca, cb := pipe.New(pipe.Config{})
	a := newHost(t, ca, Config{Prefix: prefix("10.0.0.1/24"), MTU: 1500})
	b := newHost(t, cb, Config{Prefix: prefix("10.0.0.2/24")})
	received := receiver(t, b)
	receiver(t, a)
	long := packet(b.Addr(), 0, string(make([]byte, 1500-20-8-12-4+4)))
	short, odd, lies := packet(b.Addr(), 0, "data"), packet(b.Addr(), 0, "odd"), packet(b.Addr(), 0, "data")
	short.Len, lies.Len = 8, 20
	for _, tc := range []struct {
		name string
		tx   link.Tx
		want error
	}{
		{"no gateway", packet(addr("10.0.1.2"), 0, "data"), ErrNoRoute},
		{"itself", packet(a.Addr(), 0, "data"), ErrNoRoute},
		{"broadcast", packet(addr("10.0.0.255"), 0, "data"), ErrNoRoute},
		{"network", packet(addr("10.0.0.0"), 0, "data"), ErrNoRoute},
		{"multicast", packet(addr("224.0.0.1"), 0, "data"), ErrNoRoute},
		{"limited broadcast", packet(addr("255.255.255.255"), 0, "data"), ErrNoRoute},
		{"loopback", packet(addr("127.0.0.1"), 0, "data"), ErrNoRoute},
		{"unspecified", packet(addr("0.0.0.0"), 0, "data"), ErrNoRoute},
		{"IPv6", packet(addr("::1"), 0, "data"), ErrNoRoute},
		{"no address", packet(netip.Addr{}, 0, "data"), ErrNoRoute},
		{"too long", long, ErrTooLong},
		{"too short", short, ErrPacket},
		{"not a multiple of 4", odd, ErrPacket},
		{"length and parts differ", lies, ErrPacket},
	} {
		t.Run(tc.name, func(t *testing.T) {
			counter := "tx_drop_bad"
			if errors.Is(tc.want, ErrNoRoute) {
				counter = "tx_drop_no_route"
			}
			before := counters(a)[counter]
			// The good ones around it go all the same.
			err := a.Send([]link.Tx{packet(b.Addr(), 0, "one."), tc.tx, packet(b.Addr(), 0, "two.")})
			var te *link.TxError
			if !errors.As(err, &te) || te.Index != 1 || !errors.Is(err, tc.want) {
				t.Errorf("Send: %v; want a *link.TxError for packet 1 with %v", err, tc.want)
			}
			expect(t, received, got{a.Addr(), 0x6a, "one."}, got{a.Addr(), 0x6a, "two."})
			if n := counters(a)[counter] - before; n != 1 {
				t.Errorf("%s rose by %d", counter, n)
			}
		})
	}
	fits := packet(b.Addr(), 0, string(make([]byte, 1500-20-8-12-4)))
	if err := a.Send([]link.Tx{fits}); err != nil {
		t.Errorf("a packet of just the MTU: %v", err)
	}
}

func TestClose(t *testing.T) {
	ca, cb := pipe.New(pipe.Config{})
	defer cb.Close()
	a := newHost(t, ca, Config{Prefix: prefix("10.0.0.1/24")})
	ch := receiver(t, a) // complains if Recv returns anything but net.ErrClosed
	if err := a.Send([]link.Tx{packet(addr("10.0.0.2"), 0, "held")}); err != nil {
		t.Fatal(err)
	}
	a.timer.Stop()
	a.tick() // as if the timer had fired too early
	if !a.timer.Stop() {
		t.Error("a tick before its time ends the timer")
	}
	if err := a.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for range ch {
		t.Error("a packet from nowhere")
	}
	a.tick() // of a timer that fired just before Close
	if a.timer.Stop() {
		t.Error("the timer runs on after Close")
	}
	if err := a.Send(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
	if err := a.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := New(ca, Config{Prefix: prefix("10.0.0.1/24")}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("New on a closed Conn: %v", err)
	}
}

func TestConfig(t *testing.T) {
	good := Config{Prefix: prefix("10.0.0.1/24")}
	for name, change := range map[string]func(*Config){
		"no address":         func(c *Config) { c.Prefix = netip.Prefix{} },
		"IPv6":               func(c *Config) { c.Prefix = prefix("fd00::1/64") },
		"mapped IPv6":        func(c *Config) { c.Prefix = prefix("::ffff:10.0.0.1/120") },
		"/32":                func(c *Config) { c.Prefix = prefix("10.0.0.1/32") },
		"/0":                 func(c *Config) { c.Prefix = prefix("10.0.0.1/0") },
		"network address":    func(c *Config) { c.Prefix = prefix("10.0.0.0/24") },
		"broadcast address":  func(c *Config) { c.Prefix = prefix("10.0.0.255/24") },
		"multicast address":  func(c *Config) { c.Prefix = prefix("224.0.0.1/24") },
		"loopback address":   func(c *Config) { c.Prefix = prefix("127.0.0.1/8") },
		"gateway outside":    func(c *Config) { c.Gateway = addr("10.0.1.1") },
		"gateway is itself":  func(c *Config) { c.Gateway = addr("10.0.0.1") },
		"gateway broadcast":  func(c *Config) { c.Gateway = addr("10.0.0.255") },
		"gateway IPv6":       func(c *Config) { c.Gateway = addr("::1") },
		"multicast MAC":      func(c *Config) { c.MAC = macAddr{1, 0, 0x5e} },
		"MTU too small":      func(c *Config) { c.MTU = minMTU - 1 },
		"MTU too large":      func(c *Config) { c.MTU = maxMTU + 1 },
		"MTU below zero":     func(c *Config) { c.MTU = -1 },
		"broadcast MAC":      func(c *Config) { c.MAC = broadcast },
		"class E as address": func(c *Config) { c.Prefix = prefix("240.0.0.1/24") },
	} {
		cfg := good
		change(&cfg)
		if h, err := New(nil, cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v, %v; want ErrConfig", name, h, err)
		}
	}
	two := Config{Prefix: prefix("10.0.0.0/31"), Gateway: addr("10.0.0.1"), MTU: minMTU}
	if err := two.check(); err != nil {
		t.Errorf("a /31 with its other address as gateway: %v", err)
	}
}

func TestSourcePort(t *testing.T) {
	ports := map[uint16]bool{}
	for flow := range 1 << 14 {
		p := sourcePort(uint16(flow))
		if p < 0xc000 {
			t.Fatalf("flow %d: port %#x", flow, p)
		}
		ports[p] = true
	}
	if len(ports) < 1<<13 {
		t.Errorf("%d flows take %d ports", 1<<14, len(ports))
	}
}

// Many senders share a host; each one's packets arrive, in its order.
func TestConcurrentSend(t *testing.T) {
	ca, cb := pipe.New(pipe.Config{})
	a := newHost(t, ca, Config{Prefix: prefix("10.0.0.1/24")})
	b := newHost(t, cb, Config{Prefix: prefix("10.0.0.2/24")})
	resolve(t, a, b)
	received := receiver(t, b)
	const senders, each = 4, 100
	var wg sync.WaitGroup
	for g := range senders {
		wg.Go(func() {
			for i := range each {
				if err := a.Send([]link.Tx{packet(b.Addr(), uint16(g), fmt.Sprintf("%d%03d", g, i))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var next [senders]int
	for range senders * each {
		p := <-received
		var g, i int
		if _, err := fmt.Sscanf(p.Payload, "%1d%03d", &g, &i); err != nil || i != next[g] {
			t.Fatalf("got %q, want number %d", p.Payload, next[g])
		}
		next[g]++
	}
	wg.Wait()
}
