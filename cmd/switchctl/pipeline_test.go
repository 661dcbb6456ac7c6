package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	p4config "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/tests/sample"
)

const pipelineDevice = 3

// embeddedSwitch is an empty switch on loopback, for P4Runtime only.
func embeddedSwitch(t *testing.T) (target string, server *p4rtserver.Server) {
	t.Helper()
	sw, err := softswitch.New(softswitch.Config{CPUPort: bmv2.CPUPort})
	must(t, err)
	server = p4rtserver.New(sw, p4rtserver.Options{DeviceID: pipelineDevice})
	g := grpc.NewServer(p4rtserver.ServerOptions()...)
	server.Register(g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		must(t, sw.Close())
	})
	return l.Addr().String(), server
}

// bmv2Switch starts bmv2 itself, if it is installed.
func bmv2Switch(t *testing.T) (target string) {
	t.Helper()
	program := os.Getenv("SIMPLE_SWITCH_GRPC")
	if program == "" {
		program = "simple_switch_grpc"
	}
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skip("optional: bmv2's simple_switch_grpc is not in PATH, and SIMPLE_SWITCH_GRPC does not name it")
	}
	var free [2]string
	for i := range free {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		free[i] = l.Addr().String()
		must(t, l.Close())
	}
	_, thrift, _ := net.SplitHostPort(free[0])
	cmd := exec.Command(path, "--no-p4", "--device-id", fmt.Sprint(pipelineDevice), "--thrift-port", thrift,
		"--notifications-addr", "ipc://"+filepath.Join(t.TempDir(), "n.ipc"),
		"--", "--grpc-server-addr", free[1], "--cpu-port", fmt.Sprint(bmv2.CPUPort))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	agent(t, free[1], p4rt.ElectionID{Low: 1}).Close() // it is ready when it answers
	return free[1]
}

// agent opens a session as an agent would, and waits until the switch has answered.
func agent(t *testing.T, target string, id p4rt.ElectionID) *p4rt.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		c, err := p4rt.New(p4rt.Config{Target: target, DeviceID: pipelineDevice, ElectionID: id})
		must(t, err)
		s, err := c.Open(ctx)
		if err == nil {
			t.Cleanup(func() { s.Close(); _ = c.Close() })
			return s
		}
		_ = c.Close()
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// pipelineCall runs a command line on a switch.
func pipelineCall(t *testing.T, target, args string, code int, want ...string) string {
	t.Helper()
	line := fmt.Sprintf("pipeline %s --target %s --device-id %d", args, target, pipelineDevice)
	got, stdout, stderr := call(strings.Fields(line)...)
	if got != code {
		t.Errorf("%s: exit code %d, want %d; %s%s", line, got, code, stdout, stderr)
	}
	for _, w := range want {
		if !strings.Contains(stdout+stderr, w) {
			t.Errorf("%s: %q is not in\n%s%s", line, w, stdout, stderr)
		}
	}
	return stdout
}

func pipelines(t *testing.T, target string) {
	pipelineCall(t, target, "show", cli.ExitOK, "program   none")
	pipelineCall(t, target, "verify", cli.ExitFailure, "runs no program")
	pipelineCall(t, target, "push", cli.ExitOK, "runs this switchctl's program now")
	pipelineCall(t, target, "push --election-id 9,1", cli.ExitOK, "nothing was done")
	pipelineCall(t, target, "verify", cli.ExitOK, "0 entries and 0 multicast groups are consistent")

	// An agent is running, with entries. None of this disturbs it.
	s := agent(t, target, p4rt.ElectionID{Low: 1})
	must(t, s.WaitPrimary(t.Context()))
	state := &switchspec.State{}
	must(t, state.Put(
		switchspec.Neighbor{NextHop: 1}, switchspec.NextHop{ID: 1, Port: 1},
		switchspec.Route{Dst: netip.MustParsePrefix("10.0.0.0/8"), To: switchspec.ToNextHop, Number: 1},
		switchspec.PREGroup{ID: 5, Replicas: []switchspec.PREReplica{{Port: 1, Instance: 1}, {Port: 2, Instance: 1}}}))
	must(t, s.Apply(t.Context(), switchspec.Diff(&switchspec.State{}, state)))
	pipelineCall(t, target, "verify", cli.ExitOK, "3 entries and 1 multicast groups are consistent")
	pipelineCall(t, target, "show", cli.ExitOK, "mcrdma.p4, the one of this switchctl", bmv2.Origin().Sources, "PRE replicas")
	pipelineCall(t, target, "push", cli.ExitOK, "already, with 3 entries")
	if role, _ := s.Role(); role != p4rt.Primary {
		t.Errorf("the agent is %v", role)
	}

	// A reference that leads nowhere.
	must(t, s.Apply(t.Context(), []switchspec.Change{{Op: switchspec.Delete, Entity: switchspec.NextHop{ID: 1, Port: 1}}}))
	pipelineCall(t, target, "verify", cli.ExitFailure, "dangling", "10.0.0.0/8")
	var verdict struct {
		OK       bool
		Problems []string
		Entries  int
	}
	must(t, json.Unmarshal([]byte(pipelineCall(t, target, "verify -o json", cli.ExitFailure)), &verdict))
	if verdict.OK || len(verdict.Problems) == 0 || verdict.Entries != 2 {
		t.Errorf("%+v", verdict)
	}

	// With --force the switch is as new, although the agent has the same election ID.
	pipelineCall(t, target, "push --force", cli.ExitOK, "now, with 0 entries")
	pipelineCall(t, target, "verify", cli.ExitOK)
}

