package udplink

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// The main thread cannot be thrown away; keep the labs off it.
func init() { runtime.LockOSThread() }

// A lab is a thread with two network namespaces, joined by a veth pair: 10.0.0.1
// on veth0 in namespace 0 and 10.0.0.2 on veth1 in namespace 1.
type lab struct {
	t  *testing.T
	ns [2]int
}

// inLab runs f in a lab. The thread ends afterward, and the namespaces with it.
func inLab(t *testing.T, mtu int, f func(l *lab)) {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		l := &lab{t: t}
		for i := range l.ns {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Error("unshare: ", err)
				return
			}
			fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(fd)
			l.ns[i] = fd
		}
		// The thread is in namespace 1 now; ip(8) runs there, and reaches
		// namespace 0 by the descriptor that it inherits as number 3.
		l.run(fmt.Sprintf("ip link add veth1 mtu %d type veth peer name veth0 mtu %d netns /proc/self/fd/3", mtu, mtu), l.ns[0])
		l.run("ip addr add 10.0.0.2/24 dev veth1 && ip link set veth1 up && ip link set lo up")
		l.enter(0)
		l.run("ip addr add 10.0.0.1/24 dev veth0 && ip link set veth0 up && ip link set lo up")
		f(l)
	}()
	<-done
}

func (l *lab) enter(i int) {
	if err := unix.Setns(l.ns[i], unix.CLONE_NEWNET); err != nil {
		l.fatal("setns: ", err)
	}
}

// run runs a shell command in the present namespace.
func (l *lab) run(cmd string, fds ...int) {
	c := exec.Command("sh", "-c", cmd)
	for _, fd := range fds {
		dup, err := unix.Dup(fd)
		if err != nil {
			l.fatal(err)
		}
		f := os.NewFile(uintptr(dup), "netns")
		defer f.Close()
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	if out, err := c.CombinedOutput(); err != nil {
		l.fatal(cmd, ": ", err, ": ", string(out))
	}
}

// fatal ends the lab's goroutine, which t.Fatal must not be called from.
func (l *lab) fatal(args ...any) {
	l.t.Error(args...)
	runtime.Goexit()
}

// open opens a link in each namespace.
func (l *lab) open(opt Options) (a, b *Link) {
	links := [2]*Link{}
	for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		l.enter(i)
		var err error
		if links[i], err = Open(netip.MustParseAddr(addr), opt); err != nil {
			l.fatal(err)
		}
		closeWith(l.t, links[i])
	}
	l.enter(0)
	return links[0], links[1]
}

// TestSegmented: the kernel cuts GSO messages up before they reach the veth, so
// that the receiver sees the packets as a wire would carry them, with the
// identifications that the sender computed the ICRCs for.
func TestSegmented(t *testing.T) {
	for _, rx := range []RXMode{RXRaw, RXUDP} {
		for _, gro := range []bool{false, true} {
			t.Run(fmt.Sprintf("rx=%v gro=%v", rx, gro), func(t *testing.T) {
				inLab(t, 9000, func(l *lab) {
					l.run("ip link set veth0 gso_max_segs 1")
					a, b := l.open(Options{RX: rx, NoGRO: !gro})
					c := collect(t, b)
					sendRuns(l, a, b, c)
					if counter(a, "tx_gso") == 0 || counter(b, "rx_split") != 0 {
						t.Errorf("tx_gso %d, rx_split %d: this test wants GSO messages that arrive in pieces",
							counter(a, "tx_gso"), counter(b, "rx_split"))
					}
				})
			})
		}
	}
}

// TestWholeOverVeth: a virtual link does not cut them up.
func TestWholeOverVeth(t *testing.T) {
	for _, rx := range []RXMode{RXRaw, RXUDP} {
		t.Run(rx.String(), func(t *testing.T) {
			inLab(t, 9000, func(l *lab) {
				a, b := l.open(Options{RX: rx})
				c := collect(t, b)
				sendRuns(l, a, b, c)
				if counter(b, "rx_split") == 0 {
					t.Error("no message arrived in one piece")
				}
			})
		})
	}
}

