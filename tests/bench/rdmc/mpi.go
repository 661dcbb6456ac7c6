package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed mpi/bcast.c
var bcastSource []byte

// buildMPI compiles the program that measures MPI_Bcast.
func buildMPI(ctx context.Context) (run func(context.Context, *path, int, int, int) ([]time.Duration, error), remove func(), err error) {
	for _, tool := range []string{"mpicc", "mpirun"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, nil, fmt.Errorf("%w; on Debian, install openmpi-bin and libopenmpi-dev", err)
		}
	}
	dir, err := os.MkdirTemp("", "rdmc-bench-")
	if err != nil {
		return nil, nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	source, program := filepath.Join(dir, "bcast.c"), filepath.Join(dir, "bcast")
	if err := os.WriteFile(source, bcastSource, 0o644); err != nil {
		remove()
		return nil, nil, err
	}
	if out, err := exec.CommandContext(ctx, "mpicc", "-O2", "-o", program, source).CombinedOutput(); err != nil {
		remove()
		return nil, nil, fmt.Errorf("mpicc: %w: %s", err, out)
	}
	return func(ctx context.Context, p *path, hosts, size, times int) ([]time.Duration, error) {
		return bcast(ctx, p, program, hosts, size, times)
	}, remove, nil
}

// bcast runs MPI_Bcast with TCP as the only way between processes.
func bcast(ctx context.Context, p *path, program string, hosts, size, times int) ([]time.Duration, error) {
	args := []string{"--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "-n", strconv.Itoa(hosts)}
	if p.hosts == nil {
		args = append(args, "--oversubscribe", "--mca", "btl_tcp_if_include", "lo")
	} else {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		var addrs []string
		for _, h := range p.hosts[:hosts] {
			addrs = append(addrs, h.addr)
		}
		// Its daemons are started on the other hosts by this program as the agent.
		args = append(args, "--mca", "plm_rsh_agent", exe+" agent "+p.prefix, "-H", strings.Join(addrs, ","),
			"--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mpirun", append(args, program, strconv.Itoa(size), strconv.Itoa(times))...)
	cmd.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its processes
	cmd.WaitDelay = 5 * time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := inNamespace(p.namespace(0), cmd.Start); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, errors.Join(err, errors.New(problems.String()))
	}
	var ds []time.Duration
	for f := range strings.FieldsSeq(out.String()) {
		ns, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mpirun printed %q", out.String())
		}
		ds = append(ds, time.Duration(ns))
	}
	if len(ds) != times {
		return nil, fmt.Errorf("mpirun printed %d times, not %d", len(ds), times)
	}
	return ds, nil
}
