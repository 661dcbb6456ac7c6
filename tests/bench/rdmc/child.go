package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime/pprof"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

const patience = 30 * time.Second

// serve does the job from standard input. At the root, each further line starts a message; the end
// of standard input ends the process.
func serve() error {
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	var j job
	if err := in.Decode(&j); err != nil {
		return err
	}
	if prefix := os.Getenv("RDMC_CPUPROFILE"); prefix != "" {
		f, err := os.Create(fmt.Sprintf("%s-%s-%v-%d.pprof", prefix, j.Role, j.Algorithm, j.Self))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	c := &member{job: j, in: in, out: json.NewEncoder(os.Stdout), msg: make([]byte, j.Size)}
	if j.Self == 0 {
		_, _ = rand.NewChaCha8([32]byte{}).Read(c.msg)
	} else {
		for i := range c.msg { // in memory, not only promised by the kernel
			c.msg[i] = 1
		}
	}
	switch j.Role {
	case "group":
		return c.group()
	case "write":
		return c.write()
	}
	return c.plain()
}

// group is the member of a group.
func (m *member) group() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t, done, err := m.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	complete := make(chan int64, 1)
	g, err := rdmcfallback.Join(ctx, rdmcfallback.Config{
		Members: m.Members, Self: m.Self, Algorithm: m.Algorithm, BlockSize: m.BlockSize,
		Incoming: func(int64) ([]byte, error) { return m.msg, nil },
		Complete: func([]byte) { complete <- now() },
	}, t)
	if err != nil {
		return err
	}
	if err := m.out.Encode(said{}); err != nil {
		return err
	}
	if m.Self == 0 {
		err = m.each(func() error {
			begin := now()
			if err := g.Send(ctx, m.msg); err != nil {
				return err
			}
			select {
			case end := <-complete:
				return m.report(begin, end)
			case <-g.Done():
				return g.Err()
			}
		})
		return errors.Join(err, g.Close(ctx))
	}
	closed := make(chan error, 1)
	go func() { closed <- g.Close(ctx) }()
	for {
		select {
		case end := <-complete:
			if err := m.report(0, end); err != nil {
				return err
			}
		case err := <-closed:
			return err
		}
	}
}

// plain sends messages over one connection in the simplest way. The receiver returns a byte for
// each, so that the time includes the receiver.
func (m *member) plain() error {
	if m.Self == 0 {
		l, err := net.Listen("tcp", m.Members[0])
		if err != nil {
			return err
		}
		defer l.Close()
		if err := m.out.Encode(said{}); err != nil {
			return err
		}
		c, err := l.Accept()
		if err != nil {
			return err
		}
		defer c.Close()
		return m.each(func() error {
			begin := now()
			if _, err := c.Write(m.msg); err != nil {
				return err
			}
			return m.report(begin, now())
		})
	}
	c, err := dial(m.Members[0])
	if err != nil {
		return err
	}
	defer c.Close()
	if err := m.out.Encode(said{}); err != nil {
		return err
	}
	for {
		if _, err := io.ReadFull(c, m.msg); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := m.report(0, now()); err != nil {
			return err
		}
	}
}
