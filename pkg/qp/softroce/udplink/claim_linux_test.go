package udplink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// me is how an error names this process.
func me(t testing.TB) string {
	t.Helper()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("process %d (%s)", os.Getpid(), strings.TrimSpace(string(comm)))
}

// refused opens addr, which is in use, and wants text in the error.
func refused(t testing.TB, addr netip.Addr, opt Options, text string) {
	t.Helper()
	l, err := Open(addr, opt)
	if err == nil {
		l.Close()
		t.Fatalf("opened %v, which is held", addr)
	}
	if !errors.Is(err, qp.ErrAddrInUse) || !strings.Contains(err.Error(), text) {
		t.Errorf("error %q; want ErrAddrInUse and %q", err, text)
	}
}

// TestSecondOpen: a second link is refused and does the first no harm.
func TestSecondOpen(t *testing.T) {
	l := open(t, Options{})
	for _, rx := range []RXMode{RXAuto, RXUDP} {
		refused(t, l.Addr(), Options{RX: rx}, "held by a softroce device of "+me(t))
	}
	carry(t, l, l, newMaker(l.Addr()).full(20, 1024))
}

// TestSecondOpenElsewhere: the same in a process of its own.
func TestSecondOpenElsewhere(t *testing.T) {
	l := open(t, Options{})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"=link "+l.Addr().String())
	out, err := cmd.CombinedOutput()
	if want := "held by a softroce device of " + me(t); err == nil || !strings.Contains(string(out), want) {
		t.Errorf("the other process: %v; want %q in its output %q", err, want, out)
	}
	carry(t, l, l, newMaker(l.Addr()).full(20, 1024))
}

// TestGuardNameTaken: without the name only the error message suffers.
func TestGuardNameTaken(t *testing.T) {
	addr := testenv.Loopback()
	u, err := net.ListenUnix("unix", guardName(addr))
	if err != nil {
		t.Fatal(err)
	}
	l, err := Open(addr, Options{})
	if err != nil {
		t.Fatal(err)
	}
	closeWith(t, l)
	u.Close()
	refused(t, addr, Options{}, "held by "+me(t))
	carry(t, l, l, newMaker(addr).full(2, 256))
}

func TestOpenErrorTexts(t *testing.T) {
	for addr, want := range map[string]string{
		"":                "is not a unicast IPv4 address",
		"0.0.0.0":         "0.0.0.0 is not a unicast IPv4 address",
		"224.0.0.1":       "224.0.0.1 is not a unicast IPv4 address",
		"::1":             "::1 is not a unicast IPv4 address",
		"::ffff:1.2.3.4":  "is not a unicast IPv4 address",
		"198.51.100.7":    "198.51.100.7 is not an address of this host (see: ip -4 address)",
		"255.255.255.255": "no interface of this host has 255.255.255.255",
	} {
		var a netip.Addr
		if addr != "" {
			a = netip.MustParseAddr(addr)
		}
		l, err := Open(a, Options{})
		if err == nil {
			l.Close()
			t.Errorf("opened %q", addr)
		} else if !errors.Is(err, qp.ErrDevice) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q): %q; want ErrDevice and %q", addr, err, want)
		}
	}
}

// TestNoPortFree: an address with all source ports of a slot in use cannot be
// opened, and can again when one is free.
func TestNoPortFree(t *testing.T) {
	addr := testenv.Loopback()
	const slot, span = 3, (1<<16 - firstPort) / txSockets
	var last int
	for i := range span {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			testenv.Skip(t, "%d descriptors are too few", i)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: firstPort + slot*span + i, Addr: addr.As4()}); err != nil {
			t.Fatal(err)
		}
		if last = fd; i < span-1 {
			t.Cleanup(func() { unix.Close(fd) })
		}
	}
	refused(t, addr, Options{}, fmt.Sprintf("no source port is free between %d and %d", firstPort+slot*span, firstPort+(slot+1)*span-1))
	unix.Close(last)
	l, err := Open(addr, Options{})
	if err != nil {
		t.Fatal(err)
	}
	closeWith(t, l)
	run := newMaker(addr).full(3, 256)
	for i := range run {
		run[i].Flow = slot
	}
	carry(t, l, l, run)
}

// TestNoLeaks: neither a link that was closed nor an Open that failed leaves a
// descriptor open.
func TestNoLeaks(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would clean up
	held := open(t, Options{})
	use := func() {
		l := open(t, Options{}) // also opens what the runtime opens once
		carry(t, l, l, newMaker(l.Addr()).full(1, 256))
		if err := l.tx[0].wait(); err != nil { // has a second descriptor
			t.Fatal(err)
		}
		l.Close()
	}
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	use()
	before := count()
	for range 5 {
		use()
		for _, a := range []string{held.Addr().String(), "198.51.100.7", "255.255.255.255"} {
			if l, err := Open(netip.MustParseAddr(a), Options{}); err == nil {
				l.Close()
				t.Fatalf("opened %s", a)
			}
		}
	}
	// The holder may not have closed the connections of its clients yet.
	until(t, "there are no more descriptors than before", func() bool { return count() <= before })
}

func TestHolderInodeAddress(t *testing.T) {
	const any = "  9: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2 0000000000000000 0\n"
	one := strings.Replace(any, "00000000:12B7 ", "0100007F:12B7 ", 1)
	for _, c := range []struct {
		table string
		last  byte
		want  uint64
	}{{one, 1, 7}, {one, 2, 0}, {any, 1, 7}, {any, 2, 7}, {"", 1, 0}, {strings.Replace(one, " 7 2", " x 2", 1), 1, 0},
		{"  9: 0100007F:12B7 00000000:0000 07\n" + any, 1, 7}} {
		if got, _ := holderInode(strings.NewReader(c.table), [4]byte{127, 0, 0, c.last}, rocev2.UDPPort); got != c.want {
			t.Errorf("127.0.0.%d: inode %d, want %d, in\n%s", c.last, got, c.want, c.table)
		}
	}
}

func TestNoProcess(t *testing.T) {
	const pid = 1<<22 + 1 // more than the kernel gives out
	if got := describe(pid); got != fmt.Sprint(pid) {
		t.Errorf("described as %q", got)
	}
	if pid := inodePID(1<<64 - 1); pid != 0 {
		t.Errorf("process %d has a socket that does not exist", pid)
	}
}
