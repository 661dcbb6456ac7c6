// Package testenv has helpers for tests of several packages: skips that fail where a test must run,
// bubbles of virtual time, loopback addresses that no other process uses, and a buffer for
// concurrent writers. Only tests may import it.
package testenv

import (
	"bytes"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Skip leaves a test out with a reason, unless the environment says that all
// tests must run here; then the test fails.
func Skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("MCRDMA_MUST_RUN") == "1" {
		t.Fatalf("must run here, but: "+format, args...)
	}
	t.Skipf(format, args...)
}

// WithoutRace leaves out of a run with the race detector a test that has nothing to show
// there, for a reason. "make test" runs all that have these words in their names once more,
// without the detector.
func WithoutRace(t testing.TB, reason string) {
	t.Helper()
	if name, _, _ := strings.Cut(t.Name(), "/"); !strings.Contains(name, "WithoutRace") {
		t.Fatal("the name of a test that calls WithoutRace says so")
	}
	if Race {
		t.Skip("optional: " + reason)
	}
}

// Bubble is t.Run in a bubble of virtual time.
func Bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// OneProcessor is for TestMain of packages with many bubbles. With the race detector, Go 1.26 ends with
// SIGSEGV or another fault if two processors fire timers of one bubble at the same time: they share the
// bubble's race context (unlockAndRun in runtime/time.go).
func OneProcessor() {
	if Race {
		runtime.GOMAXPROCS(1)
	}
}

var loopback atomic.Uint32

// Loopback returns an IPv4 loopback address that no other test uses: not in this
// process, nor, by the process id, in another that runs at the same time.
func Loopback() netip.Addr {
	n := loopback.Add(1)
	pid := uint32(os.Getpid())
	return netip.AddrFrom4([4]byte{127, byte(64 + pid>>8&0x7f), byte(pid), byte(n%254 + 1)})
}

// SyncBuffer is a bytes.Buffer for several goroutines.
type SyncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends to the buffer.
func (b *SyncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns what has been written.
func (b *SyncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
