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

// The smoothed round trip moves by an eighth of what a sample differs, up and down.
func TestSmoothed(t *testing.T) {
	var m rttMeter
	for i, c := range []struct{ sample, want time.Duration }{
		{8 * time.Millisecond, 8 * time.Millisecond}, {16 * time.Millisecond, 9 * time.Millisecond}, {time.Millisecond, 8 * time.Millisecond},
		{0, 7 * time.Millisecond},
	} {
		m.begin(uint64(i), time.Second)
		if m.acked(uint64(i)+1, time.Second+c.sample); m.smoothed != c.want {
			t.Errorf("after a sample of %v: %v, want %v", c.sample, m.smoothed, c.want)
		}
	}
}

// One packet at a time is timed, until it is acknowledged.
func TestRoundTripOfOnePacket(t *testing.T) {
	var m rttMeter
	m.begin(5, time.Millisecond)
	m.begin(6, 2*time.Millisecond)
	if m.acked(5, 3*time.Millisecond); m.smoothed != 0 {
		t.Errorf("%v, and packet 5 is not acknowledged", m.smoothed)
	}
	if m.acked(7, 4*time.Millisecond); m.smoothed != 3*time.Millisecond {
		t.Errorf("%v, and packet 5 was acknowledged after 3 ms", m.smoothed)
	}
	if m.acked(8, 100*time.Millisecond); m.smoothed != 3*time.Millisecond {
		t.Errorf("%v without a packet that was timed", m.smoothed)
	}
}
