package ports

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// The main thread cannot be thrown away; keep the labs off it.
func init() { runtime.LockOSThread() }

// inNamespace runs f on a thread in a network namespace of its own, with a veth
// pair va–vb; thread and namespace end afterward. f must not call t.Fatal.
func inNamespace(t *testing.T, f func(run func(cmd string))) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error("unshare: ", err)
			return
		}
		run := func(cmd string) {
			if out, err := exec.Command("sh", "-ec", cmd).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", cmd, err, out)
				runtime.Goexit()
			}
		}
		run(`ip link add va type veth peer name vb
			for i in va vb; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; ip link set $i up; done`)
		f(run)
	}()
	<-done
}

// open opens ports on interfaces, which the test closes, and waits until they are up:
// until then the kernel drops silently what is sent.
func open(t *testing.T, o Options, names ...string) []*Interface {
	var ps []*Interface
	for _, name := range names {
		p, err := OpenInterface(name, o)
		if err != nil {
			t.Error(err)
			runtime.Goexit()
		}
		t.Cleanup(func() { p.Close() })
		ps = append(ps, p)
	}
	for _, p := range ps {
		if !eventually(p.Up) {
			t.Errorf("%s is down", p.Name())
		}
	}
	return ps
}

// hints collects what ports advise.
type hints struct {
	mu   sync.Mutex
	text []string
}

func (h *hints) add(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, s)
}

func (h *hints) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.text, "\n")
}

func TestVeth(t *testing.T) {
	inNamespace(t, func(run func(string)) {
		ps := open(t, Options{}, "va", "vb")
		a, b := ps[0], ps[1]
		run("ip -d link show va | grep -q 'promiscuity 1'")
		if a.Name() != "va" {
			t.Error("name")
		}
		ca, cb := collect(t, a, 1600), collect(t, b, 1600)
		var there, back [][]byte
		for i := range 3000 {
			there = append(there, frame(HeaderLen+i%1501, i))
			back = append(back, frame(1514-i%1500, i+1))
		}
		if n := a.Send(there); n != len(there) {
			t.Errorf("sent %d: %v", n, a.Stats())
		}
		got, err := cb.wait(len(there))
		if err = errors.Join(err, equal(got, there)); err != nil {
			t.Error("there: ", err)
		}
		if n := b.Send(back); n != len(back) {
			t.Errorf("sent %d: %v", n, b.Stats())
		}
		// The absence of other frames shows that a does not hear itself.
		got, err = ca.wait(len(back))
		if err = errors.Join(err, equal(got, back)); err != nil {
			t.Error("back: ", err)
		}
		if s := a.Stats(); s.TxPackets != 3000 || s.RxPackets != 3000 || len(s.Drops) != 0 || s.TxBytes != b.Stats().RxBytes {
			t.Errorf("a: %+v", s)
		}
	})
}

// TestVethVLAN: the kernel takes one tag out; it is put back.
func TestVethVLAN(t *testing.T) {
	inNamespace(t, func(func(string)) {
		ps := open(t, Options{}, "va", "vb")
		tag := func(f []byte, tpid, tci uint16) []byte {
			out := append(bytes.Clone(f[:12]), byte(tpid>>8), byte(tpid), byte(tci>>8), byte(tci))
			return append(out, f[12:]...)
		}
		want := [][]byte{
			tag(frame(60, 1), 0x8100, 5),
			tag(frame(1514, 2), 0x8100, 0xefff),
			tag(tag(frame(60, 3), 0x8100, 7), 0x88a8, 8),
			tag(frame(60, 4), 0x8100, 0),
			frame(60, 5),
		}
		c := collect(t, ps[1], 1600)
		if n := ps[0].Send(want); n != len(want) {
			t.Error(n, ps[0].Stats())
		}
		got, err := c.wait(len(want))
		if err = errors.Join(err, equal(got, want)); err != nil {
			t.Error(err)
		}
	})
}

// A vnetSender sends frames with a virtio header: with a checksum still to be
// computed, or many in one, as the kernel's own stack does with offloads.
type vnetSender int

