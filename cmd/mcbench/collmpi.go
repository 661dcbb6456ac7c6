package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/mpi"
)

// ours is the name of the library in results, where no MPI implementation did the operation.
const ours = "mcrdma"

// A rival is an MPI implementation with one of its algorithms.
type rival struct {
	*mpi.Implementation
	operation, algorithm string
}

func (r *rival) name() string { return r.Name + " " + r.algorithm }

// findMPI finds the requested implementations, and reports those that are skipped.
func (b *collBench) findMPI(ctx context.Context, stderr io.Writer) (remove func(), err error) {
	if len(b.mpi) == 0 {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "mcbench-")
	if err != nil {
		return nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	for _, name := range b.mpi {
		i, err := mpi.Find(ctx, name, dir)
		if err != nil {
			fmt.Fprintf(stderr, "left out: %v\n", err)
			continue
		}
		for _, op := range b.operations {
			for _, algorithm := range i.Algorithms(op.name) {
				b.rivals = append(b.rivals, rival{i, op.name, algorithm})
			}
		}
	}
	b.stderr = stderr
	return remove, nil
}

// contest lets each rival do an operation, and returns the rivals that succeed.
func (b *collBench) contest(ctx context.Context, rivals []rival, op *collOperation, size int, took map[string][]float64) (left []rival) {
	for _, r := range rivals {
		if r.operation != op.name {
			continue
		}
		job := mpi.Job{Operation: op.name, Algorithm: r.algorithm, Bytes: size, Count: b.f.count, WarmUp: b.f.warmUp, Repeat: 1, Ranks: len(b.Hosts), Interface: b.f.nic, Agent: b.f.agent}
		if !b.f.lab {
			job.Hosts = b.Hosts
		}
		limited, cancel := context.WithTimeoutCause(ctx, b.f.Wait, fmt.Errorf("not within %v", b.f.Wait))
		got, err := r.Run(limited, job)
		cancel()
		if err == nil && got.Wrong > 0 {
			err = fmt.Errorf("%d elements are wrong", got.Wrong)
		}
		if ctx.Err() != nil {
			return left // an interrupt is not its failure
		}
		if err != nil {
			fmt.Fprintf(b.stderr, "left out: %s: %v\n", r.name(), err)
			continue
		}
		left = append(left, r)
		took[r.name()] = append(took[r.name()], float64(got.Took[0])/float64(time.Microsecond))
	}
	return left
}

// add adds the results of rivals after the last result of this library.
func (b *collBench) add(op *collOperation, rivals []rival, took map[string][]float64) {
	own := &b.results[len(b.results)-1]
	var list []collResult
	for _, r := range rivals {
		x := op.result(len(b.Hosts), own.Size, median(took[r.name()]))
		x.By = r.name()
		list = append(list, x)
		if own.ByMPI == 0 || x.Time/own.Time < own.ByMPI {
			own.ByMPI = x.Time / own.Time
		}
	}
	b.results = append(b.results, list...)
}

// fastest returns the shortest time of an implementation, or of its own choice, for an operation of
// one size; 0: not measured.
func (b *collBench) fastest(operation string, size int, of func(by string) bool) (us float64) {
	for _, r := range b.results {
		if r.Operation == operation && r.Size == size && of(r.By) && (us == 0 || r.Time < us) {
			us = r.Time
		}
	}
	return us
}

// curves returns the curves of each implementation: its own choice, and its fastest algorithm.
func (b *collBench) curves() (names []string, of []func(by string) bool) {
	names, of = []string{ours}, []func(string) bool{func(by string) bool { return by == ours }}
	for _, name := range b.mpi {
		names = append(names, name+", its choice", name+", its fastest algorithm")
		of = append(of, func(by string) bool { return by == name+" "+mpi.Default }, func(by string) bool { return strings.HasPrefix(by, name+" ") })
	}
	return names, of
}
