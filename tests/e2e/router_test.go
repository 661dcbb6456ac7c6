package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/bird"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// routerPage is the page with the configurations that this test uses.
const routerPage = "../../docs/bgp.md"

// A host behind an embedded switch and one behind a router reach each other by the BGP routes of
// agent and router, also after their link has failed.
func TestNamespaceRouter(t *testing.T) {
	wholeLabs(t)
	embeddedOnly(t, "routing is the agent's, and the same with bmv2")
	for name, start := range map[string]func(*testing.T, *lab.Space, string){"bird": startBIRD, "frr": startFRR} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withRouter(t, name, start)
		})
	}
}

// fenced returns the only code block of the page in that language.
func fenced(t *testing.T, language string) string {
	t.Helper()
	page, err := os.ReadFile(routerPage)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(page), "\n```"+language+"\n")
	if len(parts) != 2 {
		t.Fatalf("%s has %d blocks in %s, want one", routerPage, len(parts)-1, language)
	}
	text, _, _ := strings.Cut(parts[1], "\n```\n")
	return text + "\n"
}

// startProcess starts a program that ends with the test, and shows its output if the test fails.
func startProcess(t *testing.T, p *lab.Process) {
	t.Helper()
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.Space.Name == "router" {
			p.Kill()
		} else if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("══ %s\n%s", p.Name, p.Log())
		}
	})
}

// writeFile writes a file that daemons of other users can read.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil { //nolint:gosec // FRR has a user of its own
		t.Fatal(err)
	}
	return name
}

func startBIRD(t *testing.T, router *lab.Space, dir string) {
	conf := writeFile(t, filepath.Join(dir, "bird.conf"), fenced(t, "bird"))
	startProcess(t, &lab.Process{Name: "bird", Space: router, Talks: true, Args: []string{bird.Path(t), "-f", "-c", conf, "-s", filepath.Join(dir, "bird.ctl")}})
}

// startFRR starts FRR's daemons with their own directories instead of the usual ones.
func startFRR(t *testing.T, router *lab.Space, dir string) {
	zebra := bird.Program(t, "zebra", "/usr/lib/frr", "frr")
	writeFile(t, filepath.Join(dir, "frr.conf"), fenced(t, "frr"))
	writeFile(t, filepath.Join(dir, "vtysh.conf"), "service integrated-vtysh-config\n")
	script := `set -e
mount -t tmpfs tmpfs /var/tmp
mount -t tmpfs tmpfs /run
install -d -o frr -g frr /run/frr
mount --bind "$2" /etc/frr
for d in mgmtd zebra bgpd; do
	[ -x "$1/$d" ] || continue
	"$1/$d" --log stdout >&2 &
	until [ -S "/run/frr/$d.vty" ]; do sleep 0.1; done
done
vtysh -b >&2
echo ready
wait
`
	startProcess(t, &lab.Process{Name: "frr", Space: router, Args: []string{"unshare", "--mount-proc", "--pid", "--kill-child", "bash", "-c", script, "frr", filepath.Dir(zebra), dir}})
}

// A routed is the network of the page.
type routed struct {
	t            *testing.T
	switchctl    string
	tora, router *lab.Space
	h1, h2       *lab.HostNode
	open         map[string]bool // devices
}

