package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A bar shows progress: on a terminal in one line that changes, elsewhere in a line
// for each quarter. A nil bar shows nothing. Its methods may be called by several
// goroutines.
type bar struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	total    int
	done     int
	quarters int // shown
	begun    time.Time
	last     time.Time
	open     bool // the cursor is in the bar's line
}

func newBar(w *os.File, total int) *bar {
	info, err := w.Stat()
	return &bar{w: w, total: total, begun: time.Now(),
		terminal: err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"}
}

// add says that n bytes more are done.
func (b *bar) add(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += n
	now := time.Now()
	percent := 100 * b.done / max(b.total, 1)
	text := fmt.Sprintf("%3d %% of %s, %s", percent, bytesText(uint64(b.total)), rateText(b.done, now.Sub(b.begun)))
	switch {
	case !b.terminal:
		if percent/25 > b.quarters {
			b.quarters = percent / 25
			fmt.Fprintf(b.w, "   %s\n", text)
		}
	case now.Sub(b.last) >= 50*time.Millisecond || b.done >= b.total:
		b.last = now
		const width = 40
		full := min(width, width*percent/100)
		fmt.Fprintf(b.w, "\r\x1b[K   [%s%s] %s", strings.Repeat("=", full), strings.Repeat(" ", width-full), text)
		b.open = true
	}
}

// line shows a line of text above the bar.
func (b *bar) line(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		fmt.Fprint(b.w, "\r\x1b[K")
		b.open = false // the next add draws it again
	}
	fmt.Fprintln(b.w, text)
}

// end leaves the bar's line.
func (b *bar) end() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		fmt.Fprintln(b.w)
		b.open = false
	}
}

// rateText is bytes in a time as bits in a second.
func rateText(bytes int, d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f Gb/s", float64(bytes)*8/d.Seconds()/1e9)
}
