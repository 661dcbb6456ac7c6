package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// spaces are network namespaces by name, "net:[inode]". Each is kept open, because the kernel
// reuses the inode of one that has ended for another namespace.
type spaces map[string]*os.File

// belongings are the network namespaces of a lab's processes.
func belongings(l *lab.Lab) spaces {
	out := spaces{}
	for _, pid := range l.PIDs() {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			continue
		}
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		if err != nil || out[name] != nil {
			_ = f.Close()
			continue
		}
		out[name] = f
	}
	return out
}

func (s spaces) close() {
	for _, f := range s {
		_ = f.Close()
	}
}

// remains finds processes in the lab's namespaces when the lab is closed.
func (r *run) remains(mine spaces) (bad []string) {
	for _, pid := range r.lab.PIDs() {
		bad = append(bad, fmt.Sprintf("left: process %d runs", pid))
	}
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text := mine.inhabited()
		if text == "" {
			break
		}
		if time.Now().After(deadline) {
			bad = append(bad, "left: "+text)
			break
		}
	}
	return bad
}

// states reads the daemons' states, which ends the daemons, one after another. Cleanup that a
// daemon has not done by then, it has to do after a restart.
func (r *run) states(ctx context.Context) error {
	for _, h := range r.lab.Hosts {
		for deadline := time.Now().Add(settling); ; sleep(ctx, settling/3) { // longer than the grace, in which groups wait for applications
			if err := h.Daemon.Stop(); err != nil {
				return err
			}
			state := stateOf(ctx, r.lab.StateFile(h.Name))
			if err := h.Daemon.Start(ctx); err != nil {
				return err
			}
			if state == nil {
				break
			}
			if time.Now().After(deadline) {
				return state
			}
		}
	}
	return nil
}

// inhabited returns a process in one of the namespaces; "": none.
func (s spaces) inhabited() string {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err.Error()
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		if name, err := os.Readlink(d + "/ns/net"); err == nil && s[name] != nil && unix.Kill(pid, 0) == nil {
			words, _ := os.ReadFile(d + "/cmdline")
			return fmt.Sprintf("process %d is in a namespace of the lab, %s: %s", pid, name, strings.ReplaceAll(string(words), "\x00", " "))
		}
	}
	return ""
}

// stateOf returns what remains in a daemon's state.
func stateOf(ctx context.Context, file string) error {
	s, err := store.Open(ctx, file, store.Options{NoSync: true})
	if err != nil {
		return err
	}
	for _, bucket := range []string{"groups", "members"} {
		for key := range s.Load(bucket) {
			err = errors.Join(err, fmt.Errorf("%s has an entry %x of %s", filepath.Base(filepath.Dir(file)), key, bucket))
		}
	}
	return errors.Join(err, s.Close())
}
