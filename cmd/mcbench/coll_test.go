package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/mpi"
	"github.com/mcrdma/mcrdma/pkg/collective"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
)

// Results of MPI implementations are compared, printed and plotted.
func TestRivals(t *testing.T) {
	b := &collBench{f: &collFlags{rounds: 2, count: 3}, operations: collOperations[:1]}
	b.Hosts = []string{"h1", "h2"}
	b.mpi = []string{"openmpi"}
	i := &mpi.Implementation{Name: "openmpi"}
	b.rivals = []rival{{i, "allreduce", mpi.Default}, {i, "allreduce", "ring"}}
	for _, size := range []int{8, 1 << 20} {
		b.results = append(b.results, collOperations[0].result(2, size, 100))
		b.add(&collOperations[0], b.rivals, map[string][]float64{"openmpi default": {300, 500}, "openmpi ring": {150}})
	}
	if r := b.results[0]; len(b.results) != 6 || r.By != ours || r.ByMPI != 1.5 || b.results[1].Time != 400 || b.results[1].By != "openmpi default" {
		t.Errorf("%+v", b.results)
	}
	names, of := b.curves()
	if i := slices.Index(names, "openmpi, its fastest algorithm"); i < 0 || b.fastest("allreduce", 8, of[i]) != 150 {
		t.Error(names)
	}
	var out bytes.Buffer
	if err := b.text(&out, new(cli.Output)); err != nil || !strings.Contains(out.String(), "X MPI") || strings.Contains(out.String(), "UPLINK") {
		t.Error(err, out.String())
	}
	file := filepath.Join(t.TempDir(), "x.svg")
	if err := b.plot(file); err != nil {
		t.Fatal(err)
	}
	if svg, err := os.ReadFile(file); err != nil || !bytes.Contains(svg, []byte("openmpi, its choice")) || !bytes.Contains(svg, []byte("allreduce: time")) {
		t.Error(err)
	}
}

// Implementations that are not installed are skipped.
func TestNoMPI(t *testing.T) {
	t.Setenv("PATH", "")
	b := &collBench{mpi: mpi.Names(), operations: collOperations}
	var errs bytes.Buffer
	remove, err := b.findMPI(t.Context(), &errs)
	if err != nil || len(b.rivals) > 0 || strings.Count(errs.String(), "is not installed") != 2 {
		t.Error(err, errs.String())
	}
	remove()
}

// TestLateRank: a rank that starts after the root has sent everything is waited for.
func TestLateRank(t *testing.T) {
	const late = 50 * time.Millisecond
	rack := mcrdmatest.Start(t, 2)
	hosts := []string{"h1", "h2"}
	var wg sync.WaitGroup
	for rank, h := range hosts {
		client := rack.Dial(h)
		wg.Go(func() {
			c, err := collective.Join(t.Context(), client, collective.Config{Service: "s", Hosts: hosts, Rank: rank})
			if err != nil {
				t.Error(err)
				return
			}
			calls := 0
			trial := &collTrial{op: &collOperations[1], c: c, count: 1, timeout: time.Minute, limit: time.NewTimer(0), sent: func() (uint64, error) { return 0, nil }, barrier: func(ctx context.Context) error {
				err := c.Barrier(ctx)
				if calls++; calls == barriers+1 && rank == 1 {
					time.Sleep(late)
				}
				return err
			}}
			trial.fill(8)
			if us, _, err := trial.measure(t.Context()); err != nil || us < float64(late.Microseconds())/2 {
				t.Errorf("%v µs, and one rank began %v late: %v", us, late, err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestLimit: an operation that takes too long ends, and the error says so.
func TestLimit(t *testing.T) {
	c, err := collective.Join(t.Context(), mcrdmatest.Start(t, 2).Dial("h1"), collective.Config{Service: "s", Hosts: []string{"h1"}})
	if err != nil {
		t.Fatal(err)
	}
	b := &collBench{f: &collFlags{Config: collective.Config{Wait: time.Millisecond}, rounds: 1, count: 1}}
	for name, want := range map[string]string{"endless": "endless of 8 bytes: barrier: it was not begun: ", "barrier": "barrier: it was not begun: "} {
		err = b.one(t.Context(), c, collOperation{name: name, once: func(ctx context.Context, c *collective.Comm, _, _ []float32) error {
			<-ctx.Done()
			return c.Barrier(ctx)
		}}, 8)
		if err == nil || err.Error() != want+"an operation was given up: it takes longer than 1ms" {
			t.Error(err)
		}
		if c, err = c.Shrink(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Where all ranks of a lab fail, the first error of the measuring one and of another are said; as JSON it is one.
func TestLabFails(t *testing.T) {
	for format, want := range map[string]int{"text": 2, "json": 1} {
		code, out, errs := command(t, "coll", "--lab", "--timeout", "1ms", "-o", format)
		if lines := strings.Count(errs, "\n"); code != cli.ExitFailure || out != "" || lines < 1 || lines > want || strings.Contains(errs, "interrupted") {
			t.Errorf("%s: %d, %q, %q", format, code, out, errs)
		}
	}
}

// Labs have two racks, whatever their size.
func TestLabTopology(t *testing.T) {
	for hosts := 2; hosts <= mostRanks; hosts++ {
		one, err := labTopology(hosts)
		if err != nil || len(one.Hosts) != hosts || len(one.Links) != hosts+2 {
			t.Errorf("%d hosts: %v", hosts, err)
		}
	}
}

func TestSentBy(t *testing.T) {
	if _, err := sentBy("lo"); err != nil {
		t.Error(err)
	}
	if _, err := sentBy("nothing"); err == nil {
		t.Error("an interface that is not there")
	}
}