func newVnetSender(t *testing.T) vnetSender {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		runtime.Goexit()
	}
	t.Cleanup(func() { unix.Close(fd) })
	return vnetSender(fd)
}

func (s vnetSender) send(p *Interface, flags, gso byte, hdrLen, gsoSize, start, offset uint16, frame []byte) error {
	if err := unix.SetsockoptInt(int(s), unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return err
	}
	h := make([]byte, vnetLen)
	h[vnetFlags], h[vnetGSOType] = flags, gso
	for i, v := range []uint16{hdrLen, gsoSize, start, offset} {
		binary.NativeEndian.PutUint16(h[2+2*i:], v)
	}
	return unix.Sendto(int(s), append(h, frame...), 0, &unix.SockaddrLinklayer{Ifindex: p.index, Halen: 6})
}

// ipv4 returns a frame with an IPv4 packet of that protocol and payload, whose
// checksum field (at the offset) holds the sum of the pseudo header.
func ipv4(proto byte, payload []byte, offset int) []byte {
	f := frame(34, 0)
	f[12], f[13] = 8, 0
	ip := f[14:34]
	clear(ip)
	ip[0], ip[8], ip[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(payload)))
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(ip[10:], rocev2.Checksum(ip))
	pseudo := append(bytes.Clone(ip[12:20]), 0, proto, byte(len(payload)>>8), byte(len(payload)))
	payload = bytes.Clone(payload)
	binary.BigEndian.PutUint16(payload[offset:], ^rocev2.Checksum(pseudo))
	return append(f, payload...)
}

// TestVethChecksum: the kernel leaves checksums to veth, which leaves them to
// the receiver.
func TestVethChecksum(t *testing.T) {
	inNamespace(t, func(func(string)) {
		ps := open(t, Options{}, "va", "vb")
		s := newVnetSender(t)
		udp := append([]byte{0, 7, 0, 9, 0, 108, 0, 0}, bytes.Repeat([]byte{3, 1, 4}, 34)[:100]...)
		in := ipv4(unix.IPPROTO_UDP, udp, 6)
		c := collect(t, ps[1], 1600)
		if err := s.send(ps[0], vnetNeedsCsum, 0, 0, 0, 34, 6, in); err != nil {
			t.Error("send: ", err)
			return
		}
		got, err := c.wait(1)
		if err != nil {
			t.Error(err)
			return
		}
		pseudo := append(bytes.Clone(got[0][26:34]), 0, 17, 0, 108)
		if sum := rocev2.Checksum(append(pseudo, got[0][34:]...)); sum != 0 {
			t.Errorf("the datagram with its pseudo header has the checksum %#x", sum)
		}
		copy(got[0][40:], in[40:42])
		if err := equal(got, [][]byte{in}); err != nil {
			t.Error("besides the checksum: ", err)
		}
	})
}

func TestVethSegmented(t *testing.T) {
	inNamespace(t, func(func(string)) {
		var h hints
		ps := open(t, Options{Hint: h.add}, "va", "vb")
		s := newVnetSender(t)
		c := collect(t, ps[1], 1600)
		// Three segments that together are shorter than the MTU, and more than
		// a slot of the ring holds.
		for _, n := range []int{300, 8000} {
			tcp := make([]byte, 20+n)
			tcp[12], tcp[13] = 0x50, 0x10
			f := ipv4(unix.IPPROTO_TCP, tcp, 16)
			if err := s.send(ps[0], vnetNeedsCsum, 1, 54, 100, 34, 16, f); err != nil {
				t.Error("send: ", err)
				return
			}
		}
		ps[0].Send([][]byte{frame(60, 1)})
		got, err := c.wait(1)
		if err = errors.Join(err, equal(got, [][]byte{frame(60, 1)})); err != nil {
			t.Error(err)
		}
		if d := ps[1].Stats().Drops; d["rx_segmented"] != 2 || len(d) != 1 {
			t.Error(d)
		}
		if text := h.all(); !strings.Contains(text, "ethtool -K vb gro off") || !strings.Contains(text, "gso off") || strings.Count(text, "\n") > 0 {
			t.Errorf("hint: %s", text)
		}
	})
}

