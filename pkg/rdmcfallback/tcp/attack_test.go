package tcp

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// TestAttackOnBootstrap: while members wait for each other, a host that is none of them
// connects to their ports: with other protocols, with greetings of another group, and with
// more silent connections than a member reads. Each is turned away and counted, the members
// meet meanwhile, and their messages to each other arrive.
func TestAttackOnBootstrap(t *testing.T) {
	const silent = maxFromOne + 100
	var listeners [2]net.Listener
	var members []string
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		members = append(members, listeners[i].Addr().String())
	}
	var strangers [2]atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), greetingTime-500*time.Millisecond) // then the silent ones are given up
	defer cancel()
	var got [2]*Transport
	var errs [2]error
	var wg sync.WaitGroup
	join := func(i int) {
		wg.Go(func() {
			got[i], errs[i] = Connect(ctx, Options{Members: members, Self: i, Group: 0x5eed, Epoch: 3, Listener: listeners[i],
				Stranger: func(net.Addr, error) { strangers[i].Add(1) }})
		})
	}
	mallory := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 66, 6, 6)}}
	call := func(text string) {
		t.Helper()
		c, err := mallory.DialContext(ctx, "tcp", members[0])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	join(0)
	call("GET / HTTP/1.1\r\n\r\n")
	for _, group := range []uint64{0, 1, 0x5eee} {
		for _, from := range []int{0, 1, 7} {
			call(string((&greeting{Kind: greetControl, Group: group, Epoch: 3, From: from, To: 0, Run: 9, Members: []string{members[0], "127.66.6.6:1"}}).encode()))
		}
	}
	const rude = 1 + 3*3
	for strangers[0].Load() < rude && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	for range silent {
		call("")
	}
	join(1)
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("member %d: %v", i, err)
		}
		defer func() { _ = got[i].Close() }()
	}
	if n := strangers[0].Load(); n < rude+silent-maxFromOne {
		t.Errorf("%d strangers were counted, want %d at least", n, rude+silent-maxFromOne)
	}
	if n := strangers[1].Load(); n != 0 {
		t.Errorf("%d strangers at the member that was not attacked", n)
	}
	if err := got[0].Tell(1, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	events := make([]rdmcfallback.Event, 1)
	if n, err := got[1].Events(t.Context(), events); err != nil || n != 1 || events[0].Kind != rdmcfallback.EventTold || !strings.Contains(string(events[0].Msg), "hello") {
		t.Errorf("%v, %v", events, err)
	}
}
