package links

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A router's link is up while it answers ARP for its address, and says its MAC.
func TestRouter(t *testing.T) {
	start := time.Unix(0, 0)
	own, router := netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("10.0.0.1")
	mac, theirs, other := switchspec.MAC{2, 0, 0, 0, 0, 1}, switchspec.MAC{2, 0, 0, 0, 0, 2}, switchspec.MAC{2, 0, 0, 0, 0, 3}
	m := New(Config{Name: "torA", Rand: steady(), Ports: []Port{{Number: 9, MAC: mac, Expect: "r", Router: router, Own: own}}}, start)
	now := start
	tick := func(d time.Duration) (asked int, events string) {
		t.Helper()
		now = now.Add(d)
		send, list, next := m.Tick(now)
		for _, f := range send {
			a, err := ParseARP(f.Bytes)
			if want := (ARP{Op: ARPRequest, SenderMAC: mac, SenderAddr: own, TargetAddr: router}); err != nil || a != want || f.Port != 9 {
				t.Errorf("sent at port %d: %+v, %v", f.Port, a, err)
			}
		}
		if wait := next.Sub(now); wait <= 0 || wait > time.Second {
			t.Errorf("next in %v", wait)
		}
		for _, e := range list {
			events += fmt.Sprintf("%d %v %v %s;", e.Port, e.Up, e.Peer, e.Name)
		}
		return len(send), events
	}
	want := func(asked int, events string) func(int, string) {
		return func(a int, e string) {
			t.Helper()
			if a != asked || e != events {
				t.Errorf("at %v: asked %d times, events %q; want %d, %q", now.Sub(start), a, e, asked, events)
			}
		}
	}
	answer := ARP{Op: ARPReply, SenderMAC: theirs, SenderAddr: router, TargetMAC: mac, TargetAddr: own}
	want(1, "")(tick(0))
	// None of these is its answer.
	for _, a := range []ARP{{Op: ARPRequest, SenderMAC: theirs, SenderAddr: router}, {Op: ARPReply, SenderMAC: theirs, SenderAddr: own}} {
		m.ReceiveARP(now, 9, a)
	}
	m.ReceiveARP(now, 8, answer)
	want(0, "")(tick(0))
	m.ReceiveARP(now, 9, answer)
	want(0, "9 true 02:00:00:00:00:02 r;")(tick(0))
	if s := m.States()[0]; s.State != Up || s.Peer != theirs || s.Reason != "" {
		t.Errorf("%+v", s)
	}
	answer.SenderMAC = other
	m.ReceiveARP(now, 9, answer)
	want(1, "9 true 02:00:00:00:00:03 r;")(tick(time.Second))
	want(1, "")(tick(time.Second))
	m.ReceiveARP(now, 9, answer) // two were lost
	want(1, "")(tick(time.Second))
	want(1, "")(tick(time.Second))
	want(1, "")(tick(time.Second))
	want(1, "9 false 02:00:00:00:00:03 r;")(tick(time.Second))
	if s := m.States()[0]; s.State != Down || !strings.Contains(s.Reason, "has not answered ARP for 10.0.0.1 for 3s") {
		t.Errorf("%+v", s)
	}
	want(1, "")(tick(time.Second))
	m.ReceiveARP(now, 9, answer)
	want(0, "9 true 02:00:00:00:00:03 r;")(tick(0))
	if err := m.Receive(now, 9, nil); !errors.Is(err, ErrPort) {
		t.Errorf("a hello: %v", err)
	}
	if last := m.Close(now, time.Minute); len(last) != 0 {
		t.Errorf("at the end it sends %d frames", len(last))
	}
	m.ReceiveARP(now, 9, answer)
}
