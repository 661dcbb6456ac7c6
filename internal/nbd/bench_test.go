package nbd

import (
	"fmt"
	"io"
	"net"
	"testing"
)

// roundTrip sends a request and reads its reply.
func roundTrip(t testing.TB, c *client, request, reply []byte) {
	if _, err := c.conn.Write(request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c.in, reply); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkRequests: over a Unix socket from and to memory, with that many requests in flight.
// Allocations are those of server and client.
func BenchmarkRequests(b *testing.B) {
	m := newMemory(Info{Name: "vol", Size: 4 * mib})
	l, path := unixListener(b)
	start(b, only(m), l)
	for _, size := range []int{4096, mib} {
		for _, depth := range []int{1, 16} {
			for _, write := range []bool{false, true} {
				name, request, reply := "read", req(cmdRead, 0, 1, 0, size), dataLen+size
				if write {
					name, request, reply = "write", req(cmdWrite, 0, 1, 0, size, make([]byte, size)), simpleLen
				}
				b.Run(fmt.Sprintf("%s/%d/depth=%d", name, size, depth), func(b *testing.B) {
					conn, err := net.Dial("unix", path)
					if err != nil {
						b.Fatal(err)
					}
					c := newClient(b, conn).enter("vol", true)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					places := make(chan struct{}, depth)
					got := make(chan error, 1)
					b.ResetTimer()
					go func() {
						buf := make([]byte, reply)
						for range b.N {
							if _, err := io.ReadFull(c.in, buf); err != nil {
								got <- err
								return
							}
							<-places
						}
						got <- nil
					}()
					for range b.N {
						places <- struct{}{}
						if _, err := conn.Write(request); err != nil {
							b.Fatal(err)
						}
					}
					if err := <-got; err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
}
