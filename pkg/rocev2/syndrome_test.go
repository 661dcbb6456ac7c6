package rocev2

import (
	"testing"
	"time"
)

func TestRNRTimers(t *testing.T) {
	// Hundredths of a millisecond, as the specification prints them.
	want := []int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
		3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}
	for code, w := range want {
		d := time.Duration(w) * time.Millisecond / 100
		if got := RNRTimer(uint8(code)); got != d {
			t.Errorf("RNRTimer(%d) = %v, want %v", code, got, d)
		}
	}
	if RNRTimer(32+5) != RNRTimer(5) || RNRSyndrome(32+5) != 0x25 {
		t.Error("timer codes are not cut to five bits")
	}
}

func TestCredits(t *testing.T) {
	want := []int{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
		4096, 6144, 8192, 12288, 16384, 24576, 32768}
	for code, w := range want {
		if n, limited := Credits(uint8(code)); n != w || !limited {
			t.Errorf("Credits(%d) = %d, %v, want %d", code, n, limited, w)
		}
	}
	if n, limited := Credits(AckNoLimit.Value()); n != 0 || limited {
		t.Errorf("Credits(31) = %d, %v, want no limit", n, limited)
	}
	if n, _ := Credits(32 + 5); n != 6 {
		t.Errorf("credit codes are not cut to five bits: Credits(37) = %d", n)
	}
}

func TestSyndrome(t *testing.T) {
	for _, c := range []struct {
		s                    Syndrome
		ack, rnr, nak, fatal bool
		name                 string
	}{
		{0x00, true, false, false, false, "ACK(credits 0)"},
		{0x0a, true, false, false, false, "ACK(credits 32)"},
		{AckNoLimit, true, false, false, false, "ACK"},
		{RNRSyndrome(0), false, true, false, false, "RNR_NAK(655.36ms)"},
		{RNRSyndrome(12), false, true, false, false, "RNR_NAK(640µs)"},
		{0x45, false, false, false, false, "SYNDROME_0x45"},
		{NakSequence, false, false, true, false, "NAK(PSN sequence error)"},
		{NakInvalidRequest, false, false, true, true, "NAK(invalid request)"},
		{NakRemoteAccess, false, false, true, true, "NAK(remote access error)"},
		{NakRemoteOperation, false, false, true, true, "NAK(remote operational error)"},
		{0x64, false, false, true, true, "NAK(reserved code 4)"},
		{0x7f, false, false, true, true, "NAK(reserved code 31)"},
		{0x80, false, false, false, false, "SYNDROME_0x80"},
		{0xe0, false, false, false, false, "SYNDROME_0xe0"},
	} {
		if got := [4]bool{c.s.IsAck(), c.s.IsRNR(), c.s.IsNak(), c.s.IsFatal()}; got != [4]bool{c.ack, c.rnr, c.nak, c.fatal} {
			t.Errorf("%#x: ack, rnr, nak, fatal = %v", uint8(c.s), got)
		}
		if c.s.String() != c.name {
			t.Errorf("%#x is called %q, want %q", uint8(c.s), c.s, c.name)
		}
	}
}
