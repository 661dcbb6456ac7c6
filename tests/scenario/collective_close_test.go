package scenario

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/collective"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// TestCloseWithOtherLanes: what is in flight on other lanes ends with ErrClosed, although others know sooner than one rank that all
// have called Close: its packets are lost for a moment, and it first learns that another's group has been closed.
func TestCloseWithOtherLanes(t *testing.T) {
	everywhere(t, []story{{"a rank learns late that all close", func(l *lab, _ mcrdma.GroupConfig) {
		for range 4 {
			r := l.join(4, func(c *collective.Config) { c.Lanes = 3 })
			var others sync.WaitGroup
			r.each(func(ctx context.Context, i int, c *collective.Comm) error {
				for lane := 1; lane < 3; lane++ {
					if i != lane { // that rank does not come
						others.Go(func() {
							if err := c.Lane(lane).Barrier(ctx); !errors.Is(err, collective.ErrClosed) {
								l.t.Errorf("rank %d, lane %d: %v", i, lane, err)
							}
						})
					}
				}
				time.Sleep([]time.Duration{0, 600, 1200, 300}[i] * time.Microsecond)
				if cable := l.hosts[i].cable; i == 3 {
					others.Go(func() {
						time.Sleep(700 * time.Microsecond)
						cable.Cut(true)
						time.Sleep(60 * time.Millisecond)
						cable.Cut(false)
					})
				}
				return c.Close(ctx)
			})
			others.Wait()
			for _, a := range r.apps {
				a.close()
			}
		}
	}}})
}
