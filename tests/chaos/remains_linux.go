package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/store"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// belongings are the network namespaces of a lab's processes.
func belongings(l *lab.Lab) map[string]bool {
	out := map[string]bool{}
	for _, pid := range l.PIDs() {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil {
			out[ns] = true
		}
	}
	return out
}

// remains looks, when the lab is closed, for processes in its namespaces.
func (r *run) remains(spaces map[string]bool) (bad []string) {
	for _, pid := range r.lab.PIDs() {
		bad = append(bad, fmt.Sprintf("left: process %d runs", pid))
	}
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text := inhabited(spaces)
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

// states looks into the daemons' states, which takes their end, one after the other.
// What a daemon still owes others then, it has to pay when it is back.
func (r *run) states(ctx context.Context) error {
	for _, h := range r.lab.Hosts {
		for deadline := time.Now().Add(settling); ; sleep(ctx, settling/5) {
			if err := h.Daemon.Stop(); err != nil {
				return err
			}
			state := stateOf(ctx, filepath.Join(r.dir, h.Name+".db"))
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

func inhabited(spaces map[string]bool) string {
	dirs, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return err.Error()
	}
	for _, d := range dirs {
		if ns, err := os.Readlink(d); err == nil && spaces[ns] {
			if pid := 0; func() bool { _, err := fmt.Sscanf(d, "/proc/%d", &pid); return err == nil }() && unix.Kill(pid, 0) == nil {
				return fmt.Sprintf("process %d is in a namespace of the lab, %s", pid, ns)
			}
		}
	}
	return ""
}

// stateOf says what a daemon's state still holds.
func stateOf(ctx context.Context, file string) error {
	s, err := store.Open(ctx, file, store.Options{NoSync: true})
	if err != nil {
		return err
	}
	for _, bucket := range []string{"groups", "members"} {
		for key := range s.Load(bucket) {
			err = errors.Join(err, fmt.Errorf("%s has an entry %x of %s", filepath.Base(file), key, bucket))
		}
	}
	return errors.Join(err, s.Close())
}
