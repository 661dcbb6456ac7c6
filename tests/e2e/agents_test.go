package e2e

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// A process is a switchctl that can be killed and started again.
type process struct {
	args []string
	dir  string
	bin  string
	cmd  *exec.Cmd
	log  strings.Builder
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(p.bin, p.args...)
	p.cmd.Dir = p.dir
	p.log.Reset()
	p.cmd.Stderr = &p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			if strings.HasPrefix(s.Text(), "ready") {
				ready <- true
			}
		}
		ready <- false
	}()
	select {
	case ok := <-ready:
		if !ok {
			_ = p.cmd.Wait()
			t.Fatalf("%v ended:\n%s", p.args, p.log.String())
		}
	case <-time.After(30 * time.Second):
		p.kill()
		t.Fatalf("%v is not ready:\n%s", p.args, p.log.String())
	}
}

// kill kills the process.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// The agents and switches of examples/twoswitches, as processes, are killed repeatedly while groups
// are installed and removed. At the end the switches have what the agents report, and when all
// groups have been removed, nothing is left.
func TestProcessesKilledWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "the processes are not built with the race detector")
	embeddedOnly(t, "the link between the switches is a UDP tunnel")
	dir := t.TempDir()
	bin := filepath.Join(dir, "switchctl")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/switchctl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ports := strings.NewReplacer(replacePorts(t, "19559", "19560", "19561", "19562")...)
	for _, f := range []string{"fabric.yaml", "left.yaml", "right.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../examples/twoswitches", f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), []byte(ports.Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wire := [2]string{freeAddr(t).String(), freeAddr(t).String()}
	softswitch := func(p4 string, near, far string) *process {
		return &process{bin: bin, dir: dir, args: []string{"softswitch", "--no-p4", "--cpu-port", "510",
			"--grpc-server-addr", ports.Replace("127.0.0.1:" + p4), "-i", "9@udp:" + near + "," + far}}
	}
	agent := func(config string) *process {
		return &process{bin: bin, dir: dir, args: []string{"agent", "--config", config}}
	}
	all := []*process{softswitch("19559", wire[0], wire[1]), softswitch("19560", wire[1], wire[0]), agent("left.yaml"), agent("right.yaml")}
	for _, p := range all {
		t.Cleanup(p.kill)
	}
	for _, p := range all {
		p.start(t)
	}

	conn, err := grpc.NewClient(ports.Replace("127.0.0.1:19561"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), identity.Claim(identity.Identity{Role: identity.Admin, Name: "test"}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	groups := mcrdmav1.NewSwitchGroupsClient(conn)
	const seed = 7
	r := rand.New(rand.NewPCG(seed, seed))
	ctx, stop := context.WithCancel(t.Context())
	churned := make(chan int)
	go churn(ctx, groups, churned)
	for range 12 {
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
		p := all[r.IntN(len(all))]
		p.kill()
		p.start(t)
	}
	stop()
	t.Logf("seed %d: %d groups installed or removed meanwhile", seed, <-churned)

	ctl := func(args ...string) (string, error) {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(os.Environ(), "SWITCHCTL_AGENT="+ports.Replace("127.0.0.1:19561"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	patiently(t, "the doctor finds nothing", func() string {
		out, err := ctl("doctor", "--peers")
		if err != nil {
			return out
		}
		return ""
	})
	list, err := groups.List(t.Context(), &mcrdmav1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range list.Groups {
		key := fmt.Sprintf("%s/%#x", g.Group.Key.Source, g.Group.Key.McId)
		if out, err := ctl("group", "show", key); err != nil || strings.Contains(out, "!") {
			t.Errorf("group %s: %v\n%s", key, err, out)
		}
		if _, err := groups.Remove(t.Context(), &mcrdmav1.RemoveRequest{Key: g.Group.Key}); err != nil {
			t.Errorf("removing %s: %v", key, err)
		}
	}
	for _, p4 := range []string{"19559", "19560"} {
		patiently(t, "nothing is left on "+p4, func() string {
			out, err := ctl("pipeline", "show", "--target", ports.Replace("127.0.0.1:"+p4), "-o", "json")
			if err != nil {
				return out
			}
			return leftOf(t, out)
		})
	}
}

// churn installs and removes groups until ctx ends, and ignores errors.
func churn(ctx context.Context, groups mcrdmav1.SwitchGroupsClient, done chan<- int) {
	n := 0
	for i := uint32(0); ctx.Err() == nil; i++ {
		key := &mcrdmav1.GroupKey{Source: "10.1.0.11", McId: 0x800000 + i%20}
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		var err error
		if i%40 < 20 {
			_, err = groups.Install(call, &mcrdmav1.InstallRequest{Group: &mcrdmav1.Group{Key: key, SenderQpn: 17, InitialPsn: 5,
				Receivers: []*mcrdmav1.Receiver{{Address: "10.1.0.12", Qpn: 1}, {Address: "10.2.0.11", Qpn: 2}, {Address: "10.2.0.12", Qpn: 3}}}})
		} else {
			_, err = groups.Remove(call, &mcrdmav1.RemoveRequest{Key: key})
		}
		cancel()
		if err == nil {
			n++
		}
	}
	done <- n
}

// leftOf returns the tables of groups that are not empty.
func leftOf(t *testing.T, out string) string {
	t.Helper()
	left, err := lab.TablesOfGroups([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(left, ", ")
}

// patiently waits until f reports no more problems.
func patiently(t *testing.T, what string, f func() string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if last = f(); last == "" {
			return
		}
	}
	t.Errorf("not within 40 s: %s: %s", what, last)
}

// replacePorts replaces ports of the example with free ones.
func replacePorts(t *testing.T, ports ...string) []string {
	t.Helper()
	var pairs []string
	for _, p := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, free, _ := net.SplitHostPort(l.Addr().String())
		pairs = append(pairs, p, free)
	}
	return pairs
}