func TestVethTooLong(t *testing.T) {
	inNamespace(t, func(run func(string)) {
		var h hints
		ps := open(t, Options{Hint: h.add}, "va", "vb")
		if n := ps[0].Send([][]byte{frame(60, 1), frame(1515, 2), frame(13, 3), frame(60, 4)}); n != 2 {
			t.Errorf("sent %d", n)
		}
		if d := ps[0].Stats().Drops; d["tx_too_long"] != 1 || d["tx_runt"] != 1 {
			t.Error(d)
		}
		run("ip link set va mtu 9000; ip link set vb mtu 9000")
		c := collect(t, ps[1], 1400)
		ps[0].Send([][]byte{frame(9014, 5), frame(1401, 6), frame(1400, 7)})
		got, err := c.wait(3)
		if err = errors.Join(err, equal(got, [][]byte{frame(60, 1), frame(60, 4), frame(1400, 7)})); err != nil {
			t.Error(err)
		}
		if d := ps[1].Stats().Drops; d["rx_too_long"] != 2 {
			t.Error(d)
		}
		for _, want := range []string{"a frame of 9014 bytes", "such as one of 1515 bytes"} {
			if !strings.Contains(h.all(), want) {
				t.Errorf("hints without %q: %s", want, h.all())
			}
		}
	})
}

// TestVethDown: a port outlives its interface being down, and says so.
func TestVethDown(t *testing.T) {
	inNamespace(t, func(run func(string)) {
		ps := open(t, Options{}, "va", "vb")
		c := collect(t, ps[1], 1600)
		run("ip link set vb down")
		// The kernel tells the other end when it has time for that.
		if ps[1].Up() || !eventually(func() bool { return !ps[0].Up() }) {
			t.Error("up though the interface is down")
		}
		if n := ps[1].Send([][]byte{frame(60, 1)}); n != 0 || ps[1].Stats().Drops["tx_down"] != 1 {
			t.Error(n, ps[1].Stats())
		}
		run("ip link set vb up")
		if !eventually(ps[0].Up) || !eventually(ps[1].Up) {
			t.Error("down though the interface is up")
		}
		ps[0].Send([][]byte{frame(60, 2)})
		got, err := c.wait(1)
		if err = errors.Join(err, equal(got, [][]byte{frame(60, 2)})); err != nil {
			t.Error(err)
		}
		if n := ps[1].Send([][]byte{frame(60, 1)}); n != 1 {
			t.Error(n, ps[1].Stats())
		}
	})
}

func TestVethGone(t *testing.T) {
	inNamespace(t, func(run func(string)) {
		ps := open(t, Options{}, "va", "vb")
		c := collect(t, ps[1], 1600)
		run("ip link set va name renamed; ip link set vb name other")
		if !eventually(ps[1].Up) {
			t.Error("down because it has another name")
		}
		run("ip link del other")
		if _, err := c.wait(1); !errors.Is(err, ErrGone) {
			t.Errorf("%v, want ErrGone", err)
		}
		if ps[1].Up() || ps[1].Send([][]byte{frame(60, 1)}) != 0 || ps[1].Stats().Drops["tx_down"] != 1 {
			t.Errorf("alive: %v", ps[1].Stats())
		}
	})
}

// TestVethGoneWhileDown: the kernel reports nothing about an interface that is
// down.
func TestVethGoneWhileDown(t *testing.T) {
	inNamespace(t, func(run func(string)) {
		ps := open(t, Options{}, "va", "vb")
		c := collect(t, ps[1], 1600)
		run("ip link set vb down")
		if !eventually(func() bool { return !ps[1].Up() }) {
			t.Error("it is up")
		}
		time.Sleep(2 * downCheck) // until the receiver has heard that it is down
		run("ip link del vb")
		if _, err := c.wait(1); !errors.Is(err, ErrGone) {
			t.Errorf("%v, want ErrGone", err)
		}
	})
}

