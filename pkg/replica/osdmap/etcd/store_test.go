package etcd

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestReconnect: however long etcd was away, it is asked again about every second. gRPC's own delays grow to two minutes.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int64
		s, err := Dial(Config{Endpoints: []string{"127.0.0.1:1"}, dial: func(context.Context, string) (net.Conn, error) {
			attempts.Add(1)
			return nil, errors.New("it is away")
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		defer asking.Wait()
		defer cancel()
		asking.Go(func() {
			for ctx.Err() == nil {
				_, _, _ = s.Get(ctx, "")
				time.Sleep(10 * time.Millisecond)
			}
		})
		time.Sleep(10 * time.Minute)
		before := attempts.Load()
		time.Sleep(time.Minute)
		if n := attempts.Load() - before; n < 50 { // of a second, and jitter
			t.Errorf("%d attempts to connect in a minute", n)
		}
	})
}
