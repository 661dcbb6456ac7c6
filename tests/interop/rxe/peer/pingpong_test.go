package main

import (
	"net/netip"
	"testing"

	"github.com/mcrdma/mcrdma/tests/interop/rxe/peerproto"
)

func TestPingpongAddr(t *testing.T) {
	e := peerproto.Endpoint{Addr: netip.MustParseAddr("10.77.0.2"), QPN: 0x12, PSN: 0xabcdef}
	const text = "0000:000012:abcdef:00000000000000000000ffff0a4d0002\x00"
	if got := string(pingpongAddr(e)); got != text {
		t.Errorf("got %q, want %q", got, text)
	}
	if got, err := parsePingpong([]byte(text)); err != nil || got != e {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{
		"", "\x00", text[:len(text)-1], text + "\x00",
		"0000:000012:abcdef:fe80000000000000505400fffe770002\x00", // no IPv4
		"0000:000012:abcdef:0000000000000000000zffff0a4d0002\x00",
		"0000:zzzzzz:abcdef:00000000000000000000ffff0a4d0002\x00",
	} {
		if got, err := parsePingpong([]byte(bad)); err == nil {
			t.Errorf("%q is accepted as %+v", bad, got)
		}
	}
}

func FuzzParsePingpong(f *testing.F) {
	f.Add([]byte("0000:000012:abcdef:00000000000000000000ffff0a4d0002\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parsePingpong(b)
		if err != nil {
			return
		}
		if again, err := parsePingpong(pingpongAddr(e)); err != nil || again != e {
			t.Errorf("%q is %+v, which comes back as %+v, %v", b, e, again, err)
		}
	})
}
