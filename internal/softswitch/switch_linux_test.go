package softswitch

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/tests/sample"
)

// inNamespaces runs f on a thread that is thrown away, with three network
// namespaces: that of a switch, with interfaces s0 and s1, and those of two
// hosts, with h0 (10.0.0.1/24) and h1 (10.0.0.2/24) at the other ends. enter
// changes to namespace 0 or 1 (a host's) or 2 (the switch's). f must not call
// t.Fatal.
func inNamespaces(t *testing.T, f func(enter func(i int))) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		fail := func(args ...any) {
			t.Error(args...)
			runtime.Goexit()
		}
		var ns [3]int
		for i := range ns {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				fail("unshare: ", err)
			}
			fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				fail(err)
			}
			defer unix.Close(fd)
			ns[i] = fd
		}
		enter := func(i int) {
			if err := unix.Setns(ns[i], unix.CLONE_NEWNET); err != nil {
				fail("setns: ", err)
			}
		}
		run := func(cmd string, fds ...int) {
			c := exec.Command("sh", "-ec", cmd)
			for _, fd := range fds {
				dup, err := unix.Dup(fd)
				if err != nil {
					fail(err)
				}
				file := os.NewFile(uintptr(dup), "netns")
				defer file.Close()
				c.ExtraFiles = append(c.ExtraFiles, file)
			}
			if out, err := c.CombinedOutput(); err != nil {
				fail(cmd, ": ", err, ": ", string(out))
			}
		}
		up := "echo 1 > /proc/sys/net/ipv6/conf/%[1]s/disable_ipv6; ip link set %[1]s up;"
		for i := range 2 {
			enter(2)
			run(fmt.Sprintf("ip link add s%[1]d type veth peer name h%[1]d netns /proc/self/fd/3", i), ns[i])
			run(fmt.Sprintf(up, fmt.Sprint("s", i)))
			enter(i)
			run(fmt.Sprintf(up+"ip addr add 10.0.0.%[2]d/24 dev %[1]s; ip link set %[1]s gso_max_segs 1", fmt.Sprint("h", i), i+1))
		}
		enter(2)
		f(enter)
	}()
	<-done
}

// attach attaches the interfaces s0 and s1.
func attach(t *testing.T, s *Switch) {
	for i := range uint16(2) {
		p, err := ports.OpenInterface(fmt.Sprint("s", i), ports.Options{Hint: func(text string) { t.Log(text) }})
		if err == nil {
			err = s.Attach(i, p)
		}
		if err != nil {
			t.Error(err)
			runtime.Goexit()
		}
	}
}

// TestNamespaceTCP: two hosts' own network stacks talk through the switch: ARP
// and TCP with the checksums that veth does not compute.
func TestNamespaceTCP(t *testing.T) {
	s := newSwitch(t, Config{})
	patch(t, s, 0, 1, 0)
	inNamespaces(t, func(enter func(int)) {
		attach(t, s)
		enter(1)
		l, err := net.Listen("tcp", "10.0.0.2:0")
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		data := make([]byte, 4<<20)
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		result := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				_, err = c.Write(data)
				c.Close()
			}
			result <- err
		}()
		enter(0)
		c, err := net.DialTimeout("tcp", l.Addr().String(), 20*time.Second)
		if err != nil {
			t.Error(err, s.Stats())
			return
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Error(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d of %d bytes, %v; %+v", len(got), len(data), err, s.Stats())
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
		for _, p := range s.Stats().Ports {
			if len(p.Drops) > 0 || p.Classes[0].Dropped > 0 {
				t.Errorf("%+v", p)
			}
		}
	})
}