// sendRuns sends runs of packets from a to b and expects all.
func sendRuns(l *lab, a, b *Link, c *collector) {
	for _, mtu := range []int{1024, 4096} {
		for _, n := range []int{1, 2, 15, 16, 64} {
			var txs []link.Tx
			for i := range n - 1 {
				txs = append(txs, tx(b.Addr(), 0x6a, 3, packet(rocev2.WriteMiddle, mtu, i)))
			}
			txs = append(txs, tx(b.Addr(), 0x6a, 3, packet(rocev2.WriteLast, 100, n)))
			if err := a.Send(txs); err != nil {
				l.fatal(err)
			}
			for i := range txs {
				if rx := c.next(l.t); rx.TOS != 0x6a || !bytes.Equal(rx.Data, bytes.Join(txs[i].Parts, nil)) {
					l.fatal("packet ", i, " of ", n, " differs")
				}
			}
		}
	}
	for _, name := range rxDropNames {
		if n := counter(b, name); n != 0 {
			l.t.Errorf("%s is %d", name, n)
		}
	}
}

// TestSendErrors: each refusal of the kernel has its counter, and the packets
// around it go.
func TestSendErrors(t *testing.T) {
	inLab(t, 1500, func(l *lab) {
		a, b := l.open(Options{})
		c := collect(t, b)
		if a.MTU() != 1500 {
			t.Errorf("MTU %d, want 1500", a.MTU())
		}
		l.run("ip route add prohibit 203.0.113.0/24")
		big, far, forbidden := packet(rocev2.SendMiddle, 4096, 1), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("203.0.113.1")
		small := packet(rocev2.SendOnly, 10, 2)
		for i, s := range []struct {
			counter string
			n       uint64
			txs     []link.Tx
		}{
			{"tx_err_too_big", 1, []link.Tx{tx(b.addr, 0, 0, big)}},
			{"tx_err_too_big", 4, []link.Tx{tx(b.addr, 0, 0, big), tx(b.addr, 0, 0, big), tx(b.addr, 0, 0, big)}},
			{"tx_err_unreachable", 2, []link.Tx{tx(far, 0, 0, small), tx(far, 0, 0, small)}},
			{"tx_err_refused", 1, []link.Tx{tx(forbidden, 0, 0, small)}},
		} {
			marker := packet(rocev2.SendOnly, 20, 100+i)
			batch := append([]link.Tx{tx(b.addr, 0, 0, marker)}, s.txs...)
			if err := a.Send(append(batch, tx(b.addr, 0, 0, marker))); err != nil {
				l.fatal(err)
			}
			for range 2 {
				if rx := c.next(t); !bytes.Equal(rx.Data, marker) {
					t.Errorf("%d %s: got something else than the packets around the bad one", i, s.counter)
				}
			}
			if n := counter(a, s.counter); n != s.n {
				t.Errorf("%s is %d, want %d", s.counter, n, s.n)
			}
		}
		if a.gsoOff.Load() {
			t.Error("gave up GSO because of packets that are too long")
		}
	})
}

// TestSendBufferFull: Send waits while a slow link has the buffer full, and
// loses nothing.
func TestSendBufferFull(t *testing.T) {
	inLab(t, 1500, func(l *lab) {
		l.run("tc qdisc add dev veth0 root tbf rate 10mbit burst 5kb limit 100mb")
		a, b := l.open(Options{SndBuf: 32 << 10, NoGSO: true})
		c := collect(t, b)
		const n = 1000
		sent := make(chan error, 1)
		go func() {
			for i := range n {
				if err := a.Send([]link.Tx{tx(b.addr, 0, 0, packet(rocev2.SendOnly, 1000, i))}); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		// A queueing discipline releases packets on several processors, and a
		// veth keeps the order of each only.
		missing := map[string]bool{}
		for i := range n {
			missing[string(packet(rocev2.SendOnly, 1000, i))] = true
		}
		for range n {
			rx := c.next(t)
			if !missing[string(rx.Data)] {
				l.fatal("a packet came twice, or was never sent")
			}
			delete(missing, string(rx.Data))
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if counter(a, "tx_waits") == 0 {
			t.Error("the buffer was never full")
		}
	})
}

// TestCloseWhileSending: Close ends a Send that waits.
func TestCloseWhileSending(t *testing.T) {
	inLab(t, 1500, func(l *lab) {
		l.run("tc qdisc add dev veth0 root tbf rate 8kbit burst 2kb limit 100mb")
		a, _ := l.open(Options{SndBuf: 4096})
		sent := make(chan error, 1)
		go func() {
			for {
				if err := a.Send([]link.Tx{tx(netip.MustParseAddr("10.0.0.2"), 0, 0, packet(rocev2.SendOnly, 1000, 1))}); err != nil {
					sent <- err
					return
				}
			}
		}()
		until(t, "the buffer is full", func() bool { return counter(a, "tx_waits") > 0 })
		a.Close()
		if err := <-sent; err == nil {
			t.Error("Send went on after Close")
		}
	})
}
