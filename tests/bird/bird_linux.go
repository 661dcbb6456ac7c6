// Package bird runs BIRD, a BGP speaker that is not ours, for tests.
package bird

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// insideEnv is set in the copy of a test that runs inside its namespace.
const insideEnv = "MCRDMA_TEST_BIRD_INSIDE"

// Conf is BIRD at 192.0.2.2, AS 65002, with a session with 192.0.2.1, AS 65001, both at port
// 1790. It has Static's routes.
const Conf = `
router id 192.0.2.2;
protocol device {}
` + Static + `
protocol bgp ours {
	local 192.0.2.2 port 1790 as 65002;
	neighbor 192.0.2.1 port 1790 as 65001;
	multihop 2;
	strict bind yes;
	connect delay time 1;
	connect retry time 1;
	error wait time 1, 2;
	ipv4 { import all; export where source = RTS_STATIC; next hop self; };
}
`

// Static has the routes of Conf.
const Static = "protocol static { ipv4; route 10.7.0.0/24 blackhole; route 10.8.0.0/24 blackhole; }"

// Program is the path of a program of a Debian package that need not be in the user's PATH.
func Program(t *testing.T, name, dir, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path = filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			testenv.Skip(t, "%s is not installed (Debian: %s)", name, debian)
		}
	}
	return path
}

// Path is BIRD's path.
func Path(t *testing.T) string {
	t.Helper()
	return Program(t, "bird", "/usr/sbin", "bird2")
}

// InNamespace runs a test that has BIRD: a copy of it inside a network namespace with both
// addresses of Conf, since GoBGP may make its sockets on any thread.
func InNamespace(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	Path(t)
	if os.Getenv(insideEnv) != "" {
		test(t)
		return
	}
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces need root")
	}
	name := fmt.Sprintf("mcrdma-bird-%d-%d", os.Getpid(), len(t.Name()))
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	run("netns", "add", name)
	t.Cleanup(func() { run("netns", "del", name) })
	run("-n", name, "link", "set", "lo", "up")
	run("-n", name, "addr", "add", "192.0.2.1/32", "dev", "lo")
	run("-n", name, "addr", "add", "192.0.2.2/32", "dev", "lo")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", name, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("inside the namespace: %v\n%s", err, out)
	}
}

// Start starts BIRD with its files in dir; end kills it without a farewell.
func Start(t *testing.T, dir, conf string, args ...string) (end func()) {
	t.Helper()
	file := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, Path(t), append(args, "-f", "-c", file, "-s", filepath.Join(dir, "bird.ctl"))...)
	cmd.Stderr = os.Stderr // what it dislikes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		stop()
		_ = cmd.Wait() // "killed"
	}
	t.Cleanup(end)
	return end
}

// Ask runs a command of the BIRD whose files are in dir.
func Ask(t *testing.T, dir string, args ...string) string {
	t.Helper()
	birdc := filepath.Join(filepath.Dir(Path(t)), "birdc")
	out, err := exec.Command(birdc, append([]string{"-s", filepath.Join(dir, "bird.ctl")}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("birdc: %v: %s", err, out)
	}
	return string(out)
}
