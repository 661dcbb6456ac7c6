package softroce

import "testing"

// A whole window fits into the buffer of a veth, even if that has not freed the places of received
// packets, and a few others wait there, too.
func TestWindowFitsVeth(t *testing.T) {
	const holds, unfreed, others = 256, 15, 10 // of linux/drivers/net/veth.c and ptr_ring.h
	for mtu := 256; mtu <= 4096; mtu *= 2 {
		if n, every := window(0, mtu, 64<<20); n+unfreed+others > holds || n < 100 || every > n/4 {
			t.Errorf("MTU %d: a window of %d packets, an acknowledgement for every %d", mtu, n, every)
		}
	}
}
