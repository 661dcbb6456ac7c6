package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/nbd"
)

// workloads in the order in which they run: reads come after writes.
var workloads = []string{"write", "randwrite", "read", "randread"}

func writes(workload string) bool { return workload == "write" || workload == "randwrite" }
func random(workload string) bool { return workload == "randread" || workload == "randwrite" }

// A benchResult is one workload in JSON. Times are in microseconds.
type benchResult struct {
	Workload   string  `json:"rw"`
	Block      int     `json:"bs"` // bytes
	Depth      int     `json:"iodepth"`
	Fsync      int     `json:"fsync,omitempty"`
	Iterations int     `json:"total_ios"`
	Flushes    int     `json:"flushes,omitempty"`
	Seconds    float64 `json:"runtime"`
	Bandwidth  float64 `json:"bw_bytes"` // per second
	IOPS       float64 `json:"iops"`
	Min        float64 `json:"t_min"`
	Typical    float64 `json:"t_typical"`
	Avg        float64 `json:"t_avg"`
	P99        float64 `json:"t_99"`
	P999       float64 `json:"t_99.9"`
	Max        float64 `json:"t_max"`
}

// measure runs one workload. After an error, it returns the results so far.
func (o *benchOptions) measure(ctx context.Context, d *nbd.Device, workload string) (benchResult, error) {
	block, depth := 1<<20, 8
	if random(workload) {
		block, depth = 4096, 1
	}
	r := benchResult{Workload: workload, Block: cmp.Or(o.block, block), Depth: cmp.Or(o.depth, depth)}
	if writes(workload) {
		r.Fsync = o.fsync
	}
	blocks := d.Info().Size / int64(r.Block)
	if r.Block%d.Info().MinBlock != 0 || blocks == 0 {
		return r, cli.Usagef("--bs %d: the volume has %d bytes in blocks of %d", r.Block, d.Info().Size, d.Info().MinBlock)
	}
	var next atomic.Int64
	place := func() int64 { return (next.Add(1) - 1) % blocks * int64(r.Block) }
	if random(workload) {
		place = func() int64 { return mathrand.Int64N(blocks) * int64(r.Block) }
	}
	parts, cancel := context.WithCancel(ctx)
	defer cancel()
	times, errs := make([][]time.Duration, r.Depth), make([]error, r.Depth)
	var flushes atomic.Int64
	var wg sync.WaitGroup
	begun := time.Now()
	for i := range r.Depth {
		wg.Go(func() {
			p := make([]byte, r.Block)
			rand.Read(p) // zeros might be stored as holes
			for n := 1; errs[i] == nil && (n == 1 || time.Since(begun) < o.runtime); n++ {
				at, from := place(), time.Now()
				if writes(workload) {
					errs[i] = d.WriteAt(parts, p, at, false)
				} else {
					errs[i] = d.ReadAt(parts, p, at)
				}
				if errs[i] != nil {
					break
				}
				times[i] = append(times[i], time.Since(from))
				if r.Fsync > 0 && n%r.Fsync == 0 {
					errs[i] = d.Flush(parts)
					flushes.Add(1)
				}
			}
			if errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	r.Flushes = int(flushes.Load())
	r.summarize(slices.Concat(times...), time.Since(begun))
	if err := cmp.Or(errs...); err != nil {
		return r, fmt.Errorf("%s: %w", workload, err)
	}
	return r, nil
}

// summarize computes the results from the times of all requests.
func (r *benchResult) summarize(times []time.Duration, took time.Duration) {
	n := len(times)
	if r.Iterations = n; n == 0 {
		return
	}
	slices.Sort(times)
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	rank := func(permille int) float64 { return us(times[(n*permille+999)/1000-1]) } // the nearest rank
	r.Seconds = took.Seconds()
	r.IOPS = float64(n+r.Flushes) / r.Seconds
	r.Bandwidth = float64(n) * float64(r.Block) / r.Seconds
	r.Min, r.Typical, r.Max = us(times[0]), rank(500), us(times[n-1])
	r.Avg = us(sum) / float64(n)
	r.P99, r.P999 = rank(990), rank(999)
}

func writeBench(w io.Writer, out *cli.Output, list []benchResult) error {
	if out.IsJSON() {
		return out.JSON(w, list)
	}
	var rows [][]any
	for _, r := range list {
		row := []any{r.Workload, r.Block, r.Depth, r.Iterations, fmt.Sprintf("%.2f", r.Bandwidth/(1<<20)), fmt.Sprintf("%.0f", r.IOPS)}
		for _, t := range []float64{r.Min, r.Typical, r.Avg, r.P99, r.P999, r.Max} {
			row = append(row, fmt.Sprintf("%.1f", t))
		}
		rows = append(rows, row)
	}
	return out.Table(w, []string{"rw", "bytes", "depth", "iterations", "MiB/s", "IOPS", "t_min", "t_typical", "t_avg", "99%", "99.9%", "t_max"}, rows)
}
