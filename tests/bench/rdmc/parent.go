package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/tests/bench/child"
)

// A process is a child as its parent sees it.
type process struct {
	*child.Process
	out *json.Decoder
}

// start starts a child on a host of the path.
func start(ctx context.Context, p *path, host int, j job) (*process, error) {
	c, err := child.Start(ctx, p.namespace(host), "child")
	if err != nil {
		return nil, err
	}
	return &process{c, json.NewDecoder(c.Out)}, json.NewEncoder(c.In).Encode(j)
}

// A crew is the processes of one run, the root first.
type crew []*process

// muster starts children with the same job, except for their numbers.
func muster(ctx context.Context, p *path, hosts int, j job) (crew, error) {
	var c crew
	for i := range hosts {
		j.Self = i
		one, err := start(ctx, p, i, j)
		if err != nil {
			c.dismiss()
			return nil, fmt.Errorf("process %d: %w", i, err)
		}
		c = append(c, one)
	}
	for i := range c {
		if _, err := c.report(i); err != nil { // ready
			c.dismiss()
			return nil, err
		}
	}
	return c, nil
}

func (c crew) report(i int) (r said, err error) {
	if err = c[i].out.Decode(&r); errors.Is(err, io.EOF) {
		err = fmt.Errorf("process %d ended early", i)
	}
	return r, err
}

// spread makes the root send, and returns the time until all have reported completion. The first
// message warms up the connections, and is checked.
func (c crew) spread(times int) (ds []time.Duration, err error) {
	for round := range times + 1 {
		if err := json.NewEncoder(c[0].In).Encode(round); err != nil {
			return nil, err
		}
		var begin, end int64
		var sum string
		for i := range c {
			r, err := c.report(i)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				begin, sum = r.Begin, r.Sum
			} else if round == 0 && r.Sum != sum {
				return nil, fmt.Errorf("process %d has other bytes than were sent", i)
			}
			end = max(end, r.End)
		}
		if round > 0 {
			ds = append(ds, time.Duration(end-begin))
		}
	}
	return ds, nil
}

// dismiss ends the processes.
func (c crew) dismiss() {
	for _, p := range c {
		_ = p.In.Close()
	}
	for _, p := range c {
		p.End()
	}
}

func perform(ctx context.Context, p *path, hosts, times int, j job) ([]time.Duration, error) {
	var err error
	if j.Members, err = p.addresses(hosts); err != nil {
		return nil, err
	}
	if j.Devices != nil {
		for i := range hosts {
			j.Devices = append(j.Devices, p.device(i))
		}
	}
	c, err := muster(ctx, p, hosts, j)
	if err != nil {
		return nil, err
	}
	defer c.dismiss()
	return c.spread(times)
}

// group returns a contestant's run: a group with an algorithm, over TCP or devices. With blocks of
// 0 bytes and the first algorithm, the Config names only the members.
func group(devices []string, a schedule.Algorithm, blockSize int) contest {
	return func(ctx context.Context, p *path, hosts, size, times int) ([]time.Duration, error) {
		return perform(ctx, p, hosts, times, job{Role: "group", Devices: devices, Size: size, Algorithm: a, BlockSize: blockSize})
	}
}

func plain(ctx context.Context, p *path, _, size, times int) ([]time.Duration, error) {
	return perform(ctx, p, 2, times, job{Role: "plain", Size: size})
}

func write(ctx context.Context, p *path, _, size, times int) ([]time.Duration, error) {
	return perform(ctx, p, 2, times, job{Role: "write", Devices: softroce, Size: size})
}

// addresses returns addresses for members on the first hosts. On loopback, their ports were free
// just before.
func (p *path) addresses(hosts int) (a []string, err error) {
	for i := range hosts {
		if p.hosts != nil {
			a = append(a, net.JoinHostPort(p.hosts[i].addr, "4000"))
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		a = append(a, l.Addr().String())
	}
	return a, nil
}