func withRouter(t *testing.T, name string, start func(*testing.T, *lab.Space, string)) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	p, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(base, name+"-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // FRR has a user of its own
		t.Fatal(err)
	}
	r := &routed{t: t, switchctl: p.Switchctl, open: map[string]bool{}}
	r.makeNetwork(p)
	for _, line := range strings.Split(strings.TrimSpace(fenced(t, "sh")), "\n") {
		r.run(r.router, "sh", "-c", line)
	}
	config := writeFile(t, filepath.Join(dir, "torA.yaml"), strings.Replace(fenced(t, "yaml"), "torA.db", filepath.Join(dir, "torA.db"), 1)+"restart: {hold: 30s}\n")
	startProcess(t, &lab.Process{Name: "torA", Space: r.tora, Args: []string{p.Switchctl, "softswitch", "--no-p4", "--cpu-port", "510",
		"--grpc-server-addr", "127.0.0.1:9559", "-i", "1@swp1", "-i", "9@swp9"}})
	agent := &lab.Process{Name: "agent of torA", Space: r.tora, Args: []string{p.Switchctl, "agent", "--config", config}}
	startProcess(t, agent)
	t.Cleanup(func() {
		if err := errors.Join(r.h1.Member.Stop(), r.h2.Member.Stop()); err != nil {
			t.Error(err)
		}
	})
	begun := time.Now()
	start(t, r.router, dir)
	r.reach(begun, "the start")

	r.shows("the router's route", true, r.router, "ip", "route", "show", "10.1.0.0/24", "via", "10.0.0.0", "dev", "tora")
	if out := r.run(r.tora, p.Switchctl, "bgp"); !strings.Contains(out, "Established") || !strings.Contains(out, " 10.0.0.0\n") {
		t.Errorf("switchctl bgp does not show the session and the next hop:\n%s", out)
	}

	r.write()

	// The router stops answering on the link; the session, over the other network, would stay up.
	for _, fault := range []struct{ what, off, on string }{
		{"silence at the link", "ip link set tora arp off", "ip link set tora arp on"},
		{"a cut cable", "ip link set tora down", "ip link set tora up"},
	} {
		begun = time.Now()
		r.run(r.router, "sh", "-c", fault.off)
		r.shows("the switch's route", false, r.tora, p.Switchctl, "routes")
		r.shows("the router's route", false, r.router, "ip", "route", "show", "10.1.0.0/24")
		t.Logf("after %v of %s both have withdrawn their routes", time.Since(begun).Round(10*time.Millisecond), fault.what)
		if out := r.run(r.tora, p.Switchctl, "bgp"); !strings.Contains(out, "no link") {
			t.Errorf("switchctl bgp:\n%s", out)
		}
		begun = time.Now()
		r.run(r.router, "sh", "-c", fault.on)
		r.reach(begun, "the end of "+fault.what)
	}
	r.write()
	r.restart(agent)
}

// restart restarts the agent, for which the router waits: no datagram is lost.
func (r *routed) restart(agent *lab.Process) {
	r.t.Helper()
	begun := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(agent.Stop(), agent.Start(r.t.Context())) }()
	sent := 0
	for again := true; again || time.Since(begun) < 6*time.Second; sent++ {
		if !r.echo(r.h1, r.h2) {
			r.t.Errorf("lost %v after the agent began to restart", time.Since(begun))
		}
		select {
		case err := <-ended:
			if again = false; err != nil {
				r.t.Error(err)
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
	r.shows("the switch's route", true, r.tora, r.switchctl, "routes")
	r.t.Logf("%d datagrams there and back while the agent restarted", sent)
}

// makeNetwork makes everything except the programs of switch and router.
func (r *routed) makeNetwork(p lab.Programs) {
	r.t.Helper()
	var err error
	must := func(errs ...error) {
		r.t.Helper()
		if err := errors.Join(errs...); errors.Is(err, lab.ErrUnable) {
			testenv.Skip(r.t, "%v", err)
		} else if err != nil {
			r.t.Fatal(err)
		}
	}
	space := func(name string) *lab.Space {
		s, err := lab.NewSpace(name)
		must(err)
		r.t.Cleanup(s.Close)
		return s
	}
	r.tora, r.router = space("torA"), space("router")
	for _, h := range []struct {
		to      **lab.HostNode
		name    string
		addr    string
		gateway string
		at      *lab.Space
		port    string
	}{{&r.h1, "h1", "10.1.0.11", "10.1.0.1", r.tora, "swp1"}, {&r.h2, "h2", "10.7.0.11", "10.7.0.1", r.router, "lan"}} {
		*h.to, err = lab.NewHost(r.t.Context(), p, h.name, netip.MustParseAddr(h.addr))
		must(err)
		r.t.Cleanup((*h.to).Space.Close)
		must(lab.Link((*h.to).Space, "eth0", h.at, h.port))
		r.run((*h.to).Space, "ip", "address", "add", h.addr+"/24", "dev", "eth0")
		r.run((*h.to).Space, "ip", "route", "add", "default", "via", h.gateway)
	}
	must(lab.Link(r.tora, "swp9", r.router, "tora"), lab.Link(r.tora, "mgmt", r.router, "mgmt"))
	r.run(r.tora, "ip", "address", "add", "192.0.2.1/24", "dev", "mgmt")
}

func (r *routed) run(s *lab.Space, name string, args ...string) string {
	r.t.Helper()
	out, err := s.Run(name, args...)
	if err != nil {
		r.t.Fatalf("%s: %s %s: %v\n%s", s.Name, name, strings.Join(args, " "), err, out)
	}
	return out
}

// until polls for as long as BGP may need.
func (r *routed) until(what string, cond func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("not within 30 s: %s\n%s", what, r.state())
		}
	}
}

