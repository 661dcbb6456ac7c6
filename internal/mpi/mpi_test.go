package mpi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// programs puts shell scripts in place of all programs.
func programs(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil { //nolint:gosec // they are programs
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

const enumerators = `mca:coll:tuned:param:coll_tuned_bcast_algorithm:enumerator:value:0:ignore
mca:coll:tuned:param:coll_tuned_bcast_algorithm:enumerator:value:6:binomial
mca:coll:tuned:param:coll_tuned_barrier_algorithm:enumerator:value:5:two_proc
mca:coll:tuned:param:coll_tuned_barrier_algorithm:enumerator:value:6:tree
mca:coll:tuned:param:coll_tuned_bcast_algorithm:help:Which`

// TestRun: an implementation is called as it has to be, and what it prints is read.
func TestRun(t *testing.T) {
	programs(t, map[string]string{"mpicc.openmpi": "exit 0", "ompi_info": "echo '" + enumerators + "'",
		"mpirun.openmpi": `PATH=/bin:/usr/bin; case "$*" in *slow*) while :; do :; done;; *wrong*) echo 3; echo 5;; *ends*) echo 0; echo 7; exec sleep 100;; *bad*) echo no;; *fails*) echo why >&2; exit 3;; *) echo 0; echo 2000; echo 1000;; esac`})
	i, err := Find(t.Context(), "openmpi", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got := i.Algorithms("broadcast"); !slices.Equal(got, []string{Default, "binomial"}) {
		t.Error(got)
	}
	if got := i.Algorithms("barrier"); !slices.Equal(got, []string{Default, "tree"}) {
		t.Error("of two processes only: ", got)
	}
	job := Job{Operation: "broadcast", Algorithm: "binomial", Bytes: 8, Count: 1, Repeat: 2, Ranks: 2}
	r, err := i.Run(t.Context(), job)
	if err != nil || r.Wrong != 0 || !slices.Equal(r.Took, []time.Duration{2000, 1000}) {
		t.Error(r, err)
	}
	for algorithm, want := range map[string]string{"wrong": "", "bad": "printed", "fails": "why"} {
		job.Algorithm, job.Repeat = algorithm, 1
		r, err := i.Run(t.Context(), job)
		if want == "" && (err != nil || r.Wrong != 3) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v, %v", algorithm, r, err)
		}
	}
	job.Algorithm = "ends not"
	if r, err := i.Run(t.Context(), job); err != nil || len(r.Took) != 1 || r.Took[0] != 7 {
		t.Error(r, err)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("it is enough")
	cancel(cause)
	job.Algorithm = "slow"
	if _, err := i.Run(ended, job); !errors.Is(err, cause) {
		t.Error(err)
	}
}

// TestFind: what is missing is said.
func TestFind(t *testing.T) {
	programs(t, map[string]string{"mpicc": "exit 1", "mpirun": "echo HYDRA build details"})
	if _, err := Find(t.Context(), "openmpi", t.TempDir()); err == nil || !strings.Contains(err.Error(), "not installed") || !strings.Contains(err.Error(), "libopenmpi-dev") {
		t.Error("mpirun is MPICH's: ", err)
	}
	if _, err := Find(t.Context(), "mpich", t.TempDir()); err == nil || strings.Contains(err.Error(), "not installed") {
		t.Error("the compiler fails: ", err)
	}
	programs(t, nil)
	for _, name := range Names() {
		if _, err := Find(t.Context(), name, t.TempDir()); err == nil || !strings.Contains(err.Error(), "not installed") {
			t.Error(name, err)
		}
	}
}

// TestCommands: TCP is the only way, on the hosts and the interface that are named.
func TestCommands(t *testing.T) {
	i := &Implementation{program: "/x/coll"}
	job := &Job{Operation: "reducescatter", Algorithm: "ring", Ranks: 2}
	has := func(list []string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !slices.Contains(list, w) {
				t.Errorf("%q lacks %q", list, w)
			}
		}
	}
	for _, hosts := range [][]string{nil, {"10.0.0.1", "10.0.0.2"}} {
		job.Hosts = hosts
		device := loopback
		if hosts != nil {
			job.Interface, job.Agent, device = "eth0", "/x/agent", "eth0"
		}
		args, _ := openCommand(i, job)
		has(args, "tcp,self", "coll_tuned_reduce_scatter_block_algorithm", "ring", "btl_tcp_if_include", device, "/x/coll")
		more, env := mpichCommand(i, job)
		has(env, "UCX_TLS=tcp,self", "UCX_NET_DEVICES="+device, "MPIR_CVAR_NOLOCAL=1", "MPIR_CVAR_REDUCE_SCATTER_BLOCK_INTRA_ALGORITHM=ring")
		if hosts != nil {
			has(args, "10.0.0.1,10.0.0.2", "/x/agent")
			has(more, "10.0.0.1,10.0.0.2", "/x/agent")
		}
	}
	for name := range openParameters {
		if mpichVariables[name] == "" {
			t.Errorf("%s has no name", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0\n12\n", 1)
	f.Add(enumerators, 0)
	f.Fuzz(func(t *testing.T, out string, repeat int) {
		r, err := parse(out, repeat)
		if err == nil && len(r.Took) != repeat {
			t.Error(r)
		}
		for operation, list := range openEnumerators(out) {
			if openParameters[operation] == "" || len(list) == 0 {
				t.Error(operation, list)
			}
		}
	})
}
