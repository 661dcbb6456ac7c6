package udplink

import (
	"maps"
	"net/url"
	"slices"
	"testing"
	"time"
)

// TestOptionErrors: an error names the option and says what is allowed.
func TestOptionErrors(t *testing.T) {
	for in, want := range map[string]string{
		"rx=tcp":         "udplink: option rx=tcp: want auto, raw or udp",
		"rx":             "udplink: option rx=: want auto, raw or udp",
		"rx=RAW":         "udplink: option rx=RAW: want auto, raw or udp",
		"gso=no":         "udplink: option gso=no: want on or off",
		"gro":            "udplink: option gro=: want on or off",
		"batch=0":        "udplink: option batch=0: want a number from 1 to 64",
		"batch=-1":       "udplink: option batch=-1: want a number from 1 to 64",
		"batch=65":       "udplink: option batch=65: want a number from 1 to 64",
		"batch=1e1":      "udplink: option batch=1e1: want a number from 1 to 64",
		"rcvbuf=4M":      "udplink: option rcvbuf=4M: want a number from 1 to 1073741824",
		"sndbuf=1<<20":   "udplink: option sndbuf=1<<20: want a number from 1 to 1073741824",
		"poll=20":        "udplink: option poll=20: want off or a duration up to 10ms",
		"poll=0s":        "udplink: option poll=0s: want off or a duration up to 10ms",
		"poll=-1us":      "udplink: option poll=-1us: want off or a duration up to 10ms",
		"poll=10.001ms":  "udplink: option poll=10.001ms: want off or a duration up to 10ms",
		"rx=udp&rx=none": "udplink: option rx=none: want auto, raw or udp",
	} {
		q, err := url.ParseQuery(in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseOptions(q); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
}

func TestRXModeNames(t *testing.T) {
	for m, want := range map[RXMode]string{RXAuto: "auto", RXRaw: "raw", RXUDP: "udp", 3: "RXMODE_UNKNOWN"} {
		if m.String() != want {
			t.Errorf("mode %d is %q, want %q", m, m, want)
		}
	}
}

// FuzzOptions: whatever a device's name says, what is accepted is in range, and
// other options are left alone.
func FuzzOptions(f *testing.F) {
	f.Add("rx=udp&gso=off&gro=on&batch=64&rcvbuf=1073741824&sndbuf=1&poll=10ms&mtu=9000")
	f.Add("rx=&gso&batch=&poll=off&poll=1ns")
	f.Add("a=1&batch=00064&rcvbuf=%2B7")
	own := []string{"rx", "gso", "gro", "batch", "rcvbuf", "sndbuf", "poll"}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := url.ParseQuery(s)
		if err != nil {
			return
		}
		others := maps.Clone(q)
		maps.DeleteFunc(others, func(k string, _ []string) bool { return slices.Contains(own, k) })
		o, err := ParseOptions(q)
		if err != nil {
			return
		}
		if !maps.EqualFunc(q, others, slices.Equal) {
			t.Errorf("left %v, want %v", q, others)
		}
		const most = 1 << 30
		if o.RX > RXUDP || o.Batch < 0 || o.Batch > 64 || o.RcvBuf < 0 || o.RcvBuf > most || o.SndBuf < 0 || o.SndBuf > most ||
			o.Poll < -1 || o.Poll > 10*time.Millisecond {
			t.Errorf("accepted %+v", o)
		}
	})
}
