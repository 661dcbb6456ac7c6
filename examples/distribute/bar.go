package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// A bar shows progress in one line of a terminal, and nothing elsewhere. A nil
// bar shows nothing, too.
type bar struct {
	mu          sync.Mutex
	out         *os.File // nil if it is no terminal
	done, total int64
	begin, last time.Time
	line        bool // something is shown
}

func newBar(out *os.File, total int64) *bar {
	if info, err := out.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		out = nil
	}
	return &bar{out: out, total: total}
}

// text shows a line of text.
func (b *bar) text(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.print(s)
}

func (b *bar) print(s string) {
	if b.out != nil {
		fmt.Fprintf(b.out, "\r\x1b[K%s", s)
		b.line = true
	}
}

// set says how many bytes there are to come.
func (b *bar) set(total int64) {
	if b != nil {
		b.mu.Lock()
		b.total = total
		b.mu.Unlock()
	}
}

// add says that n bytes more are done.
func (b *bar) add(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.begin.IsZero() {
		b.begin = now
	}
	b.done += int64(n)
	if now.Sub(b.last) < 50*time.Millisecond && b.done < b.total {
		return
	}
	b.last = now
	const width = 40
	full := int(width * b.done / max(b.total, 1))
	rate := 0.0
	if d := now.Sub(b.begin).Seconds(); d > 0 {
		rate = float64(b.done) * 8 / d / 1e9
	}
	b.print(fmt.Sprintf("[%s%s] %3d%% of %.1f MB, %.2f Gb/s", strings.Repeat("=", full), strings.Repeat(" ", width-full),
		100*b.done/max(b.total, 1), float64(b.total)/1e6, rate))
}

// end ends the line.
func (b *bar) end() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.line {
		fmt.Fprintln(b.out)
		b.line = false
	}
}
