package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/tests/chaos/volume"
)

// measureVolumes measures how long a client that writes 4 KiB at a time waits at most when hosts of
// its volume fail.
func measureVolumes(ctx context.Context, programs volumePrograms, base string, times int) error {
	for _, fast := range []bool{false, true} {
		for _, own := range []bool{false, true} {
			dir, err := os.MkdirTemp(base, "measure-")
			if err != nil {
				return err
			}
			r, err := newRack(ctx, programs, dir, &volume.Plan{Blocks: 64, MinSize: 2, Fast: fast, OwnEtcd: own}, manner{})
			if err != nil {
				return err
			}
			err = r.measure(ctx, times)
			if keepAll {
				_ = os.WriteFile(fmt.Sprintf("out/measure-%v-%v.log", fast, own), []byte(r.logs()), 0o600)
			}
			if err = errors.Join(err, r.close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// roles returns the current hosts by role: the client is at a host that is not the victim, and, if
// possible, not the primary.
func (r *rack) roles() (primary string, replicas []string) {
	m, _ := r.latest()
	for _, h := range r.lab.Hosts {
		switch {
		case hostID(h.Name) == m.Primary.ID:
			primary = h.Name
		case slices.ContainsFunc(m.Acting, func(x core.Member) bool { return x.ID == hostID(h.Name) }):
			replicas = append(replicas, h.Name)
		}
	}
	return primary, replicas
}

func (r *rack) measure(ctx context.Context, times int) error {
	for _, what := range []struct {
		name            string
		primary, leader bool // the victim: the primary, or a replica that leads etcd
		do              func(victim string)
		undo            func(victim string) error
	}{
		{"a replica is killed", false, false, r.killBlock, func(v string) error { return r.startBlock(ctx, v) }},
		{"a replica that leads etcd is killed", false, true, r.killBlock, func(v string) error { return r.startBlock(ctx, v) }},
		{"the primary is killed", true, false, r.killBlock, func(v string) error { return r.startBlock(ctx, v) }},
		{"a replica is frozen", false, false, func(v string) { r.blocks[v].Signal(unix.SIGSTOP) }, func(v string) error {
			r.blocks[v].Signal(unix.SIGCONT)
			return nil
		}},
	} {
		if what.leader && r.plan.OwnEtcd {
			continue
		}
		var waits []time.Duration
		for range times {
			if err := r.all(ctx); err != nil {
				return err
			}
			primary, replicas := r.roles()
			victim, at := replicas[0], replicas[1]
			switch {
			case what.primary:
				victim, at = primary, replicas[0]
			case what.leader:
				var err error
				if victim, err = r.leader(ctx); err != nil {
					return err
				}
				_, replicas = r.roles()
				at = replicas[1-slices.Index(replicas, victim)]
			}
			h := &volume.History{}
			c := &volume.Client{Export: export, Hosts: []string{at}, Blocks: r.plan.Blocks, Dial: r.dial, History: h, Rand: rand.New(rand.NewPCG(1, 1))}
			working, cancel := context.WithCancel(ctx)
			ended := make(chan struct{})
			go func() {
				c.Write(working)
				close(ended)
			}()
			sleep(ctx, 2*time.Second)
			died := time.Now()
			what.do(victim)
			sleep(ctx, 4*time.Second)
			cancel()
			<-ended
			longest := time.Duration(0)
			ops, _ := h.Ops()
			for _, op := range ops {
				if op.Return > died.UnixNano() && op.Return != volume.Never {
					longest = max(longest, time.Duration(op.Return-op.Call))
				}
			}
			fmt.Printf("  %s (%s, client at %s) at %s: %v\n", what.name, victim, at, died.Format("15:04:05.000"), longest.Round(time.Millisecond))
			waits = append(waits, longest)
			if err := what.undo(victim); err != nil {
				return err
			}
			sleep(ctx, time.Second)
		}
		slices.Sort(waits)
		fmt.Printf("fast %v, etcd of its own %v: %s: p50 %v, longest %v of %d\n", r.plan.Fast, r.plan.OwnEtcd, what.name,
			waits[len(waits)/2].Round(time.Millisecond), waits[len(waits)-1].Round(time.Millisecond), len(waits))
	}
	return nil
}

// leader returns a replica that leads etcd; that may take the kill of a primary that leads.
func (r *rack) leader(ctx context.Context) (string, error) {
	for {
		out, err := r.mcblock("h1", "status", "-o", "json")
		var status struct {
			Etcd []struct {
				Name   string `json:"name"`
				Leader bool   `json:"leader"`
			} `json:"etcd"`
		}
		if err != nil || json.Unmarshal([]byte(out), &status) != nil {
			return "", fmt.Errorf("status: %w: %s", err, out)
		}
		primary, replicas := r.roles()
		for _, m := range status.Etcd {
			switch {
			case m.Leader && slices.Contains(replicas, m.Name):
				return m.Name, nil
			case m.Leader && m.Name == primary:
				r.killBlock(primary)
				sleep(ctx, 3*time.Second)
				if err := r.startBlock(ctx, primary); err != nil {
					return "", err
				}
				if err := r.all(ctx); err != nil {
					return "", err
				}
			}
		}
	}
}
