package udplink

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// holdEnv makes the test binary a process that holds an address: "link ADDR" a
// link does, "socket ADDR" some other program's socket.
const holdEnv = "MCRDMA_TEST_HOLD"

func hold(how string) {
	kind, a, _ := strings.Cut(how, " ")
	addr := netip.MustParseAddr(a)
	if kind == "link" {
		l, err := Open(addr, Options{})
		if err != nil {
			panic(err)
		}
		defer l.Close() // and the garbage collector does not before
	} else {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			panic(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: rocev2.UDPPort, Addr: addr.As4()}); err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test has ended
}

// holder starts such a process.
func holder(t *testing.T, kind string, addr netip.Addr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+kind+" "+addr.String())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if s, err := bufio.NewReader(out).ReadString('\n'); err != nil || s != "ready\n" {
		t.Fatalf("holder says %q, %v", s, err)
	}
	return cmd
}

// TestAddressInUse: the error names the process that was first, be it a
// softroce device or something else.
func TestAddressInUse(t *testing.T) {
	for _, kind := range []string{"link", "socket"} {
		t.Run(kind, func(t *testing.T) {
			addr := testenv.Loopback()
			first := holder(t, kind, addr)
			for range 40 { // the holder must answer every time
				_, err := Open(addr, Options{})
				if !errors.Is(err, qp.ErrAddrInUse) {
					t.Fatalf("second Open: %v, want ErrAddrInUse", err)
				}
				comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", first.Process.Pid))
				want := fmt.Sprintf("process %d (%s)", first.Process.Pid, strings.TrimSpace(string(comm)))
				if !strings.Contains(err.Error(), want) {
					t.Fatalf("error %q does not name %q", err, want)
				}
				if strings.Contains(err.Error(), "softroce device") != (kind == "link") {
					t.Fatalf("error %q does not tell a device from something else", err)
				}
			}
		})
	}
}

// TestReopen: a closed link leaves the address free.
func TestReopen(t *testing.T) {
	addr := testenv.Loopback()
	for range 3 {
		l, err := Open(addr, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(addr, Options{}); !errors.Is(err, qp.ErrAddrInUse) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
			t.Errorf("second Open: %v", err)
		}
		l.Close()
	}
}

const procNetUDP = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  123: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 0
  124: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 0
  125: 00000000:12B9 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 0000000000000000 0
broken line
`

func TestHolderInode(t *testing.T) {
	for _, c := range []struct {
		port   int
		want   uint64
		listed bool
	}{{4791, 4711, true}, {4792, 4712, true}, {4793, 0, true}, {4794, 0, false}} {
		// The test data are of a little-endian machine, as all that this
		// package is built for are.
		got, listed := holderInode(strings.NewReader(procNetUDP), [4]byte{127, 0, 0, 1}, c.port)
		if got != c.want || listed != c.listed {
			t.Errorf("port %d: inode %d, listed %v, want %d, %v", c.port, got, listed, c.want, c.listed)
		}
	}
}

func FuzzHolderInode(f *testing.F) {
	f.Add(procNetUDP)
	f.Fuzz(func(t *testing.T, s string) {
		if n, _ := holderInode(strings.NewReader(s), [4]byte{127, 0, 0, 1}, 4791); n != 0 && !strings.Contains(s, strconv.FormatUint(n, 10)) {
			t.Errorf("inode %d is not in the input", n)
		}
	})
}
