// Package testenv is what tests of several packages share: skipping that fails
// where a test must run, loopback addresses that no other process uses, and a buffer
// that several goroutines may write to. Only tests may import it; it imports the
// standard library only.
package testenv

import (
	"bytes"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
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
