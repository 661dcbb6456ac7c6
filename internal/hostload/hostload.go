// Package hostload detects whether the host's processors are overloaded, by Linux's pressure stall
// information (/proc/pressure/cpu). Programs are then slow, which other hosts must not take for
// death. Batch sets how a program shares the processors with others.
package hostload

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	path = "/proc/pressure/cpu"
	// A host is busy if something waited for a processor at nearly all times: since the last
	// look, or in the last ten seconds. Less than that is usual where work comes in bursts.
	nowShare  = 0.9
	lateShare = 80 // percent
	// between is the least time between two looks.
	between = 100 * time.Millisecond
)

// A Meter looks at one host. The zero value is ready.
type Meter struct {
	mu     sync.Mutex
	file   *os.File // stays open, as opening takes longer than reading; nil: not opened yet
	at     time.Time
	waited time.Duration // since the host began
	busy   bool
}

// Busy reports whether the host is busy; false where the kernel does not say.
func (m *Meter) Busy(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.at) < between {
		return m.busy
	}
	if m.file == nil {
		m.file, _ = os.Open(path) // nil: the kernel has none
	}
	var text [256]byte // two lines
	n, _ := m.file.ReadAt(text[:], 0)
	m.look(text[:n], now)
	return m.busy
}

// look takes in the text of the file at now.
func (m *Meter) look(text []byte, now time.Time) {
	share, waited, ok := parse(text)
	span := now.Sub(m.at)
	m.busy = ok && (share >= lateShare || !m.at.IsZero() && float64(waited-m.waited) >= nowShare*float64(span))
	m.at, m.waited = now, waited
}

// parse reads the line of which "some" is the first word: the percentage of the last ten
// seconds in which something waited, and the time in which something did.
func parse(text []byte) (share float64, waited time.Duration, ok bool) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	var minute, more float64
	var us int64
	n, err := fmt.Sscanf(string(line), "some avg10=%g avg60=%g avg300=%g total=%d", &share, &minute, &more, &us)
	return share, time.Duration(us) * time.Microsecond, err == nil && n == 4
}
