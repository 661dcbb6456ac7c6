// Package mpi measures collective operations of the installed MPI implementations, with TCP as the
// only transport, for comparisons. It compiles coll.c with their compilers, and runs it by their
// launchers.
package mpi

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed coll/coll.c
var source []byte

const loopback = "lo"

// Default is the algorithm that an implementation chooses itself.
const Default = "default"

// An Implementation is one that is installed.
type Implementation struct {
	Name       string
	launcher   string
	program    string // coll.c
	algorithms map[string][]string
	command    func(i *Implementation, j *Job) (args, env []string)
}

// Names are the implementations that there may be.
func Names() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// A kind is how an implementation is found and called.
type kind struct {
	name, compiler, launcher, packages string
	version                            string // is in what "launcher --version" says
	find                               func(ctx context.Context) (map[string][]string, error)
	command                            func(i *Implementation, j *Job) (args, env []string)
}

var kinds = []kind{
	{"openmpi", "mpicc.openmpi", "mpirun.openmpi", "openmpi-bin and libopenmpi-dev", "Open MPI", openAlgorithms, openCommand},
	{"mpich", "mpicc.mpich", "mpirun.mpich", "mpich and libmpich-dev", "HYDRA", mpichAlgorithms, mpichCommand},
}

// Find compiles what measures an implementation into a directory. The error says what is not installed.
func Find(ctx context.Context, name, dir string) (*Implementation, error) {
	k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
	compiler, launcher, err := k.tools(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s is not installed: %w (Debian: %s)", name, err, k.packages)
	}
	i := &Implementation{Name: name, launcher: launcher, program: filepath.Join(dir, "coll-"+name), command: k.command}
	if i.algorithms, err = k.find(ctx); err != nil {
		return nil, fmt.Errorf("algorithms of %s: %w", name, err)
	}
	file := i.program + ".c"
	if err := os.WriteFile(file, source, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, compiler, "-O2", "-o", i.program, file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", compiler, err, out)
	}
	return i, nil
}

// tools finds the compiler and the launcher: by the names that they have where several implementations are installed, or by
// those that all have.
func (k *kind) tools(ctx context.Context) (compiler, launcher string, err error) {
	if compiler, err = exec.LookPath(k.compiler); err == nil {
		if launcher, err = exec.LookPath(k.launcher); err == nil {
			return compiler, launcher, nil
		}
	}
	if compiler, err = exec.LookPath("mpicc"); err != nil {
		return "", "", err
	}
	if launcher, err = exec.LookPath("mpirun"); err != nil {
		return "", "", err
	}
	out, err := exec.CommandContext(ctx, launcher, "--version").Output()
	if err == nil && !bytes.Contains(out, []byte(k.version)) {
		err = fmt.Errorf("%s is another one's", launcher)
	}
	return compiler, launcher, err
}

// Algorithms are those of an operation, Default first.
func (i *Implementation) Algorithms(operation string) []string {
	return append([]string{Default}, i.algorithms[operation]...)
}

// A Job is what is measured.
type Job struct {
	Operation     string // allreduce, broadcast, reduce, allgather, reducescatter or barrier
	Algorithm     string // of Algorithms
	Bytes         int    // of the larger buffer
	Count, WarmUp int    // operations, and operations before
	Repeat        int    // how often Count operations are measured
	Ranks         int
	Hosts         []string // of the ranks, the first of which is this one; nil: all are on loopback
	Interface     string   // by which hosts reach each other; "": the implementation's choice
	Agent         string   // a program that is called as ssh is, to run a command on a host; "": ssh
}

// A Result is what was measured.
type Result struct {
	Wrong int             // elements that were not what they have to be
	Took  []time.Duration // one operation, at the slowest rank
}

// endTime is how long processes have to end when they have printed all: MPICH 4.0 over UCX may wait in MPI_Finalize without end.
const endTime = time.Second

// lines are what is printed. When they are as many as are wanted, complete is called.
type lines struct {
	printed  strings.Builder
	wanted   int
	complete func()
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	before := l.wanted
	if l.wanted -= bytes.Count(b, []byte("\n")); before > 0 && l.wanted <= 0 {
		l.complete()
	}
	return l.printed.Write(b)
}

