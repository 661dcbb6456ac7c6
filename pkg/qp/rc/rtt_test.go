package rc

import (
	"testing"
	"time"
)

// A clock that steps back, as that of a device that was held up, gives no round trip.
func TestRoundTripOfClockThatStepsBack(t *testing.T) {
	var m rttMeter
	m.begin(1, 10*time.Millisecond)
	m.acked(2, 4*time.Millisecond)
	if m.smoothed != 0 {
		t.Errorf("smoothed %v", m.smoothed)
	}
	m.begin(3, 5*time.Millisecond)
	m.acked(4, 6*time.Millisecond)
	if m.smoothed != time.Millisecond {
		t.Errorf("smoothed %v, want 1 ms", m.smoothed)
	}
}
