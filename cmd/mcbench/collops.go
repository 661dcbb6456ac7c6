package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/pkg/collective"
)

// A collOperation is an operation to measure. Its work has x for n elements at each rank, and wrong
// checks the result.
type collOperation struct {
	name  string
	redop string
	root  int
	share func(n float64) float64 // busbw divided by algbw
	parts bool                    // x is split into a part for each rank
	once  func(ctx context.Context, c *collective.Comm, x, part []float32) error
	wants func(c *collective.Comm, i, part int) float32 // of x, or of part if it is split and reduced; part is the number of its elements
}

// before is the initial value of element i of a rank's buffer: integers, whose sums are exact.
func before(rank, i int) float32 { return float32(rank + i%1000) }

func sumOf(c *collective.Comm, i, _ int) float32 {
	n := c.Size()
	return float32(n*(n-1)/2 + n*(i%1000))
}

var collOperations = []collOperation{
	{"allreduce", "sum", -1, func(n float64) float64 { return 2 * (n - 1) / n }, false,
		func(ctx context.Context, c *collective.Comm, x, _ []float32) error {
			return collective.Allreduce(ctx, c, x, collective.Sum)
		}, sumOf},
	{"broadcast", "none", 0, func(float64) float64 { return 1 }, false,
		func(ctx context.Context, c *collective.Comm, x, _ []float32) error {
			return collective.Broadcast(ctx, c, 0, x)
		}, func(_ *collective.Comm, i, _ int) float32 { return before(0, i) }},
	{"reduce", "sum", 0, func(float64) float64 { return 1 }, false,
		func(ctx context.Context, c *collective.Comm, x, _ []float32) error {
			return collective.Reduce(ctx, c, 0, x, collective.Sum)
		}, func(c *collective.Comm, i, _ int) float32 {
			if c.Rank() == 0 {
				return sumOf(c, i, 0)
			}
			return before(c.Rank(), i)
		}},
	{"allgather", "none", -1, func(n float64) float64 { return (n - 1) / n }, true,
		func(ctx context.Context, c *collective.Comm, x, part []float32) error {
			return collective.Allgather(ctx, c, x, part)
		}, func(_ *collective.Comm, i, part int) float32 { return before(i/part, i) }},
	{"reducescatter", "sum", -1, func(n float64) float64 { return (n - 1) / n }, true,
		func(ctx context.Context, c *collective.Comm, x, part []float32) error {
			return collective.ReduceScatter(ctx, c, part, x, collective.Sum)
		}, func(c *collective.Comm, i, part int) float32 { return sumOf(c, c.Rank()*part+i, 0) }},
	{"barrier", "none", -1, func(float64) float64 { return 0 }, false,
		func(ctx context.Context, c *collective.Comm, _, _ []float32) error { return c.Barrier(ctx) }, func(c *collective.Comm, i, _ int) float32 { return before(c.Rank(), i) }},
}

func collNames() (names []string) {
	for _, o := range collOperations {
		names = append(names, o.name)
	}
	return names
}

// wrong returns the number of elements with wrong values.
func (op *collOperation) wrong(c *collective.Comm, x, part []float32) (n int) {
	got := x
	if op.parts && op.redop != "none" {
		got = part
	}
	for i, v := range got {
		if v != op.wants(c, i, len(part)) {
			n++
		}
	}
	return n
}

// A collTrial is an operation of one size, at one rank.
type collTrial struct {
	op      *collOperation
	c       *collective.Comm
	x, part []float32
	count   int
	timeout time.Duration
	limit   *time.Timer // ends the context
	barrier func(context.Context) error
	sent    func() (uint64, error)
}

func (t *collTrial) fill(size int) {
	n := max(1, size/4)
	t.part = make([]float32, max(1, n/t.c.Size()))
	if t.op.parts {
		n = len(t.part) * t.c.Size()
	}
	t.x = make([]float32, n)
	for i := range t.x {
		t.x[i] = before(t.c.Rank(), i)
	}
	for i := range t.part {
		t.part[i] = before(t.c.Rank(), t.c.Rank()*len(t.part)+i)
	}
}

func (t *collTrial) once(ctx context.Context) error {
	t.limit.Reset(t.timeout) // cheaper than a context for each operation
	defer t.limit.Stop()
	return t.op.once(ctx, t.c, t.x, t.part)
}

// begin does the operation once, and so many more times. It returns the number of wrong elements at
// all ranks.
func (t *collTrial) begin(ctx context.Context, warmUp int) (wrong int, err error) {
	if err := t.once(ctx); err != nil {
		return 0, err
	}
	all := []int{t.op.wrong(t.c, t.x, t.part)}
	if err := collective.Allreduce(ctx, t.c, all, collective.Sum); err != nil {
		return 0, err
	}
	for range warmUp {
		if err := t.once(ctx); err != nil {
			return 0, err
		}
	}
	return all[0], nil
}

const barriers = 8 // the smallest time of these is subtracted

// measure does the operation count times. It returns the microseconds per operation, from the first
// rank's start to the last rank's end, and the bytes per operation of the host that sends most. A
// barrier ends the batch, because a rank may end before others, as a broadcast's root does when it
// has sent. The time of a barrier is subtracted.
func (t *collTrial) measure(ctx context.Context) (us, sent float64, err error) {
	one := math.Inf(1)
	for range barriers {
		begun := time.Now()
		if err := t.barrier(ctx); err != nil {
			return 0, 0, err
		}
		one = min(one, micros(begun))
	}
	before, err := t.sent()
	if err = errors.Join(err, t.barrier(ctx)); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	for range t.count {
		if err := t.once(ctx); err != nil {
			return 0, 0, err
		}
	}
	if err := t.barrier(ctx); err != nil {
		return 0, 0, err
	}
	most := []float64{micros(begun), one, 0}
	after, err := t.sent()
	most[2] = float64(after - before)
	err = errors.Join(err, collective.Allreduce(ctx, t.c, most, collective.Max))
	took := most[0]
	if took > most[1] { // otherwise no barrier was as fast as in this batch
		took -= most[1]
	}
	return took / float64(t.count), most[2] / float64(t.count), err
}

func micros(since time.Time) float64 { return time.Since(since).Seconds() * 1e6 }

// sentBy returns the number of bytes that an interface has sent.
func sentBy(nic string) (uint64, error) {
	b, err := os.ReadFile("/proc/net/dev") // of the network namespace, unlike /sys
	for line := range bytes.Lines(b) {
		name, rest, _ := strings.Cut(string(line), ":")
		if fields := strings.Fields(rest); strings.TrimSpace(name) == nic && len(fields) > 8 {
			return strconv.ParseUint(fields[8], 10, 64)
		}
	}
	return 0, errors.Join(err, fmt.Errorf("there is no interface %q here", nic))
}

// result returns the result for a time in microseconds, with that many ranks and bytes.
func (op *collOperation) result(ranks, size int, us float64) collResult {
	r := collResult{Operation: op.name, By: ours, Size: size, Count: size / 4, Type: "float", RedOp: op.redop, Root: op.root, Time: us, AlgBW: float64(size) / us / 1e3}
	if op.name == "barrier" {
		r.Size, r.Count, r.AlgBW = 0, 0, 0
	}
	r.BusBW = r.AlgBW * op.share(float64(ranks))
	return r
}
