package fastpath

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// looks has the switch look at its ports, and compares what it says then.
func (w *wired) looks(want string) {
	w.Helper()
	w.Look()()
	if got := w.Status(); got != want {
		w.Fatalf("%s; expected %s", got, want)
	}
}

// refusing is what is said of a port whose host has neither GRO nor an XDP program.
func refusing(port string) string {
	return "off: port " + port + ", interface s" + port + ": " + errRefuses.Error()
}

// TestVethRefuses: a host that takes no more of what is redirected to it is noticed at the next look, be it idle or not, and that it does again.
func TestVethRefuses(t *testing.T) {
	w := newWired(t)
	pass, err := dataplane.XDP(asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()})
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	w.looks(whole)
	w.looks(whole)
	// What a port is tried by is no packet for a switch at the other end.
	if f := w.wires.Any(3); !w.Mine(f) || w.Mine(append([]byte{2}, f[1:]...)) {
		t.Errorf("% x", f)
	}
	w.wires.Refuse(t, 3)
	w.looks(refusing("3"))
	w.looks(refusing("3"))
	if _, err := w.wires.Attach(w.wires.Peers[3], pass); err != nil {
		t.Fatal(err)
	}
	w.looks(whole)
	w.merges(0, 5)
	w.merges(1, 5)
	w.merges(2, 5) // it leaves for host 1
	if psn := w.told(); psn != 5 {
		t.Fatalf("the sender is told %d", psn)
	}
	w.wires.Refuse(t, 1)
	w.Look()() // news may come late, and it has taken something since the last look
	w.looks(refusing("1"))
}

// elsewhere calls f on a thread that ends afterward, outside of the wires' namespace.
func elsewhere(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// move moves an interface into a new namespace.
func move(name string) (ns netns.NsHandle, err error) {
	if err = elsewhere(func() (err error) { ns, err = netns.New(); return err }); err != nil {
		return ns, err
	}
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetNsFd(l, int(ns))
	}
	return ns, err
}

// TestVethNews: changes at a port or at a host are reported at once.
func TestVethNews(t *testing.T) {
	w := newWired(t)
	pass, err := dataplane.XDP(asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()})
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	hears := func(what string, change func() error) {
		t.Helper()
		for end := time.After(50 * time.Millisecond); end != nil; { // what came before
			select {
			case <-w.News():
			case <-end:
				end = nil
			}
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.News():
		case <-time.After(10 * time.Second):
			t.Fatalf("there are no news of it that %s", what)
		}
	}
	gro := func(on bool) func() error { return func() error { return w.wires.SetGRO(3, on) } }
	hears("a host has GRO", gro(true))
	w.wires.Refuse(t, 3)
	w.looks(whole)
	hears("a host has none", func() error {
		w.wires.Send(t, 1, w.group.Data(rocev2.SendOnly, 1, nil).Frame()) // it has taken something since the last look
		w.until("copies", func(s Stats) uint64 { return s.Copies }, 3)
		return w.wires.SetGRO(3, false)
	})
	w.looks(refusing("3"))
	hears("it has a program, as those of another switch", func() error {
		_, err := w.wires.Attach(w.wires.Peers[3], pass)
		return err
	})
	w.looks(whole)
	ns, err := move("h4")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	hears("a host in another namespace changes, of which the port shows nothing", func() error {
		return elsewhere(func() error {
			if err := netns.Set(ns); err != nil {
				return err
			}
			h4, err := netlink.LinkByName("h4")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(h4, 1400)
		})
	})
	link, err := netlink.LinkByName("s2")
	if err != nil {
		t.Fatal(err)
	}
	hears("a port is down", func() error { return netlink.LinkSetDown(link) })
	hears("a port was removed", func() error { return netlink.LinkDel(link) })
	if states, err := lookAt(); err != nil || states[w.wires.Peers[1]].peer != int(w.wires.Ports[1]) {
		t.Errorf("%v, %v", states, err)
	}
}

