package udplink

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func TestParseOptions(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Options
		err  string
	}{
		{"", Options{}, ""},
		{"rx=auto&gso=on&gro=on", Options{}, ""},
		{"rx=udp&gso=off&gro=off&batch=1&rcvbuf=65536&sndbuf=4096&poll=off",
			Options{RX: RXUDP, NoGSO: true, NoGRO: true, Batch: 1, RcvBuf: 65536, SndBuf: 4096, Poll: -1}, ""},
		{"rx=raw&poll=20us", Options{RX: RXRaw, Poll: 20 * time.Microsecond}, ""},
		{"rx=tcp", Options{}, "rx=tcp"},
		{"gso=no", Options{}, "gso=no"},
		{"batch=0", Options{}, "1 to 64"},
		{"batch=65", Options{}, "1 to 64"},
		{"rcvbuf=x", Options{}, "rcvbuf=x"},
		{"poll=1s", Options{}, "poll=1s"},
		{"poll=0", Options{}, "poll=0"},
	} {
		q, _ := url.ParseQuery(c.in + "&other=1")
		o, err := ParseOptions(q)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: error %v, want one with %q", c.in, err, c.err)
			}
		case err != nil:
			t.Errorf("%q: %v", c.in, err)
		case o != c.want:
			t.Errorf("%q: %+v, want %+v", c.in, o, c.want)
		case !reflect.DeepEqual(q, url.Values{"other": {"1"}}):
			t.Errorf("%q: left %v", c.in, q)
		}
	}
}

// FuzzControl: ancillary data are parsed without a panic.
func FuzzControl(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 104, 0, 0, 0, 0, 4, 0, 0}, 20)
	f.Add([]byte{17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 42}, 24)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		var c rxControl
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)), b)
		if n >= 0 {
			c.parse(n)
		}
	})
}
