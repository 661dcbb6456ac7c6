package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
)

// roles are the functions of this program's processes.
var roles = map[string]func(context.Context, []string) error{"app": app, "spin": spin}

// spin computes until its parent process has ended.
func spin(context.Context, []string) error {
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	for n := uint64(1); ; n = n*6364136223846793005 + 1442695040888963407 {
		spun.Store(n)
	}
}

var spun atomic.Uint64

// sent is the result of a sender's groups.
type sent struct {
	Bytes, Removed, Failed, Reformed int
	Longest                          time.Duration // of a write
	Groups                           []group
}

// A group is the state of a group at the end.
type group struct {
	ID, Digest string
	Members    []string
}

// app is a host's application: it receives from all others, and sends if it has groups. Its
// arguments are the host, the number of groups, and the time to write.
func app(ctx context.Context, args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	span, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	c, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: os.Getenv(socketEnv), Program: "busy"})
	if err != nil {
		return err
	}
	r := &replicas{c: c, memory: map[string]*mcrdma.Memory{}}
	l, err := c.Listen(ctx, mcrdma.ListenConfig{Service: service, Accept: r.accept})
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := l.Accept(ctx); err != nil {
				return
			}
		}
	}()
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	step := func(say any) error {
		if err := out.Encode(say); err != nil {
			return err
		}
		_, err := in.ReadByte()
		return err
	}
	if err := step("listens"); err != nil {
		return err
	}
	s := &sender{c: c, args: args, streams: make([]*stream, n)}
	if err := s.create(ctx); err != nil {
		return err
	}
	if err := step("has groups"); err != nil {
		return err
	}
	if err := step(s.write(ctx, span)); err != nil {
		return err
	}
	return step(r.digests())
}

// replicas is the content that a receiver has.
type replicas struct {
	c      *mcrdma.Client
	mu     sync.Mutex
	memory map[string]*mcrdma.Memory
}

func (r *replicas) accept(q *mcrdma.Request) (*mcrdma.Grant, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := q.Group.String()
	if r.memory[id] == nil {
		m, err := r.c.Alloc(writeSize)
		if err != nil {
			return nil, err
		}
		r.memory[id] = m
	}
	return &mcrdma.Grant{Regions: []mcrdma.Piece{r.memory[id].All()}}, nil
}

func (r *replicas) digests() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]string{}
	for id, m := range r.memory {
		out[id] = digest(m.Bytes())
	}
	return out
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// A sender has groups.
type sender struct {
	c       *mcrdma.Client
	args    []string
	streams []*stream
}

// A stream is a group with a writer.
type stream struct {
	g       *mcrdma.Group
	memory  *mcrdma.Memory
	bytes   int
	longest time.Duration
	err     error
}

func (s *sender) create(ctx context.Context) error {
	others := slices.DeleteFunc(slices.Clone(hosts), func(h string) bool { return h == s.args[0] })
	var e errgroup.Group
	e.SetLimit(8)
	for i := range s.streams {
		e.Go(func() error {
			m, err := s.c.Alloc(writeSize)
			if err != nil {
				return err
			}
			g, err := s.c.Create(ctx, mcrdma.GroupConfig{Service: service, Receivers: others, Regions: []mcrdma.Region{{Length: writeSize}}, Wait: 10 * time.Second})
			if err != nil {
				return fmt.Errorf("group %d: %w", i, err)
			}
			s.streams[i] = &stream{g: g, memory: m}
			go func() { // otherwise they fill up
				for range g.Events() {
				}
			}()
			return nil
		})
	}
	return e.Wait()
}

// write writes to all groups for a while.
func (s *sender) write(ctx context.Context, span time.Duration) (total sent) {
	end := time.Now().Add(span)
	var all sync.WaitGroup
	for _, x := range s.streams {
		all.Go(func() { x.write(ctx, end) })
	}
	all.Wait()
	for _, x := range s.streams {
		total.Bytes += x.bytes
		total.Longest = max(total.Longest, x.longest)
		total.Reformed += int(x.g.Info().Stats.Formations) - 1
		if x.err != nil {
			total.Failed++
			fmt.Fprintln(os.Stderr, "a group has failed:", x.err)
			continue
		}
		info := x.g.Info()
		total.Removed += len(hosts) - 1 - len(info.Members)
		g := group{ID: info.ID.String(), Digest: digest(x.memory.Bytes())}
		for _, m := range info.Members {
			g.Members = append(g.Members, m.Host)
		}
		total.Groups = append(total.Groups, g)
	}
	return total
}

// write writes until the end, and waits for the writes that it has begun.
func (x *stream) write(ctx context.Context, end time.Time) {
	b := x.memory.Bytes()
	for n := uint64(1); x.err == nil && time.Now().Before(end); n++ {
		for at := 0; at < len(b); at += 512 {
			binary.BigEndian.PutUint64(b[at:], n)
		}
		begun := time.Now()
		x.err = x.g.Write(ctx, mcrdma.At{}, x.memory.All())
		now := time.Now()
		x.longest = max(x.longest, now.Sub(begun))
		if x.err == nil && now.Before(end) {
			x.bytes += len(b)
		}
	}
}
