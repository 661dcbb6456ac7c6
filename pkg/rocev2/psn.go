package rocev2

// A PSN is a 24-bit packet sequence number (IBTA 1.2.1 §9.2.7). Values are
// always kept masked to 24 bits; use Add and the comparison methods, never
// plain arithmetic or <, because the sequence wraps.
type PSN uint32

// A QPN is a 24-bit queue pair number.
type QPN uint32

// Mask24 covers the bits of a PSN, QPN or MSN.
const Mask24 = 1<<24 - 1

// Add returns the PSN n after p (before it, if n is negative), modulo 2^24.
func (p PSN) Add(n int) PSN { return PSN(uint32(int(p)+n)) & Mask24 }

// Sub returns the signed serial distance p−q in the range [−2^23, 2^23). It is
// positive if p comes after q. Two numbers exactly 2^23 apart have no order in
// serial arithmetic; Sub then returns −2^23 both ways.
func (p PSN) Sub(q PSN) int { return int(int32((uint32(p)-uint32(q))<<8) >> 8) }

// Before reports whether p comes before q in serial order.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

// After reports whether p comes after q in serial order.
func (p PSN) After(q PSN) bool { return q.Sub(p) < 0 }