// Run measures, in fresh processes.
func (i *Implementation) Run(ctx context.Context, j Job) (r Result, err error) {
	running, end := context.WithCancel(ctx)
	defer end()
	args, env := i.command(i, &j)
	for _, n := range []int{j.Bytes, j.Count, j.WarmUp, j.Repeat} {
		args = append(args, strconv.Itoa(n))
	}
	cmd := exec.CommandContext(running, i.launcher, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its processes
	cmd.WaitDelay = 5 * time.Second
	var problems bytes.Buffer
	out := &lines{wanted: 1 + j.Repeat, complete: func() { time.AfterFunc(endTime, end) }}
	cmd.Stdout, cmd.Stderr = out, &problems
	if err := cmd.Run(); err != nil && (running.Err() == nil || ctx.Err() != nil) {
		return r, fmt.Errorf("%s: %s of %d bytes, %s: %w: %s", i.Name, j.Operation, j.Bytes, j.Algorithm, errors.Join(context.Cause(ctx), err), strings.TrimSpace(problems.String()))
	}
	return parse(out.printed.String(), j.Repeat)
}

// parse reads what coll.c prints.
func parse(out string, repeat int) (r Result, err error) {
	var numbers []int
	for f := range strings.FieldsSeq(out) {
		n, err := strconv.Atoi(f)
		if err != nil || n < 0 {
			return r, fmt.Errorf("it has printed %.200q", out)
		}
		numbers = append(numbers, n)
	}
	if len(numbers) != 1+repeat {
		return r, fmt.Errorf("it has printed %d numbers, and not %d", len(numbers), 1+repeat)
	}
	r.Wrong = numbers[0]
	for _, ns := range numbers[1:] {
		r.Took = append(r.Took, time.Duration(ns))
	}
	return r, nil
}

// openParameters are the names that OpenMPI's coll_tuned has for operations.
var openParameters = map[string]string{"allreduce": "allreduce", "broadcast": "bcast", "reduce": "reduce", "allgather": "allgather",
	"reducescatter": "reduce_scatter_block", "barrier": "barrier"}

// openAlgorithms asks OpenMPI.
func openAlgorithms(ctx context.Context) (map[string][]string, error) {
	out, err := exec.CommandContext(ctx, "ompi_info", "--param", "coll", "tuned", "--level", "9", "--parsable").Output()
	if err != nil {
		return nil, err
	}
	return openEnumerators(string(out)), nil
}

// openEnumerators are lines such as mca:coll:tuned:param:coll_tuned_bcast_algorithm:enumerator:value:6:binomial.
func openEnumerators(out string) map[string][]string {
	all := map[string][]string{}
	for operation, name := range openParameters {
		for line := range strings.Lines(out) {
			value, ok := strings.CutPrefix(strings.TrimSpace(line), "mca:coll:tuned:param:coll_tuned_"+name+"_algorithm:enumerator:value:")
			if _, algorithm, _ := strings.Cut(value, ":"); ok && algorithm != "ignore" && !strings.HasPrefix(algorithm, "two_proc") {
				all[operation] = append(all[operation], algorithm)
			}
		}
	}
	return all
}

func openCommand(i *Implementation, j *Job) (args, env []string) {
	args = []string{"--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none", "-n", strconv.Itoa(j.Ranks)}
	if j.Algorithm != Default {
		args = append(args, "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_"+openParameters[j.Operation]+"_algorithm", j.Algorithm)
	}
	device := j.Interface
	if j.Hosts == nil {
		device = loopback
		args = append(args, "--oversubscribe")
	} else {
		args = append(args, "-H", strings.Join(j.Hosts, ","))
	}
	if device != "" {
		args = append(args, "--mca", "btl_tcp_if_include", device, "--mca", "oob_tcp_if_include", device)
	}
	if j.Agent != "" {
		args = append(args, "--mca", "plm_rsh_agent", j.Agent)
	}
	return append(args, i.program, j.Operation), []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
}

// mpichAlgorithms are those of MPICH 4 that any communicator and any operation can have. It has no command that lists them.
func mpichAlgorithms(context.Context) (map[string][]string, error) {
	return map[string][]string{
		"allreduce":     {"recursive_doubling", "reduce_scatter_allgather"},
		"broadcast":     {"binomial", "scatter_recursive_doubling_allgather", "scatter_ring_allgather"},
		"reduce":        {"binomial", "reduce_scatter_gather"},
		"allgather":     {"brucks", "recursive_doubling", "ring"},
		"reducescatter": {"recursive_halving", "recursive_doubling", "pairwise"},
		"barrier":       {"dissemination"},
	}, nil
}

var mpichVariables = map[string]string{"allreduce": "ALLREDUCE", "broadcast": "BCAST", "reduce": "REDUCE", "allgather": "ALLGATHER",
	"reducescatter": "REDUCE_SCATTER_BLOCK", "barrier": "BARRIER"}

func mpichCommand(i *Implementation, j *Job) (args, env []string) {
	device := j.Interface
	args = []string{"-n", strconv.Itoa(j.Ranks)}
	if j.Hosts == nil {
		device = loopback
	} else {
		args = append(args, "-hosts", strings.Join(j.Hosts, ","), "-localhost", j.Hosts[0])
	}
	if j.Agent != "" {
		args = append(args, "-launcher", "rsh", "-launcher-exec", j.Agent)
	}
	// Every process is taken for a host of its own, and all that there is between them is TCP, whatever MPICH was built with.
	env = []string{"MPIR_CVAR_NOLOCAL=1", "FI_PROVIDER=tcp;ofi_rxm", "UCX_TLS=tcp,self"}
	if device != "" {
		args = append(args, "-iface", device)
		env = append(env, "FI_TCP_IFACE="+device, "UCX_NET_DEVICES="+device)
	}
	if j.Algorithm != Default {
		env = append(env, "MPIR_CVAR_"+mpichVariables[j.Operation]+"_INTRA_ALGORITHM="+j.Algorithm, "MPIR_CVAR_"+mpichVariables[j.Operation]+"_DEVICE_COLLECTIVE=0")
	}
	return append(args, i.program, j.Operation), env
}