// TestVethFull: what finds the ring full is counted.
func TestVethFull(t *testing.T) {
	inNamespace(t, func(func(string)) {
		ps := open(t, Options{Buffer: 1 << 18}, "va", "vb")
		const n = 1000
		frames := make([][]byte, n)
		for i := range frames {
			frames[i] = frame(60, i)
		}
		ps[0].Send(frames)
		slots := ps[1].ring.slots
		if slots >= n || !eventually(func() bool { return ps[1].Stats().Drops["rx_full"] == uint64(n-slots) }) {
			t.Errorf("%d slots, %v", slots, ps[1].Stats())
		}
		c := collect(t, ps[1], 1600)
		if _, err := c.wait(slots); err != nil {
			t.Error(err)
		}
	})
}

func TestVethClose(t *testing.T) {
	inNamespace(t, func(run func(string)) {
		ps := open(t, Options{}, "va", "vb")
		closes(t, ps[0])
		run("ip -d link show va | grep -q 'promiscuity 0'")
		// Closing while frames come in.
		var wg sync.WaitGroup
		a := open(t, Options{}, "va")[0]
		wg.Go(func() {
			for a.Send([][]byte{frame(60, 1), frame(1514, 2)}) > 0 {
			}
		})
		wg.Go(func() {
			bufs := room(MaxBatch, 1600)
			for {
				if _, err := ps[1].Recv(bufs); err != nil {
					return
				}
			}
		})
		eventually(func() bool { return ps[1].Stats().RxPackets > 100 })
		ps[1].Close()
		a.Close()
		wg.Wait()
	})
}

func TestOpenInterfaceErrors(t *testing.T) {
	if p, err := OpenInterface("no such", Options{}); err == nil || !strings.Contains(err.Error(), "interface no such") {
		t.Errorf("%v, %v", p, err)
	}
	if p, err := OpenInterface("lo", Options{}); !errors.Is(err, ErrConfig) {
		t.Errorf("%v, %v", p, err)
	}
}

// TestNamespacePermission: without privilege the error says what to do.
func TestNamespacePermission(t *testing.T) {
	inNamespace(t, func(func(string)) {
		// This thread only, which is thrown away.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			t.Error(errno)
			return
		}
		p, err := OpenInterface("va", Options{})
		if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
			t.Errorf("%v, %v", p, err)
		}
	})
}

func TestVethAllocs(t *testing.T) {
	inNamespace(t, func(func(string)) {
		ps := open(t, Options{}, "va", "vb")
		frames, bufs := [][]byte{frame(60, 1), frame(1514, 2)}, room(2, 1600)
		n := testing.AllocsPerRun(100, func() {
			ps[0].Send(frames)
			for got := 0; got < len(frames); {
				n, err := ps[1].Recv(bufs)
				if err != nil {
					t.Error(err)
					return
				}
				got += n
			}
		})
		if n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

func BenchmarkVeth(b *testing.B) {
	if os.Geteuid() != 0 {
		testenv.Skip(b, "network namespaces take root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			b.Error(err)
			return
		}
		if out, err := exec.Command("sh", "-ec", "ip link add va type veth peer name vb; ip link set va up; ip link set vb up").CombinedOutput(); err != nil {
			b.Error(string(out))
			return
		}
		x, errX := OpenInterface("va", Options{})
		y, errY := OpenInterface("vb", Options{})
		if err := errors.Join(errX, errY); err != nil {
			b.Error(err)
			return
		}
		defer x.Close()
		defer y.Close()
		frames, bufs := make([][]byte, 32), room(MaxBatch, 1600)
		for i := range frames {
			frames[i] = frame(1100, i)
		}
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			x.Send(frames)
			for got := 0; got < len(frames); {
				n, err := y.Recv(bufs)
				if err != nil {
					b.Error(err)
					return
				}
				got += n
			}
			n += len(frames)
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e3, "kpps")
	}()
	<-done
}
