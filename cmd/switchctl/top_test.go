package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// looks are two of the lab's agents, a second apart, and one that does not answer.
func looks(t *testing.T) (before, now *look) {
	fakes := lab(t)
	before = &look{at: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)}
	for _, name := range []string{"torA", "torB"} {
		f := fakes[name]
		for _, p := range f.status.Ports {
			p.Since = nil
		}
		before.agents = append(before.agents, agentLook{address: name, status: f.status, groups: f.groups, counters: f.counters})
	}
	fakes["torB"].status.P4Runtime = proto.CloneOf(fakes["torB"].status.P4Runtime)
	fakes["torB"].status.P4Runtime.FastPath = "off: 2 rules of fault injection"
	before.agents = append(before.agents, agentLook{address: "torC", err: errors.New("agent torC is away")})
	now = &look{at: before.at.Add(2 * time.Second)}
	for _, a := range before.agents {
		b := agentLook{address: a.address, err: a.err, status: a.status}
		for _, g := range a.groups {
			g = proto.CloneOf(g)
			g.Packets += 25_000
			g.Members[0].Acks += 300
			g.Members[1].RnrNaks++
			// Another order, and a new one: they are identified by their addresses.
			r := g.Group.Receivers
			slices.Reverse(r)
			slices.Reverse(g.Members)
			g.Group.Receivers = append(r, &mcrdmav1.Receiver{Address: "10.3.0.1"})
			g.Members = append(g.Members, &mcrdmav1.MemberCounters{Acks: 7, FatalNaks: 1})
			b.groups = append(b.groups, g)
		}
		for _, c := range a.counters {
			c = proto.CloneOf(c)
			if c.Cell != "icrc" {
				c.Packets += 50
			}
			b.counters = append(b.counters, c)
		}
		now.agents = append(now.agents, b)
	}
	return before, now
}

const topWant = `12:00:02  3 switches, 1 group

SWITCH  CONTROL  ROUTES   LINKS UP  PEERS   GROUPS  STEPS  PROBLEMS
torA    primary  settled  1 of 2    1 of 1       1      1
torB    primary  settled  0 of 0    1 of 1       0      1
torC                                                       agent torC is away

SWITCH  FAST PATH
torB    off: 2 rules of fault injection

GROUP        MC_ID     SWITCH  PACKETS/S  RECEIVER   ACKS/S  NAKS/S  RNR/S  FATAL  CNPS/S  PROBLEMS
10.1.0.1/17  0x000801  torA    12k        10.1.0.12  0       0       0          0  0
                                          10.2.0.12  0       0       0.5        0  0
                                          10.2.0.11  150     0       0          0  0
                                          10.3.0.1   -       -       -          1  -

SWITCH  PORT  NEIGHBOR  STATE  SINCE  REASON
torA      10  core      down          no hello for 150ms

SWITCH  DROPPED AT     REASON     PACKETS/S  PACKETS  MEANING
torA    ingress.drops  malformed  25              50  lengths that disagree, or cut short
torA    ingress.drops  no_route   25             140  no route to the destination`

func TestTopLines(t *testing.T) {
	before, now := looks(t)
	if got := strings.Join(topLines(before, now), "\n"); got != topWant {
		t.Errorf("%s\nwant:\n%s", got, topWant)
	}
	if got := strings.Join(topLines(nil, now), "\n"); strings.Contains(got, "DROPPED AT") || !strings.Contains(got, "10.1.0.1/17  0x000801  torA    -") {
		t.Errorf("nothing seen before: %s", got)
	}
}

// TestTopUncounted: the rates of a group are known only if its counters were read twice.
func TestTopUncounted(t *testing.T) {
	for _, c := range [][3]bool{{false, false, false}, {true, false, false}, {false, true, false}, {true, true, true}} {
		before, now := looks(t)
		for i, l := range []*look{before, now} {
			if g := l.agents[0].groups[0]; !c[i] {
				g.Members, g.Packets = nil, 0
			}
		}
		if got := newTop(before, now).Agents[0].Groups[0].Packets; (got != nil) != c[2] {
			t.Errorf("counters read before: %v, now: %v, and the rate is known: %v", c[0], c[1], got != nil)
		}
	}
}

func TestScreen(t *testing.T) {
	got := screen([]string{"abcdef", "abcdefg", "", "ü漢"}, 6, 4)
	if want := goHome + "abcdef" + clearRight + "\r\nabcde…" + clearRight + "\r\n" + clearRight + "\r\nü漢" + clearRight + clearBelow; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	got = screen([]string{"1", "2", "3", "4"}, 80, 3)
	if !strings.Contains(got, "2"+clearRight+"\r\n… and 2 more lines") || strings.Contains(got, "3"+clearRight) {
		t.Errorf("%q", got)
	}
	for _, size := range [][2]int{{0, 0}, {1, 1}, {-1, -1}} {
		_ = screen([]string{"1", "2"}, size[0], size[1]) // must not panic
	}
}

