package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/mcrdma/mcrdma/internal/mpi"
	"github.com/mcrdma/mcrdma/tests/bench/child"
)

// buildMPI compiles the program that measures MPI_Bcast.
func buildMPI(ctx context.Context) (run contest, remove func(), err error) {
	dir, err := os.MkdirTemp("", "rdmc-bench-")
	if err != nil {
		return nil, nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	i, err := mpi.Find(ctx, openMPI, dir)
	if err != nil {
		remove()
		return nil, nil, err
	}
	return func(ctx context.Context, p *path, hosts, size, times int) ([]time.Duration, error) {
		return bcast(ctx, p, i, hosts, size, times)
	}, remove, nil
}

// bcast runs MPI_Bcast with TCP as the only transport.
func bcast(ctx context.Context, p *path, i *mpi.Implementation, hosts, size, times int) ([]time.Duration, error) {
	job := mpi.Job{Operation: "broadcast", Algorithm: mpi.Default, Bytes: size, Count: 1, Repeat: times, Ranks: hosts}
	if p.hosts != nil {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		for _, h := range p.hosts[:hosts] {
			job.Hosts = append(job.Hosts, h.addr)
		}
		job.Interface, job.Agent = network, exe+" agent "+p.prefix // this program starts MPI's daemons on the other hosts
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var r mpi.Result
	err := child.InNamespace(p.namespace(0), func() (err error) {
		r, err = i.Run(ctx, job)
		return err
	})
	if err == nil && r.Wrong > 0 {
		err = fmt.Errorf("%d elements are wrong", r.Wrong)
	}
	return r.Took, err
}
