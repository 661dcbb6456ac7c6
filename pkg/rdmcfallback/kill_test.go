package rdmcfallback_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// addresses returns addresses that have just been free.
func addresses(t *testing.T, n int) []string {
	t.Helper()
	ls, addrs := listen(t, n)
	for _, l := range ls {
		check(t, l.Close()) // for the members to use
	}
	return addrs
}

func TestKill(t *testing.T) { kills(t, 3) }

func TestKillWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "TestKill does the same, less often")
	samples := 16
	if os.Getenv("MCRDMA_LONG") == "1" {
		samples = 300
	}
	kills(t, samples)
}

func kills(t *testing.T, samples int) {
	for name, overRDMA := range map[string]bool{"tcp": false, "rdma": true} {
		t.Run(name, func(t *testing.T) { kill(t, overRDMA, samples) })
	}
}

// A process that is stopped, as by a debugger, is detected by its silence.
func TestStop(t *testing.T) {
	for victim := range 3 {
		addrs := addresses(t, 3)
		j := job{Members: addrs, BlockSize: 64 << 10, Messages: 1000, DeadAfter: time.Second, Slow: time.Millisecond}
		all := begin(t, j, nil)
		check(t, all[victim].cmd.Process.Signal(syscall.SIGSTOP))
		for i, s := range all {
			if i != victim {
				<-s.done
			}
		}
		check(t, all[victim].cmd.Process.Kill())
		judge(t, all, victim, j.Messages)
	}
}

// A host that vanishes from the network, in the middle of all or when nothing
// happens.
func TestNamespaceVanishes(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprint("idle=", idle), func(t *testing.T) { vanish(t, idle) })
	}
}

func vanish(t *testing.T, idle bool) {
	const n = 3
	j := job{BlockSize: 64 << 10, Messages: 1 << 20, DeadAfter: time.Second}
	if idle {
		j.Messages, j.Slow = 1, time.Hour
	}
	ip := func(format string, args ...any) {
		t.Helper()
		line := fmt.Sprintf(format, args...)
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	ns := func(i int) string { return fmt.Sprintf("rdmcv%d-%d", os.Getpid(), i) } // n is the one with the bridge
	for i := n; i >= 0; i-- {
		ip("netns add %s", ns(i))
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns(i)).Run() })
		if i == n {
			ip("-n %s link add bridge type bridge", ns(n))
			ip("-n %s link set bridge up", ns(n))
			continue
		}
		ip("-n %s link add name e0 type veth peer name port%d netns %s", ns(i), i, ns(n))
		ip("-n %s addr add 10.98.0.%d/24 dev e0", ns(i), i+1)
		ip("-n %s link set e0 up", ns(i))
		ip("-n %s link set port%d master bridge up", ns(n), i)
	}
	for i := range n {
		j.Members = append(j.Members, fmt.Sprintf("10.98.0.%d:4000", i+1))
	}
	all := begin(t, j, func(i int) []string { return []string{"ip", "netns", "exec", ns(i)} })
	const victim = 1
	ip("-n %s link set port%d down", ns(n), victim)
	for i, s := range all {
		if i != victim {
			<-s.done
		}
	}
	<-all[victim].done // it knows as well
	judge(t, all, victim, j.Messages)
}

// No member is killed: all ends cleanly.
func TestProcesses(t *testing.T) {
	addrs := addresses(t, 6)
	j := job{Members: addrs, BlockSize: 64 << 10, Messages: 20}
	if !judge(t, begin(t, j, nil), -1, j.Messages) {
		t.Error("not clean")
	}
}
