package doctor

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// The main thread cannot end; keep namespaces off it.
func init() { runtime.LockOSThread() }

// inNamespace runs f on a thread in its own network namespace, in which va is a port whose other
// end vb has an address, and wide is another port; thread and namespace end afterward. f must not
// call t.Fatal.
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
			echo 1 > /proc/sys/net/ipv6/conf/va/disable_ipv6
			echo 0 > /proc/sys/net/ipv6/conf/vb/disable_ipv6
			ip link set va up; ip link set vb up; ip addr add 192.0.2.1/24 dev vb
			until ip -o link show va | grep -q LOWER_UP; do sleep 0.01; done
			ip link add swp1 mtu 1000 type veth peer name other`)
		f(run)
	}()
	<-done
}

func find(list []Interface, name string) (Interface, bool) {
	i := slices.IndexFunc(list, func(i Interface) bool { return i.Name == name })
	if i < 0 {
		return Interface{}, false
	}
	return list[i], true
}

func TestInterfacesNamespace(t *testing.T) {
	inNamespace(t, func(func(string)) {
		list, err := Interfaces([]string{"vb", "none", "vb"}, true)
		if err != nil {
			t.Error(err)
			return
		}
		if len(list) != 5 || list[0].Name != "vb" || list[1].Name != "none" || list[1].Err == nil || strings.Contains(list[1].Err.Error(), "route ip+net") {
			t.Errorf("%+v", list)
		}
		va, _ := find(list, "va")
		vb, _ := find(list, "vb")
		swp, _ := find(list, "swp1")
		if !va.Up || !va.Carrier || va.MTU != 1500 || va.Driver != "veth" || va.Host || va.IPv6 || va.OffloadErr != nil {
			t.Errorf("va: %+v", va)
		}
		if !vb.Host || !vb.IPv6 {
			t.Errorf("vb: %+v", vb)
		}
		if swp.Up || swp.Carrier || swp.MTU != 1000 {
			t.Errorf("swp1: %+v", swp)
		}
		if _, ok := find(list, "lo"); ok {
			t.Error("lo looks like no switch port")
		}
	})
}

// TestOffloadsNamespace: offloads are detected, and the advised command turns them off.
func TestOffloadsNamespace(t *testing.T) {
	inNamespace(t, func(run func(string)) {
		run("ip addr add 192.0.2.2/24 dev va")
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		look := func() Facts {
			list, err := Interfaces([]string{"va"}, false)
			if err != nil {
				t.Error(err)
			}
			return Facts{Interfaces: list}
		}
		before := look()
		for _, o := range []string{"tx", "sg", "tso", "gso"} {
			if !slices.Contains(before.Interfaces[0].Offloads, o) {
				t.Errorf("%s of a new veth is not on: %v", o, before.Interfaces)
			}
		}
		findings := Diagnose(before)
		if len(findings) == 0 || !strings.HasPrefix(findings[0].Do, "ethtool -K va tx off sg off tso off gso off") {
			t.Errorf("%+v", findings)
		}
		// The effect of that command. The value 0 is sent with it.
		for name, command := range map[string]uint32{
			"tx": unix.ETHTOOL_STXCSUM, "sg": unix.ETHTOOL_SSG, "tso": unix.ETHTOOL_STSO, "gso": unix.ETHTOOL_SGSO, "gro": unix.ETHTOOL_SGRO,
		} {
			if _, err := ethtoolValue(fd, "va", command); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if findings := Diagnose(look()); len(findings) != 0 {
			t.Errorf("afterwards: %+v", findings)
		}
		if _, err := ethtoolValue(fd, "none", unix.ETHTOOL_GTSO); !errors.Is(err, syscall.ENODEV) {
			t.Error(err)
		}
		if _, err := ethtoolValue(fd, "sixteen-letters-", unix.ETHTOOL_GTSO); !errors.Is(err, unix.ENAMETOOLONG) {
			t.Error(err)
		}
	})
}