// state returns text for the log of a failed test.
func (r *routed) state() string {
	var b strings.Builder
	for _, args := range [][]string{{"bgp"}, {"status"}, {"routes"}, {"counters"}} {
		out, _ := r.tora.Run(r.switchctl, args...)
		fmt.Fprintln(&b, out)
	}
	out, _ := r.router.Run("sh", "-c", "ip route; ip neigh; ip -s link show tora")
	return b.String() + out
}

// shows waits until a command shows a route of the other side, or no longer does.
func (r *routed) shows(what string, want bool, s *lab.Space, name string, args ...string) {
	r.t.Helper()
	r.until(fmt.Sprintf("%s is there: %v", what, want), func() bool {
		out := r.run(s, name, args...)
		there := strings.Contains(out, "10.7.0.0/24") && !strings.Contains(out, "unresolved")
		if name == "ip" {
			there = out != ""
		}
		return there == want
	})
}

// reach waits until UDP works between all hosts in both directions.
func (r *routed) reach(since time.Time, what string) {
	r.t.Helper()
	for _, pair := range [][2]*lab.HostNode{{r.h1, r.h2}, {r.h2, r.h1}} {
		r.until(pair[0].Name+" reaches "+pair[1].Name, func() bool { return r.echo(pair[0], pair[1]) })
	}
	r.t.Logf("%v after %s, data flows both ways", time.Since(since).Round(10*time.Millisecond), what)
}

// echo sends a datagram from one host to the other, and back.
func (r *routed) echo(from, to *lab.HostNode) bool {
	var far, near *net.UDPConn
	open := func(h *lab.HostNode) (c *net.UDPConn) {
		if err := h.Space.Do(func() (err error) {
			c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Addr, 0)))
			return err
		}); err != nil {
			r.t.Fatal(err)
		}
		return c
	}
	near, far = open(from), open(to)
	defer near.Close()
	defer far.Close()
	deadline := time.Now().Add(time.Second) // later it counts as lost
	_, _ = near.SetDeadline(deadline), far.SetDeadline(deadline)
	buf := make([]byte, 64)
	if _, err := near.WriteTo([]byte("there and back"), far.LocalAddr()); err != nil {
		return false
	}
	n, back, err := far.ReadFrom(buf)
	if err != nil || back.String() != near.LocalAddr().String() {
		return false
	}
	_, _ = far.WriteTo(buf[:n], back)
	_, err = near.Read(buf)
	return err == nil
}

// write sends bytes by RDMA WRITE in both directions and compares them.
func (r *routed) write() {
	r.t.Helper()
	for _, pair := range [][2]*lab.HostNode{{r.h1, r.h2}, {r.h2, r.h1}} {
		for _, h := range pair {
			if !r.open[h.Name] {
				ask[orders.DeviceInfo](r.t, h, orders.OpenDevice, orders.DeviceArgs{Device: h.Device()})
				r.open[h.Name] = true
			}
		}
		name := fmt.Sprintf("%s-%d", pair[0].Name, time.Now().UnixNano())
		connect(r.t, name, pair[0], pair[1], 1<<20, 1024)
		sent := ask[orders.FlowResult](r.t, pair[0], orders.FlowRun, orders.FlowRunArgs{Name: name, Size: 1 << 20, Depth: 4, Count: 16})
		if sum := ask[string](r.t, pair[1], orders.FlowSum, orders.Name{Name: name}); sum != sent.Sum {
			r.t.Errorf("%s has something else than %s wrote", pair[1].Name, pair[0].Name)
		}
		r.t.Logf("%s wrote %d MiB to %s in %v", pair[0].Name, sent.Bytes>>20, pair[1].Name, sent.Took.Round(time.Millisecond))
	}
}
