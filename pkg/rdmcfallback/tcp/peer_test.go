package tcp

import (
	"net"
	"testing"
)

// TestSameHost: both ends of a connection are on one host if their addresses say so.
func TestSameHost(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.77.1", "127.0.77.2", true},
		{"::1", "::1", true},
		{"10.0.0.1", "10.0.0.1", true},
		{"::ffff:10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"127.0.0.1", "10.0.0.1", false},
		{"fe80::1", "fe80::2", false},
	} {
		a, b := &net.TCPAddr{IP: net.ParseIP(tt.a), Port: 1}, &net.TCPAddr{IP: net.ParseIP(tt.b), Port: 2}
		if sameHost(a, b) != tt.same || sameHost(b, a) != tt.same {
			t.Errorf("%s and %s: %v", tt.a, tt.b, !tt.same)
		}
	}
	unix := &net.UnixAddr{Net: "unix", Name: "/x"}
	if sameHost(unix, unix) {
		t.Error("an address that is no IP address says nothing")
	}
}