func TestPipeline(t *testing.T) {
	target, _ := embeddedSwitch(t)
	pipelines(t, target)
}

func TestPipelineBMv2(t *testing.T) { pipelines(t, bmv2Switch(t)) }

// load makes a switch run another program, with a bridged port if state is needed.
func load(t *testing.T, server *p4rtserver.Server) {
	t.Helper()
	var info p4config.P4Info
	must(t, prototext.Unmarshal(sample.P4Info, &info))
	must(t, server.Preset(&p4.ForwardingPipelineConfig{P4Info: &info, P4DeviceConfig: sample.JSON}))
}

// multicast makes a multicast group, which any program may have.
func multicast(t *testing.T, target string, s *p4rt.Session) {
	t.Helper()
	must(t, s.WaitPrimary(t.Context()))
	state := &switchspec.State{}
	must(t, state.Put(switchspec.PREGroup{ID: 5, Replicas: []switchspec.PREReplica{{Port: 1, Instance: 1}}}))
	must(t, s.Apply(t.Context(), switchspec.Diff(&switchspec.State{}, state)))
}

// TestPipelineForeign: another program is shown, not verified, and not replaced if another
// controller might need it.
func TestPipelineForeign(t *testing.T) {
	target, server := embeddedSwitch(t)
	load(t, server)
	pipelineCall(t, target, "show", cli.ExitOK, "NOT the one of this switchctl", "the P4Info is another one")
	pipelineCall(t, target, "verify", cli.ExitFailure, "the JSON is another one")

	s := agent(t, target, p4rt.ElectionID{Low: 1})
	pipelineCall(t, target, "push", cli.ExitFailure, "another controller is connected with election id 0.1", "--force")
	pipelineCall(t, target, "push --election-id 4", cli.ExitFailure, "--force")
	s.Close()

	s = agent(t, target, p4rt.ElectionID{Low: 7})
	must(t, s.WaitPrimary(t.Context()))
	pipelineCall(t, target, "push", cli.ExitFailure, "another controller is the primary, with election id 0.7", "--force")
	if role, _ := s.Role(); role != p4rt.Primary {
		t.Errorf("the agent is %v", role)
	}
	multicast(t, target, s)
	s.Close()
	pipelineCall(t, target, "push", cli.ExitFailure, "0 entries and 1 multicast groups that would be lost")
	pipelineCall(t, target, "verify", cli.ExitFailure)
	pipelineCall(t, target, "push --force", cli.ExitOK, "now, with 0 entries")

	// Without state, and without another controller, --force is not needed.
	load(t, server)
	pipelineCall(t, target, "push --election-id 3,9", cli.ExitOK, "now")
	var r struct {
		Pushed, Own bool
		Tables      []tableUse
	}
	must(t, json.Unmarshal([]byte(pipelineCall(t, target, "push -o json", cli.ExitOK)), &r))
	if r.Pushed || !r.Own || len(r.Tables) < 15 {
		t.Errorf("%+v", r)
	}
}

// TestPipelineForceDisplaces: with --force even a primary with a higher election ID loses.
func TestPipelineForceDisplaces(t *testing.T) {
	target, _ := embeddedSwitch(t)
	s := agent(t, target, p4rt.ElectionID{Low: 7, High: 2})
	must(t, s.WaitPrimary(t.Context()))
	pipelineCall(t, target, "push", cli.ExitFailure, "with election id 2.7")
	pipelineCall(t, target, "push --force", cli.ExitOK, "now")
	// The agent follows when the intruder has left.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, s.WaitPrimary(ctx))
}

func TestPipelineUsage(t *testing.T) {
	for args, want := range map[string]string{
		"x":                      `no subcommand "x"; the subcommands are: push, show, verify`,
		"show x":                 `unexpected argument "x"`,
		"push --election-id 0":   `--election-id "0"`,
		"push --election-id x":   `--election-id "x"`,
		"push --election-id 1,x": `--election-id "1,x"`,
		"show --target=":         "--target is needed",
		"show --timeout 0s":      "--timeout",
		"show -o dot":            "text or json",
		"show --force":           "unknown flag",
	} {
		code, stdout, stderr := call(append([]string{"pipeline"}, strings.Fields(args)...)...)
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q, %q; want 2 and %q", args, code, stdout, stderr, want)
		}
	}
	for _, c := range []string{"show", "verify", "push"} {
		code, _, stderr := call("pipeline", c, "--target", "127.0.0.1:1", "--timeout", "5s")
		if code != cli.ExitFailure || !strings.Contains(stderr, "no P4Runtime server answers there") {
			t.Errorf("%s without a switch: exit code %d, %s", c, code, stderr)
		}
	}
	if _, stdout, _ := call("pipeline"); !strings.Contains(stdout, "verify") {
		t.Errorf("%s", stdout)
	}
}