// TestVethBusyRefuses: a host that does not accept redirected frames is detected, whatever else is
// sent through its port.
func TestVethBusyRefuses(t *testing.T) {
	w := &wired{TB: t, wires: dataplane.NewWires(t, hosts, xdpPass), group: still(7)}
	w.wires.Refuse(t, 2)
	w.start(t)
	w.Install(w.group)
	w.Loaded(w.Pipeline, w.PRE)
	var busy sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := w.wires.Leave(2, make([]byte, 60)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer busy.Wait()
	defer close(stop)
	for range 1000 {
		w.looks(refusing("2"))
	}
}

// TestVethAbsent: a port whose interface is down, or was removed, is named. Nothing is looked at after the end.
func TestVethAbsent(t *testing.T) {
	w := newWired(t)
	is := func(absent string) string { return strings.Replace(whole, "4 ports", "3 of 4 ports ("+absent+")", 1) }
	link, err := netlink.LinkByName("s3")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	w.looks(is("port 3, interface s3, is down"))
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); w.Status() != whole; w.Look()() { // the kernel says later that there is a link
		if time.Now().After(end) {
			t.Fatal(w.Status())
		}
	}
	mtu := link.Attrs().MTU
	if err := netlink.LinkSetMTU(link, 1100); err != nil {
		t.Fatal(err)
	}
	w.looks(strings.Replace(whole, "4 ports", fmt.Sprintf("4 ports (port 3, interface s3, has an MTU of 1100, and port 1, interface s1, %d: longer frames are dropped, uncounted)", mtu), 1))
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		t.Fatal(err)
	}
	w.looks(whole)
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	w.looks(is("port 3, interface s3, was removed"))
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "s3"}, PeerName: "h3"}); err != nil {
		t.Fatal(err)
	}
	w.looks(is("port 3, interface s3, was removed"))
	if err := w.PRE.ModifyGroup(uint32(w.group.Index), []pre.Replica{{Port: 2, Instance: 1}, {Port: 3, Instance: 2}}); err != nil { //nolint:gosec // few
		t.Fatal(err)
	}
	w.Changed()    // a set of ports, of which one is not there
	w.merges(0, 5) // the others' packets are the kernel's still
	w.wires.Send(t, 1, w.group.Data(rocev2.SendOnly, 1, nil).Frame())
	w.until("copies", func(s Stats) uint64 { return s.Copies }, 1)
	w.Loaded(w.Pipeline, w.PRE)
	w.looks(is("port 3, interface s3, was removed"))

	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Look()(); w.broken != nil {
		t.Errorf("a look after the end: %v", w.broken)
	}
}

// TestVethTakenOff: all packets climb when the program was taken off at a port.
func TestVethTakenOff(t *testing.T) {
	w := newWired(t)
	if err := w.k.links[1].Detach(); err != nil {
		t.Fatal(err)
	}
	at := w.all[1]
	w.looks("off: " + at.named() + ": its XDP program was taken off; start the switch again")
}

// TestVethSight: while the ports cannot be looked at, the kernel goes on.
func TestVethSight(t *testing.T) {
	w := newWired(t)
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	none := had
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	note := w.Look()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	if note(); w.broken != nil || !strings.Contains(w.Status(), "xdp at 4 ports (cannot look at them: ") {
		t.Errorf("%s, %v", w.Status(), w.broken)
	}
	w.looks(whole)
}

// TestVethTaken: ports with an XDP program are found.
func TestVethTaken(t *testing.T) {
	w := newWired(t)
	one, far := w.all[0], Port{Number: 9, Name: "h1", Index: w.wires.Peers[1]}
	w.wires.Refuse(t, 1) // it has none
	if list, err := Taken([]Port{one, far}); err != nil || len(list) != 1 || list[0] != one {
		t.Errorf("%v, %v", list, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if list, err := Taken([]Port{one, far}); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}
