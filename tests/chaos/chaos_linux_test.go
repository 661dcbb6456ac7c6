package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/chaos/history"
	"github.com/mcrdma/mcrdma/tests/chaos/plan"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

var (
	seed = flag.Uint64("chaos.seed", 1, "of the first run")
	runs = flag.Int("chaos.runs", 0, "how many; 0: 10, 200 with MCRDMA_LONG=1")
)

// base is the directory of the labs. It is removed with the tests, also when they are interrupted.
var base string

func TestMain(m *testing.M) {
	var err error
	if base, err = os.MkdirTemp("", "mcrdma-chaos-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	go func() {
		<-interrupted
		_ = os.RemoveAll(base) // processes and namespaces end with this one
		os.Exit(130)
	}()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(base)
		os.Exit(code)
	}))
}

// programs compiles them when a test first needs them.
func programs(t *testing.T) lab.Programs {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	p, err := buildGroups(filepath.Join(base, "bin"), true)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func carry(t *testing.T, p lab.Programs, what *plan.Plan, how manner) *result {
	t.Helper()
	keep := os.Getenv("MCRDMA_CHAOS_KEEP")
	if how.liar {
		keep = ""
	}
	res, err := one(t.Context(), p, base, what, how, keep)
	if errors.Is(err, lab.ErrUnable) {
		testenv.Skip(t, "%v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	return res
}

// noRace is why tests only run without the race detector.
const noRace = "the processes of a lab are not built with the race detector"

// The fault matrix: 10 runs, and 200 of the long mode.
func TestMatrixWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, noRace)
	p := programs(t)
	n := 10
	switch {
	case *runs > 0:
		n = *runs
	case os.Getenv("MCRDMA_LONG") != "":
		n = 200
	}
	for i := range n {
		judge(t, p, plan.Make(*seed+uint64(i)), manner{}) //nolint:gosec // not negative
	}
}

// Cases that random plans seldom contain.
func TestRowsWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, noRace)
	p := programs(t)
	for _, row := range plan.Rows() {
		judge(t, p, row, manner{})
	}
}

// The same with switches that copy and merge in the kernel: a switch and hosts are killed; an agent
// is killed; an agent clears its switch, which then floods.
func TestFastPathWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, noRace)
	p := programs(t)
	for _, what := range []*plan.Plan{plan.Make(1), plan.Make(2), plan.Make(4), plan.Rows()[2]} {
		judge(t, p, what, manner{fastPath: true})
	}
}

// judge carries out a plan; a broken promise fails the test.
func judge(t *testing.T, p lab.Programs, what *plan.Plan, how manner) {
	t.Run(strings.ReplaceAll(what.Name(), " ", "="), func(t *testing.T) {
		t.Parallel() // labs share nothing, and mostly wait
		res := carry(t, p, what, how)
		t.Log(report(what, res))
		if len(res.Violations) > 0 {
			t.Errorf("replay: go run ./tests/chaos -fastpath=%v -%s", how.fastPath, what.Name())
		}
		if how.fastPath && res.InKernel == 0 && !what.Restarts() { // a switch that has just started may have copied nothing yet
			t.Error("nothing was copied in the kernel")
		}
		if what.Seed >= plan.FirstRow && res.Struck < what.Kills() {
			t.Error("it came to no such write")
		}
	})
}

// The checker finds a switch that acknowledges before the minimum within 20 runs.
func TestLiarIsFoundWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, noRace)
	p := programs(t)
	for s := range uint64(20) {
		res := carry(t, p, plan.Make(1+s), manner{liar: true})
		for _, v := range res.Violations {
			for _, rule := range []string{history.RuleMemory, history.RuleMessage} {
				if len(v) > len(rule) && v[:len(rule)] == rule {
					t.Logf("found in run %d: %s", s+1, v)
					return
				}
			}
		}
	}
	t.Error("not found in 20 runs")
}

// A plan that cannot be carried out is an error, and leaves nothing behind.
func TestCancelledWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, noRace)
	p := programs(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if res, err := carryOut(ctx, p, dir, plan.Make(1), manner{}); err == nil {
		t.Errorf("it was carried out: %v", res.Violations)
	}
}

// A liar's answers look like a switch's: the sender must accept them.
func TestLiar(t *testing.T) {
	eth := rocev2.Ethernet{Dst: [6]byte{2, 0, 0, 0, 0, 1}, Src: [6]byte{2, 0, 0, 0, 0, 2}, EtherType: rocev2.EtherTypeIPv4}
	host, rep := [4]byte{10, 1, 0, 11}, [4]byte{10, 1, 0, 12}
	frame := func(src, dst [4]byte, h rocev2.Headers) []byte {
		return answer(eth, rocev2.IPv4{TTL: 64, Protocol: rocev2.ProtocolUDP, Src: dst, Dst: src}, h) // they are swapped
	}
	l := &liar{known: map[[4]byte]map[rocev2.QPN]rocev2.Headers{}}
	ask := func(psn rocev2.PSN, qpn rocev2.QPN) [][]byte {
		return l.asked(frame(host, rep, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.SendOnly, DestQP: qpn, PSN: psn, AckReq: true, PKey: 0xffff}}))
	}
	if out := ask(5, plan.FirstMCID); len(out) > 0 {
		t.Fatal("it answers for receivers that it does not know")
	}
	ack := rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, DestQP: 17, PSN: 5, PKey: 0xffff}, AETH: rocev2.AETH{Syndrome: 0x1f, MSN: 3}}
	if out := l.answered(frame(rep, host, ack)); len(out) > 0 {
		t.Fatal("an answer is answered")
	}
	for _, out := range [][][]byte{ask(5, plan.FirstMCID), ask(6, 0x11)} {
		if len(out) > 0 {
			t.Error("it answers what needs no lie")
		}
	}
	out := ask(9, plan.FirstMCID)
	if len(out) != 1 {
		t.Fatalf("it answers %d times", len(out))
	}
	got, ip, h, ok := parsed(out[0])
	if !ok || got.Dst != eth.Dst || ip.Src != rep || ip.Dst != host || h.DestQP != 17 || h.PSN != 9 || !h.AETH.Syndrome.IsAck() ||
		!rocev2.VerifyICRC(out[0][rocev2.EthernetLen:]) {
		t.Errorf("%v %v %+v %v", got, ip, h, ok)
	}
}

// The measured pause is the one that the death has caused, and no other.
func TestWaited(t *testing.T) {
	at := func(what string, ms int64) history.Entry {
		return history.Entry{What: what, At: ms * 1000, Member: "h2"}
	}
	log := []history.Entry{at(history.Done, 10), at(history.Done, 101), at(history.Done, 103), at(history.Removed, 250), at(history.Done, 255),
		at(history.Done, 256), at(history.Done, 900)}
	if got, err := waited(log, 100_000, "h2"); err != nil || got.Milliseconds() != 155 {
		t.Errorf("waited %v, %v", got, err)
	}
	if _, err := waited(log[:3], 100_000, "h2"); err == nil {
		t.Error("no receiver was removed, but waited returns no error")
	}
}
