package rocev2

import (
	"fmt"
	"time"
)

// A Syndrome is the AETH syndrome: kind in the top three bits, credits, RNR
// timer or NAK code in the low five (IBTA 1.2.1 table 45).
type Syndrome uint8

// The NAK syndromes, and the ACK without a credit limit.
const (
	AckNoLimit         Syndrome = 0x1f
	NakSequence        Syndrome = 0x60
	NakInvalidRequest  Syndrome = 0x61
	NakRemoteAccess    Syndrome = 0x62
	NakRemoteOperation Syndrome = 0x63
)

// IsAck reports whether s is a positive acknowledgement.
func (s Syndrome) IsAck() bool { return s>>5 == 0 }

// IsRNR reports whether s is a receiver-not-ready NAK.
func (s Syndrome) IsRNR() bool { return s>>5 == 1 }

// IsNak reports whether s is a NAK other than RNR. That includes the codes from 4 on, which are
// reserved on a reliable connection: a requester that receives one was rejected, even if it does
// not know why, and must not wait for an ACK. A syndrome that is none of ACK, RNR NAK and NAK is
// reserved.
func (s Syndrome) IsNak() bool { return s>>5 == 3 }

// IsFatal reports whether s is a NAK after which the connection cannot continue: all except the
// sequence error, which asks for a retransmission.
func (s Syndrome) IsFatal() bool { return s.IsNak() && s != NakSequence }

// RNRSyndrome returns the RNR NAK syndrome with the given 5-bit timer code.
func RNRSyndrome(timer uint8) Syndrome { return Syndrome(0x20 | timer&0x1f) }

// Value returns the low five bits: credits, timer code or NAK code.
func (s Syndrome) Value() uint8 { return uint8(s) & 0x1f }

// String returns the kind with its credits, delay or reason.
func (s Syndrome) String() string {
	switch {
	case s.IsAck():
		if n, limited := Credits(s.Value()); limited {
			return fmt.Sprintf("ACK(credits %d)", n)
		}
		return "ACK"
	case s.IsRNR():
		return fmt.Sprintf("RNR_NAK(%v)", RNRTimer(s.Value()))
	case s == NakSequence:
		return "NAK(PSN sequence error)"
	case s == NakInvalidRequest:
		return "NAK(invalid request)"
	case s == NakRemoteAccess:
		return "NAK(remote access error)"
	case s == NakRemoteOperation:
		return "NAK(remote operational error)"
	case s.IsNak():
		return fmt.Sprintf("NAK(reserved code %d)", s.Value())
	}
	return fmt.Sprintf("SYNDROME_0x%02x", uint8(s))
}

// creditTable maps the AETH credit codes 0 to 30 to credits (IBTA 1.2.1 §9.7.7.2.4).
var creditTable = [31]uint16{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
	1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768}

// Credits returns how many requests beyond the acknowledged one a 5-bit AETH credit code grants:
// the requester's limit is (MSN + n) mod 2^24. Code 31 means no limit; then limited is false and n
// is 0.
func Credits(code uint8) (n int, limited bool) {
	if code &= 0x1f; int(code) < len(creditTable) {
		return int(creditTable[code]), true
	}
	return 0, false
}

// rnrTimer10us holds IBTA 1.2.1 table 46 in units of 10 µs.
var rnrTimer10us = [32]uint32{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}

// RNRTimer returns the delay of a 5-bit RNR timer code. Code 0 is the longest delay, 655.36 ms, not
// the shortest.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimer10us[code&0x1f]) * 10 * time.Microsecond
}
