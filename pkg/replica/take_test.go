package replica

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// TestTakeCounts: an entry for which there is no memory, as when this host leaves the group, is not counted as a bad one of another
// host.
func TestTakeCounts(t *testing.T) {
	errNone := errors.New("there is none")
	f := &following{refused: &counters{}, buffers: newPool(1<<20, func(int) (*mcrdma.Memory, error) { return nil, errNone }, func() {}, nil)}
	e := wal.Entry{Version: core.Version{Epoch: 1, Index: 1}, Kind: wal.Data, Length: 512, Data: bytes.Repeat([]byte{7}, 512)}
	ring := append(e.AppendHeader(nil), e.Data...)
	take := func(kind mcrdma.Kind, n int) {
		t.Helper()
		if _, err := f.take(context.Background(), ring, &mcrdma.Received{Kind: kind, N: n}); err == nil {
			t.Error("an entry was taken")
		}
	}
	counted := func(want uint64) {
		t.Helper()
		if n := f.refused.badEntries.Load(); n != want {
			t.Errorf("%d bad entries are counted, want %d", n, want)
		}
	}
	take(mcrdma.OpWriteImm, len(ring))
	counted(0)
	for i, bad := range []func(){
		func() { take(mcrdma.OpSend, len(ring)) },
		func() { take(mcrdma.OpWriteImm, len(ring)+1) },
		func() { take(mcrdma.OpWriteImm, len(ring)-1) },
		func() { take(mcrdma.OpWriteImm, wal.HeaderSize-1) },
	} {
		bad()
		counted(uint64(i) + 1)
	}
}
