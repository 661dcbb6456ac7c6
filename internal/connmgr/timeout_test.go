package connmgr

import (
	"testing"
	"time"
)

// A sender's queue pair outlives the search for dead receivers.
func TestAckTimeout(t *testing.T) {
	for _, c := range []struct {
		deadAfter time.Duration
		want      uint8
	}{{time.Millisecond, 12}, {130 * time.Millisecond, 12}, {140 * time.Millisecond, 13}, {500 * time.Millisecond, 14}, {time.Second, 15}, {2 * time.Second, 16}, {time.Hour, 16}} {
		got := ackTimeout(c.deadAfter)
		if got != c.want {
			t.Errorf("dead_after %v: exponent %d, want %d", c.deadAfter, got, c.want)
		}
		if budget := 8 * (4096 * time.Nanosecond << got); got < 16 && budget <= c.deadAfter {
			t.Errorf("dead_after %v: the queue pair gives up after %v", c.deadAfter, budget)
		}
	}
}
