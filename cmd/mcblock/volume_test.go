package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// TestSomeHost: a volume is created on hosts that have just started; without any, the command says
// so after a while.
func TestSomeHost(t *testing.T) {
	for _, c := range []struct {
		after time.Duration // until a host is known
		hosts int
		took  time.Duration
		says  bool
	}{
		{0, 1, 0, false}, {300 * time.Millisecond, 1, 400 * time.Millisecond, false}, {2 * time.Second, 1, 2 * time.Second, true}, {time.Hour, 0, startTime, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			var stderr bytes.Buffer
			s, err := someHost(t.Context(), func(context.Context) (s osdmap.State, err error) {
				if time.Since(begun) >= c.after {
					s.Hosts = make([]osdmap.Host, 1)
				}
				return s, nil
			}, &stderr)
			if err != nil || len(s.Hosts) != c.hosts || time.Since(begun) != c.took || (stderr.Len() > 0) != c.says {
				t.Errorf("known after %v: %d hosts after %v, %v; said %q", c.after, len(s.Hosts), time.Since(begun), err, stderr.String())
			}
		})
	}
	broken := errors.New("broken")
	if _, err := someHost(t.Context(), func(context.Context) (osdmap.State, error) { return osdmap.State{}, broken }, nil); !errors.Is(err, broken) {
		t.Error(err)
	}
}
