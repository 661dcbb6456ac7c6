// Package bar shows the progress of the examples.
package bar

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// A Bar shows progress: on a terminal in one line that changes, elsewhere in a line
// for each quarter. A nil Bar shows nothing. Its methods may be called by several
// goroutines.
type Bar struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	total    int64
	done     int64
	quarters int64 // shown
	begun    time.Time
	last     time.Time
	open     bool // the cursor is in the bar's line
}

// New makes a bar for so many bytes.
func New(w *os.File, total int64) *Bar {
	info, err := w.Stat()
	return &Bar{w: w, total: total, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"}
}

// Total says how many bytes there are to come.
func (b *Bar) Total(total int64) {
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.total = total
	}
}

// Text shows a text in the bar's place, on a terminal.
func (b *Bar) Text(text string) {
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.print(text)
	}
}

func (b *Bar) print(text string) {
	if b.terminal {
		fmt.Fprintf(b.w, "\r\x1b[K%s", text)
		b.open = true
	}
}

// Add says that n bytes more are done.
func (b *Bar) Add(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.begun.IsZero() {
		b.begun = now
	}
	b.done += int64(n)
	percent := 100 * b.done / max(b.total, 1)
	text := fmt.Sprintf("%3d %% of %s, %s", percent, Bytes(uint64(b.total)), Rate(b.done, now.Sub(b.begun))) //nolint:gosec // not negative
	switch {
	case !b.terminal:
		if percent/25 > b.quarters {
			b.quarters = percent / 25
			fmt.Fprintf(b.w, "   %s\n", text)
		}
	case now.Sub(b.last) >= 50*time.Millisecond || b.done >= b.total:
		b.last = now
		const width = 40
		full := int(min(width, width*percent/100))
		b.print(fmt.Sprintf("   [%s%s] %s", strings.Repeat("=", full), strings.Repeat(" ", width-full), text))
	}
}

// Line shows a line of text above the bar.
func (b *Bar) Line(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open {
		fmt.Fprint(b.w, "\r\x1b[K")
		b.open = false // the next Add draws it again
	}
	fmt.Fprintln(b.w, text)
}

// End leaves the bar's line.
func (b *Bar) End() {
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

// Rate is bytes in a time as bits in a second.
func Rate(bytes int64, d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	rate, unit := float64(bytes)*8/d.Seconds()/1e9, "Gb/s"
	for _, smaller := range []string{"Mb/s", "kb/s"} {
		if rate < 0.1 {
			rate, unit = rate*1000, smaller
		}
	}
	return fmt.Sprintf("%.2f %s", rate, unit)
}

// Bytes is a number of bytes for people.
func Bytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, u := float64(n), 0
	for v >= 1024 && u+1 < len(units) {
		v, u = v/1024, u+1
	}
	if u == 0 || n%(1<<(10*u)) == 0 {
		return fmt.Sprintf("%.0f %s", v, units[u])
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}
