package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
)

// kept is how many entries the log of such a volume keeps.
const kept = 1024

// Metrics of mcblock about a host that catches up.
const (
	backfilling = `mcrdma_block_volume_backfilling{volume="` + name + `"}`
	sentOfLog   = `mcrdma_block_replica_recovery_bytes_total{of="log"}`
	sentOfStore = `mcrdma_block_replica_recovery_bytes_total{of="store"}`
)

// catchup: what clients achieve while a host gets a copy, and what a returning host is sent of the
// log.
func catchup(ctx context.Context, r *rack, o *options) error {
	v := r.volumes[0]
	write := v.fio(o, "--rw=write", "--bs=1M", "--iodepth=8")
	back := (v.primary + 1) % len(v.hosts)
	fill := v.fio(o, "--rw=write", "--bs=64k", "--iodepth=16")
	for bytes := 0.0; bytes < 2*kept*64<<10; { // so that the log does not reach back to the beginning
		f, err := fill(ctx)
		if err != nil {
			return err
		}
		bytes += f.bytes
	}
	var off, again []float64
	var copied float64
	for range o.rounds {
		whole, err := write(ctx)
		if err != nil {
			return err
		}
		with, n, err := v.backfill(ctx, back, write)
		if err != nil {
			return err
		}
		off, copied = append(off, 1-with.rate/whole.rate), copied+n
		ratio, err := v.behind(ctx, back, write)
		if err != nil {
			return err
		}
		again = append(again, ratio)
	}
	fmt.Printf("\na host comes back, and 1 MiB is written, 8 at a time (copies of %.1f MiB/s meanwhile):\n", copied/(1<<20)/float64(o.rounds)/o.span.Seconds())
	fmt.Println(report.Verdict("what a backfill takes of the writes' rate", report.Median(off), 0.15, "", false))
	fmt.Println(report.Verdict("bytes that are sent from the log for each that was missed", report.Median(again), 1.1, "", false))
	return nil
}

// race: how long a host takes that comes back while clients write as fast as they can. The volume is
// so large that its log has what the host has missed.
func race(ctx context.Context, r *rack, o *options) error {
	x := *r.volumes[0]
	x.name = "race"
	if err := x.create(ctx, 16<<30); err != nil {
		return err
	}
	back := (x.primary + 1) % len(x.hosts)
	for _, size := range []string{"4k", "1M"} {
		args := []string{"--rw=randwrite", "--bs=" + size, "--iodepth=64"}
		var took, kept, copied []float64
		for range o.rounds {
			whole, err := x.fio(o, args...)(ctx)
			if err != nil {
				return err
			}
			before, err := x.metric(x.primary, sentOfStore)
			if err != nil {
				return err
			}
			t, with, err := x.comeBack(ctx, o, back, args)
			if err != nil {
				return err
			}
			after, err := x.metric(x.primary, sentOfStore)
			if err != nil {
				return err
			}
			took, kept, copied = append(took, t.Seconds()), append(kept, with.rate/whole.rate), append(copied, after-before)
		}
		fmt.Printf("\na host comes back, and %s is written, 64 at a time, all the time (each round: %.1f s, %.2f of the rate, %.0f bytes of the store):\n", size, took, kept, copied)
		fmt.Println(report.Verdict("seconds until it is in the acting set", report.Median(took), 20, "", false))
		fmt.Println(report.Verdict("the writes' rate, to that before", report.Median(kept), 0.3, "", true))
	}
	_, err := x.mcblock("delete", x.name, "--yes")
	return err
}

// comeBack stops a host while fio writes, and starts it again. It returns how long it takes to be in
// the acting set, and fio's figures until then.
func (v *volume) comeBack(ctx context.Context, o *options, host int, args []string) (took time.Duration, f figure, err error) {
	v.blocks[host].Kill()
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		x := *o
		x.span, x.stop = time.Hour, stop
		var err error
		f, err = v.fio(&x, args...)(ctx)
		done <- err
	}()
	time.Sleep(o.span)
	if err = v.blocks[host].Start(ctx); err == nil {
		begun := time.Now()
		err = v.whole(ctx)
		took = time.Since(begun)
	}
	close(stop)
	return took, f, errors.Join(<-done, err)
}

// backfill removes a host's copy, while clients write until it has a new one. It returns their
// figures, and how many bytes the host got meanwhile.
func (v *volume) backfill(ctx context.Context, host int, write func(context.Context) (figure, error)) (f figure, copied float64, err error) {
	v.blocks[host].Kill()
	if err := os.RemoveAll(filepath.Join(v.data(host), "volumes")); err != nil {
		return f, 0, err
	}
	if err := v.blocks[host].Start(ctx); err != nil {
		return f, 0, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, ready, fmt.Errorf("no copy is begun within %v", ready))
	defer cancel()
	for { // there is no metric before the volume is open
		is, err := v.metric(host, backfilling)
		if is == 1 {
			break
		}
		if late := pause(limited); late != nil {
			return f, 0, errors.Join(late, err)
		}
	}
	before, err := v.metric(v.primary, sentOfStore)
	if err != nil {
		return f, 0, err
	}
	if f, err = write(ctx); err != nil {
		return f, 0, err
	}
	after, err := v.metric(v.primary, sentOfStore)
	if err != nil {
		return f, 0, err
	}
	switch is, err := v.metric(host, backfilling); {
	case err != nil:
		return f, 0, err
	case is != 1:
		return f, 0, fmt.Errorf("the copy was complete after %.0f bytes, before the writes were: they need a shorter -time", after-before)
	}
	return f, after - before, v.whole(ctx)
}

// behind stops a host while clients write, and returns the ratio of what it is sent then to what it
// has missed.
func (v *volume) behind(ctx context.Context, host int, write func(context.Context) (figure, error)) (float64, error) {
	before, err := v.metric(v.primary, sentOfLog)
	if err != nil {
		return 0, err
	}
	v.blocks[host].Kill()
	missed, err := write(ctx)
	if err != nil {
		return 0, err
	}
	if err := v.blocks[host].Start(ctx); err != nil {
		return 0, err
	}
	if err := v.whole(ctx); err != nil {
		return 0, err
	}
	after, err := v.metric(v.primary, sentOfLog)
	return (after - before) / missed.bytes, err
}
