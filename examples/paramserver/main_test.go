package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/collective"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
)

func TestMain(m *testing.M) {
	if os.Getenv("PARAMSERVER_TEST") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestUsage: it takes a server and a worker, and says what is wrong.
func TestUsage(t *testing.T) {
	for args, says := range map[string]string{"": "-hosts SERVER,WORKER", "-hosts h1": "-hosts SERVER,WORKER", "-hosts h1,,h2": "-hosts SERVER,WORKER", "-hosts h1,h2 h3": `unexpected argument "h3"`, "-hosts h1,h2 -steps -1": "-steps -1: it is 0 or more"} {
		cmd := exec.Command(os.Args[0], strings.Fields(args)...)
		cmd.Env = append(os.Environ(), "PARAMSERVER_TEST=1", "MCRDMA_SOCKET=/nonexistent")
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || !strings.Contains(string(out), says) {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

// TestTrain: three workers train a model; one is killed, and the others go on. Nothing runs when the test has ended.
func TestTrain(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	rack := mcrdmatest.Start(t, 4)
	hosts := []string{"h1", "h2", "h3", "h4"}
	losses := make([]float64, len(hosts))
	var wg sync.WaitGroup
	for rank, h := range hosts {
		client := rack.Dial(h)
		wg.Go(func() {
			ctx := t.Context()
			c, err := collective.Join(ctx, client, collective.Config{Service: "s", Hosts: hosts, Rank: rank})
			if err != nil {
				t.Error(err)
				return
			}
			steps := 15
			if rank == 2 {
				steps = 5 // it is killed then, where the others go on
			}
			c, loss, err := train(ctx, c, rank, steps)
			if rank == 2 {
				rack.Kill(h)
				_ = c.Close(ctx)
				return
			}
			if err == nil {
				err = c.Close(ctx)
			}
			if err != nil || c.Size() != 3 {
				t.Errorf("rank %d: %d are left, %v", rank, c.Size(), err)
			}
			losses[rank] = loss
		})
	}
	wg.Wait()
	if losses[0] <= 0 || losses[0] > 0.24 || losses[1] != losses[0] || losses[3] != losses[0] { // at first it is 1/4
		t.Error(losses)
	}
}
