package etcd

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestReconnect: however long etcd was away, it is found again within about a second.
func TestReconnect(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := Dial(Config{Endpoints: []string{l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go func() { _, _, _ = s.Get(ctx, "") }()
	for begun, n := time.Now(), 1; ; n++ {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		// gRPC's own delays are 1 s, and each 1.6 times the last one, up to 2 minutes.
		if d := time.Since(begun); n == 8 && d < 8*time.Second {
			return
		} else if d > 15*time.Second {
			t.Fatalf("%d attempts to connect in %v", n, d)
		}
	}
}
