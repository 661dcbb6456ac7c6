// Command paramserver trains a small model with a parameter server, data-parallel: the first host has the weights, and the others
// have data. In each step the workers pull the weights, which the server sends once to all (Broadcast), and push their gradients, which
// are combined (Reduce). If a worker is killed, the rest goes on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/collective"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // or …/ibverbs, for NICs
)

const (
	features = 1000
	batch    = 64 // examples of a worker in each step
	rate     = 0.1
)

func main() {
	hosts := flag.String("hosts", "", "the hosts or their addresses, with commas between; the first is the server")
	steps := flag.Int("steps", 200, "how often the weights are changed")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "paramserver -hosts SERVER,WORKER,…   on each of these hosts: train a model together\n\nThe daemon's socket is $MCRDMA_SOCKET, or /run/mcrdma/daemon.sock.\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	names := strings.Split(*hosts, ",")
	wrong := ""
	switch {
	case flag.NArg() > 0:
		wrong = fmt.Sprintf("unexpected argument %q", flag.Arg(0))
	case len(names) < 2 || slices.Contains(names, ""):
		wrong = fmt.Sprintf("-hosts SERVER,WORKER,… is needed: a server, and one worker or more; it is %q", *hosts)
	case *steps < 0:
		wrong = fmt.Sprintf("-steps %d: it is 0 or more", *steps)
	}
	if wrong != "" {
		fmt.Fprintln(flag.CommandLine.Output(), "paramserver:", wrong)
		os.Exit(2)
	}
	ctx := context.Background()
	client, err := mcrdma.Dial(ctx, mcrdma.Options{})
	if err != nil {
		log.Fatal(err)
	}
	rank := slices.IndexFunc(names, func(name string) bool { return name == client.Host() || name == client.Address() })
	if rank < 0 {
		log.Fatalf("this host is %s (%s), which is none of -hosts %s", client.Host(), client.Address(), *hosts)
	}
	comm, err := collective.Join(ctx, client, collective.Config{Service: "paramserver", Hosts: names, Rank: rank})
	if err != nil {
		log.Fatal(err)
	}
	comm, loss, err := train(ctx, comm, rank, *steps)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: loss %.4f after %d steps, with %d of %d workers left\n", client.Host(), loss, *steps, comm.Size()-1, len(names)-1)
	if err := errors.Join(comm.Close(ctx), client.Close()); err != nil {
		log.Fatal(err)
	}
}

// A state is what the server sends: the weights, and behind them how many steps are done, and the last loss.
type state []float64

func (s state) weights() []float64 { return s[:features] }
func (s state) done() *float64     { return &s[features] }
func (s state) loss() *float64     { return &s[features+1] }

// train is the whole training, of the server and of workers. Ranks that are lost are left out. It returns the last loss.
func train(ctx context.Context, c *collective.Comm, seed, steps int) (*collective.Comm, float64, error) {
	s := make(state, features+2)
	data := rand.New(rand.NewPCG(uint64(seed), 1)) //nolint:gosec // not for secrets, nor negative
	for {
		last, err := step(ctx, c, s, data, steps)
		switch {
		case errors.Is(err, collective.ErrLost) && c.Rank() == 0, errors.Is(err, collective.ErrLost) && !lostServer(err):
			log.Print(err)
			if c, err = c.Shrink(ctx); err != nil {
				return c, 0, err
			}
			if c.Size() == 1 {
				return c, 0, errors.New("no worker is left")
			}
		case err != nil:
			return c, 0, err
		case last:
			return c, *s.loss(), nil
		}
	}
}

func lostServer(err error) bool {
	e, ok := errors.AsType[*collective.Error](err)
	return ok && slices.ContainsFunc(e.Lost, func(l collective.Lost) bool { return l.Rank == 0 })
}

// step is one of the training: pull, compute, push. The server does it again if a rank was lost meanwhile. In the last one there is nothing more
// to compute.
func step(ctx context.Context, c *collective.Comm, s state, data *rand.Rand, steps int) (last bool, err error) {
	if err := collective.Broadcast(ctx, c, 0, s); err != nil || int(*s.done()) >= steps {
		return true, err
	}
	gradient := make(state, len(s))
	if c.Rank() > 0 {
		*gradient.loss() = compute(s.weights(), gradient.weights(), data)
	}
	if err := collective.Reduce(ctx, c, 0, gradient, collective.Sum); err != nil || c.Rank() > 0 {
		return false, err
	}
	examples := float64(batch * (c.Size() - 1))
	for i, g := range gradient.weights() {
		s.weights()[i] -= rate * g / examples * features / 10
	}
	*s.loss() = *gradient.loss() / examples
	*s.done()++
	return false, nil
}

// compute adds up the gradients of a worker's next examples, and returns the sum of their losses. The model is linear, and what it is
// to learn is the weights sin(i).
func compute(weights, gradient []float64, data *rand.Rand) (loss float64) {
	x := make([]float64, features)
	for range batch {
		wanted, got := 0.0, 0.0
		for i := range x {
			x[i] = data.NormFloat64() / math.Sqrt(features)
			wanted += x[i] * math.Sin(float64(i))
			got += x[i] * weights[i]
		}
		for i := range x {
			gradient[i] += (got - wanted) * x[i]
		}
		loss += (got - wanted) * (got - wanted) / 2
	}
	return loss
}
