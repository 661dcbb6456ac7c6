package group_test

import (
	"net"
	"strconv"
	"strings"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/group"
)

// An address for relaying is what the net package takes for host:port, with both of them there.
func TestAnswerEndpoints(t *testing.T) {
	for _, s := range []string{"h2:7000", "10.1.0.11:7000", "[fe80::1]:7000", "[fe80::1%eth0]:1", "h2:65535",
		"h2", "h2:", ":7000", "h2:0", "h2:65536", "h2:-1", "h2:x", "a:b:1", "fe80::1:7000", "[fe80::1]", "[fe80::1:7000", "fe80::1]:7000", "[]:1",
		"7000", "h2:9", "h2:a", strings.Repeat("h", 298) + ":1", strings.Repeat("h", 299) + ":1"} {
		err := group.CheckAnswer(&mcrdmav1.PrepareRequest{}, &mcrdmav1.AnswerAttachRequest{Bootstrap: s, Transport: "tcp"})
		host, port, bad := net.SplitHostPort(s)
		n, notPort := strconv.ParseUint(port, 10, 16)
		want := bad == nil && host != "" && notPort == nil && n > 0 && len(s) <= 300
		if (err == nil) != want {
			t.Errorf("%q: %v, and the net package says %q %q %v", s, err, host, port, bad)
		}
	}
}