// TestVethRoute: frames between packet sockets, changed as the program says.
func TestVethRoute(t *testing.T) {
	s := newSwitch(t, Config{})
	do(t, s, func(p *pipeline.Pipeline, _ *pre.Engine) error {
		return sample.Route(p, netip.MustParsePrefix("10.9.0.0/16"), 1, 0x020000000001, 0x020000000002)
	})
	inNamespaces(t, func(enter func(int)) {
		attach(t, s)
		var hosts [2]ports.Port
		for i := range hosts {
			enter(i)
			p, err := ports.OpenInterface(fmt.Sprint("h", i), ports.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			hosts[i] = p
		}
		const n = 1000
		got := make(chan []byte, n)
		go func() {
			bufs := make([][]byte, 64)
			for i := range bufs {
				bufs[i] = make([]byte, 0, MaxFrame)
			}
			for {
				k, err := hosts[1].Recv(bufs)
				if err != nil {
					close(got)
					return
				}
				for _, b := range bufs[:k] {
					got <- bytes.Clone(b)
				}
			}
		}()
		for i := range n {
			f := ipv4(100+i, "10.9.8.7")
			hosts[0].Send([][]byte{f})
			select {
			case g := <-got:
				copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
				f[22]-- // TTL
				copy(f[24:], g[24:26])
				if !bytes.Equal(g, f) || sum(g[14:34]) != 0xffff {
					t.Errorf("got\n%x, want\n%x (IPv4 sum %#x)", g, f, sum(g[14:34]))
					return
				}
			case <-time.After(10 * time.Second):
				t.Errorf("frame %d did not arrive: %+v", i, s.Stats())
				return
			}
		}
		hosts[1].Close()
		for range got { // until the receiver is gone
		}
	})
}

// sum is the one's complement sum of an even number of bytes.
func sum(b []byte) (s int) {
	for i := 0; i < len(b); i += 2 {
		s += int(b[i])<<8 + int(b[i+1])
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return s
}

// TestTunnel: a host's framelink on a UDP tunnel reaches one in memory.
func TestTunnel(t *testing.T) {
	s := newSwitch(t, Config{})
	near, far := netip.AddrPortFrom(testenv.Loopback(), 4000), netip.AddrPortFrom(testenv.Loopback(), 4000)
	host, err := framelink.DialTunnel(framelink.TunnelConfig{Local: near, Remote: far})
	must(t, err)
	defer host.Close()
	p, err := ports.OpenTunnel(ports.TunnelConfig{Local: far, Remote: near})
	must(t, err)
	other := cables(t, s, 1)[0]
	must(t, s.Attach(9, p))
	patch(t, s, 0, 9, 0)
	frames := make([][]byte, 1)
	for i := range 100 {
		other.Send([][]byte{frame(60+i, byte(i))})
		if _, err := host.Recv(frames); err != nil || !bytes.Equal(frames[0], frame(60+i, byte(i))) {
			t.Fatalf("host got %x, %v", frames[0], err)
		}
		must(t, host.Send([][]byte{frame(200-i, byte(i))}))
		want(t, other, frame(200-i, byte(i)))
	}
}

// TestVethGone: a port that is down, and one whose interface was removed, are problems, also when there is one of that name again.
func TestVethGone(t *testing.T) {
	s := newSwitch(t, Config{})
	inNamespaces(t, func(func(int)) {
		attach(t, s)
		for _, c := range []struct{ does, want string }{
			{"true", "map[]"},
			{"ip link set s1 down", "map[port 1, s1, is down or has no link:set it and its other end up]"},
			{"ip link set s1 up", "map[]"},
			{"ip link del s1", "map[port 1, s1, receives no more: ports: interface s1: the interface was removed:restart the switch when it is back]"},
			{"ip link add s1 type veth peer name h1; ip link set s1 up; ip link set h1 up",
				"map[port 1, s1, receives no more: ports: interface s1: the interface was removed:restart the switch when it is back]"},
		} {
			if out, err := exec.Command("sh", "-ec", c.does).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", c.does, err, out)
				return
			}
			for end := time.Now().Add(10 * time.Second); fmt.Sprint(s.Problems()) != c.want; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Errorf("%s: %v", c.does, s.Problems())
					return
				}
			}
		}
	})
}
