package main

import (
	"runtime"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
)

// A meter measures the resource usage of the process from its creation to its reading.
type meter struct {
	start   time.Time
	cpu     float64
	mallocs uint64
}

func cpuSeconds() float64 {
	used, _ := report.Used()
	return used.Seconds()
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
