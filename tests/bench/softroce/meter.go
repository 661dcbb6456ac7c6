package main

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A meter measures what the process uses from its making to its reading.
type meter struct {
	start   time.Time
	cpu     float64
	mallocs uint64
}

func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

func newMeter() meter { return meter{time.Now(), cpuSeconds(), mallocs()} }

func (m meter) read(r *sideResult) {
	r.Seconds = time.Since(m.start).Seconds()
	r.CPU = cpuSeconds() - m.cpu
	r.Mallocs = mallocs() - m.mallocs
}
