package replica

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// held is a primary that answers when it may.
type held struct {
	replicav1.ReplicasClient
	underway atomic.Int32
	may      chan struct{}
}

func (h *held) Forward(ctx context.Context, q *replicav1.ForwardRequest, o ...grpc.CallOption) (*replicav1.ForwardResponse, error) {
	h.underway.Add(1)
	defer h.underway.Add(-1)
	<-h.may
	return h.ReplicasClient.Forward(ctx, q, o...)
}

// TestForwardedReads: however many reads clients have in flight, few are in the memory of their host and of the primary.
func TestForwardedReads(t *testing.T) {
	r := newRig(t, 2, 1, maxRead, Options{})
	primary := r.primary()
	at := 3 - primary
	v := r.volume(at)
	r.wait("the other host knows the primary", func() error { return v.ReadAt(t.Context(), make([]byte, block), 0) })
	p := r.hosts[at].peers
	p.mu.Lock()
	x := *p.all[core.ID(primary)]
	h := &held{ReplicasClient: x.rpc, may: make(chan struct{})}
	x.rpc = h
	p.all[core.ID(primary)] = &x
	p.mu.Unlock()

	const most = maxReading / maxRead
	var wg sync.WaitGroup
	for range 2 * most {
		wg.Go(func() {
			if err := v.ReadAt(t.Context(), make([]byte, maxRead), 0); err != nil {
				t.Error(err)
			}
		})
	}
	for h.underway.Load() < most {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // more would have begun
	if n := h.underway.Load(); n != most {
		t.Errorf("%d reads of %d bytes are in flight, want %d", n, maxRead, most)
	}
	close(h.may)
	wg.Wait()
}