// TestTopOnce: without a terminal there is one view and no terminal sequence.
func TestTopOnce(t *testing.T) {
	t.Setenv(agentEnv, "")
	fakes := lab(t)
	code, stdout, stderr := call("top", "--interval", "100ms", "--agent", fakes["torB"].addr)
	if code != cli.ExitOK || strings.Contains(stdout, "\x1b") || !strings.Contains(stdout, "2 switches, 1 group") || strings.Count(stdout, "GROUP ") != 1 {
		t.Errorf("%d, %s, %s", code, stdout, stderr)
	}
	if strings.Contains(stdout, "  -  ") {
		t.Errorf("rates are not known: %s", stdout)
	}
	code, stdout, _ = call("top", "--once", "--interval", "100ms", "--agent", deadAddress(t))
	if code != cli.ExitFailure || !strings.Contains(stdout, "connection refused") {
		t.Errorf("%d, %s", code, stdout)
	}
}

// TestTopSilent: an agent that does not answer is asked once, which takes one timeout. So does status.
func TestTopSilent(t *testing.T) {
	plain, err := identity.Files{}.Server()
	must(t, err)
	answers := &fakeAgent{status: &mcrdmav1.GetStatusResponse{Name: "torZ"}}
	answers.serve(t, plain)
	for _, c := range [][]string{{"top", "--once"}, {"top", "--once", "--interval", "100ms", "--agent", answers.addr}, {"status", "--peers"}} {
		hangs := &fakeAgent{hangs: true}
		hangs.serve(t, plain)
		code, _, stderr := call(append(c, "--timeout", "500ms", "--agent", hangs.addr)...)
		hangs.mu.Lock()
		calls := hangs.calls
		hangs.mu.Unlock()
		if code != cli.ExitFailure || !strings.Contains(stderr, "did not answer within 500ms") || calls > 1 {
			t.Errorf("%v: %d after %d calls: %s", c, code, calls, stderr)
		}
	}
}

// TestTopLive: the view is refreshed until the end, and the terminal is restored.
func TestTopLive(t *testing.T) {
	fakes := lab(t)
	fleet := agents.NewFleet(agents.Options{Timeout: 5 * time.Second})
	defer fleet.Close()
	a, err := fleet.Agent(agents.Address{HostPort: fakes["torA"].addr})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out testenv.SyncBuffer
	done := make(chan error)
	go func() {
		top := &top{list: []*agents.Agent{a}, interval: 20 * time.Millisecond}
		done <- top.live(ctx, &out, func() (int, int) { return 120, 40 })
	}()
	for strings.Count(out.String(), goHome) < 3 && ctx.Err() == nil {
		time.Sleep(time.Millisecond) // the output comes from another goroutine
	}
	cancel()
	must(t, <-done)
	s := out.String()
	if !strings.HasPrefix(s, enterScreen+goHome) || !strings.HasSuffix(s, clearBelow+leaveScreen) || strings.Count(s, enterScreen) != 1 || strings.Count(s, goHome) < 3 {
		t.Errorf("%q", s)
	}
}

// pty opens a pseudoterminal: what is written to the second end arrives at the first.
func pty(t *testing.T) (outer, inner *os.File) {
	t.Helper()
	outer, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		testenv.Skip(t, "no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { outer.Close() })
	must(t, unix.IoctlSetPointerInt(int(outer.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(outer.Fd()), unix.TIOCGPTN)
	must(t, err)
	inner, err = os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(n)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		testenv.Skip(t, "no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { inner.Close() })
	return outer, inner
}

func TestTerminal(t *testing.T) {
	_, inner := pty(t)
	must(t, unix.IoctlSetWinsize(int(inner.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 133, Row: 44}))
	if c, r := cli.TerminalSize(inner); !cli.IsTerminal(inner) || c != 133 || r != 44 {
		t.Errorf("%v, %d×%d", cli.IsTerminal(inner), c, r)
	}
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	if c, r := cli.TerminalSize(null); cli.IsTerminal(null) || c != 80 || r != 24 {
		t.Errorf("%v, %d×%d", cli.IsTerminal(null), c, r)
	}
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !cli.Colored(inner) || cli.Colored(null) || cli.Colored(&strings.Builder{}) {
		t.Error("colors are for terminals")
	}
	t.Setenv("NO_COLOR", "1")
	if cli.Colored(inner) {
		t.Error("NO_COLOR is ignored")
	}
}

// TestTopJSON: the same numbers, for programs; a group that was not seen before has no rate.
func TestTopJSON(t *testing.T) {
	var b strings.Builder
	before, now := looks(t)
	must(t, writeTopJSON(&b, before, now))
	var got topJSON
	must(t, json.Unmarshal([]byte(b.String()), &got))
	if strings.Count(b.String(), "\n") != 1 || got.Interval != 2 || len(got.Agents) != 3 || got.Agents[2].Error != "agent torC is away" {
		t.Fatalf("%s", b.String())
	}
	g := got.Agents[0].Groups[0]
	if *g.Packets != 12_500 || g.MCID != "0x000801" || len(g.Receivers) != 4 || *g.Receivers[2].Acks != 150 || *g.Receivers[1].RNRNAKs != 0.5 ||
		g.Receivers[3].Acks != nil || g.Receivers[3].FatalNAKs != 1 || !strings.Contains(string(got.Agents[0].Status), `"torA"`) {
		t.Errorf("%+v", g)
	}
	fakes := lab(t)
	code, stdout, stderr := call("top", "--json", "--interval", "100ms", "--agent", fakes["torA"].addr)
	if code != cli.ExitOK || json.Unmarshal([]byte(stdout), &got) != nil || *got.Agents[0].Groups[0].Packets < 0 {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
}
