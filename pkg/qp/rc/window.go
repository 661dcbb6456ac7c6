package rc

import "time"

// A lossWindow limits the number of unacknowledged packets. It starts at the configured window,
// becomes half the packets in flight after a loss, and grows by one for each window that is
// acknowledged. RoCE was designed for lossless networks, and NICs have no such window. But if a
// switch or a socket buffer overflows, go-back-N with a large window mostly sends packets that will
// be dropped again.
type lossWindow struct {
	size, most uint64
	credit     uint64 // acknowledged since size last grew
}

func newLossWindow(most int) lossWindow { return lossWindow{size: uint64(most), most: uint64(most)} }

func (w *lossWindow) acked(n uint64) {
	if w.size == w.most {
		return
	}
	if w.credit += n; w.credit >= w.size {
		w.credit -= w.size
		w.size++
	}
}

func (w *lossWindow) lost(inFlight uint64) {
	w.size = min(max(inFlight/2, leastWindow), w.size)
	w.credit = 0
}

// An rttMeter keeps a smoothed round-trip time, timing one packet at a time
// and never a retransmitted one (Karn's rule).
type rttMeter struct {
	pos      uint64
	at       time.Duration
	timing   bool
	smoothed time.Duration // 0 before the first sample
}

func (m *rttMeter) begin(pos uint64, now time.Duration) {
	if !m.timing {
		m.pos, m.at, m.timing = pos, now, true
	}
}

func (m *rttMeter) acked(pos uint64, now time.Duration) {
	if !m.timing || pos <= m.pos {
		return
	}
	m.timing = false
	if now < m.at { // the caller's clock has stepped back
		return
	}
	if sample := now - m.at; m.smoothed == 0 {
		m.smoothed = sample
	} else {
		m.smoothed += (sample - m.smoothed) / 8
	}
}

func (m *rttMeter) cancel() { m.timing = false }
