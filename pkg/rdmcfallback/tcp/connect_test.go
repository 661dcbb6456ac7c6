package tcp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// wantAll expects the same kind of error, and the text, from every member.
func wantAll(t *testing.T, errs []error, sentinel error, text string) {
	t.Helper()
	for i, err := range errs {
		if !errors.Is(err, sentinel) || !strings.Contains(err.Error(), text) {
			t.Errorf("member %d: %v, want %q with %q", i, err, sentinel, text)
		}
	}
}

func TestBootstrapDisagreement(t *testing.T) {
	const n = 5
	for _, odd := range []int{0, 2, n - 1} { // the member that has the wrong options
		for _, c := range []struct {
			name   string
			change func(o *tcp.Options)
			want   error
			text   string
		}{
			{"order", func(o *tcp.Options) {
				o.Members = slices.Clone(o.Members)
				a, b := (o.Self+1)%n, (o.Self+2)%n
				o.Members[a], o.Members[b] = o.Members[b], o.Members[a]
			}, tcp.ErrMismatch, " is \"127.0.0.1:"},
			{"group", func(o *tcp.Options) { o.Group = 9 }, tcp.ErrMismatch, "group "},
			{"one more", func(o *tcp.Options) { o.Members = append(slices.Clone(o.Members), "127.0.0.1:1") }, tcp.ErrMismatch, " members here, "},
		} {
			t.Run(c.name, func(t *testing.T) {
				ls, addrs := listen(t, n)
				_, errs := connectAll(t, n, func(i int) tcp.Options {
					o := tcp.Options{Members: addrs, Self: i, Listener: ls[i]}
					if i == odd {
						c.change(&o)
					}
					return o
				})
				wantAll(t, errs, c.want, c.text)
			})
		}
	}
}

// Two processes are the same member. The first may win everywhere, and then only the second
// learns of it; otherwise all do.
func TestBootstrapDuplicate(t *testing.T) {
	const n = 4
	ls, addrs := listen(t, n)
	more, _ := listen(t, 1)
	_, errs := connectAll(t, n+1, func(i int) tcp.Options {
		if i == n {
			return tcp.Options{Members: addrs, Self: 2, Listener: more[0]}
		}
		return tcp.Options{Members: addrs, Self: i, Listener: ls[i]}
	})
	failed := 0
	for i, err := range errs {
		if err != nil {
			failed++
			if !errors.Is(err, tcp.ErrDuplicate) && !errors.Is(err, tcp.ErrFailed) {
				t.Errorf("member %d: %v", i, err)
			}
		}
	}
	if failed == 0 || failed == 1 && errs[2] == nil && errs[n] == nil {
		t.Errorf("errors %v", errs)
	}
}

func TestBootstrapMissing(t *testing.T) {
	ls, addrs := listen(t, 4)
	check(t, ls[1].Close())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var met sync.Map
	var meetings atomic.Int32
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for _, i := range []int{0, 2, 3} {
		wg.Go(func() {
			_, errs[i] = tcp.Connect(ctx, tcp.Options{Members: addrs, Self: i, Listener: ls[i],
				Progress: func(peer int) {
					if met.Store([2]int{i, peer}, true); meetings.Add(1) == 3*2 {
						cancel() // all that are there have met
					}
				}})
		})
	}
	wg.Wait()
	for _, i := range []int{0, 2, 3} {
		if !errors.Is(errs[i], tcp.ErrMissing) || !strings.Contains(errs[i].Error(), "1 of 4: member 1 ("+addrs[1]+")") {
			t.Errorf("member %d: %v", i, errs[i])
		}
		for _, j := range []int{0, 2, 3} {
			if _, ok := met.Load([2]int{i, j}); ok != (i != j) {
				t.Errorf("member %d met %d: %v", i, j, ok)
			}
		}
	}
}

// Strangers that call are turned away, and named if a member is missing.
func TestBootstrapStrangers(t *testing.T) {
	ls, addrs := listen(t, 2)
	talk := func(text string) {
		c, err := net.Dial("tcp", addrs[0])
		check(t, err)
		defer c.Close()
		_, err = c.Write([]byte(text))
		check(t, err)
		_, _ = io.Copy(io.Discard, c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := tcp.Connect(ctx, tcp.Options{Members: addrs, Self: 0, Listener: ls[0]})
		done <- err
	}()
	talk("GET / HTTP/1.1\r\n\r\n")
	talk("RDMC/TCP\x00\x02\x00\x00\x00\x00")
	cancel()
	err := <-done
	for _, text := range []string{"1 of 2: member 1", "has not called", `called: tcp: the peer violates the protocol: not a member`, `"GET / `,
		"speaks version 2, this is 3", context.Canceled.Error()} {
		if !errors.Is(err, tcp.ErrMissing) || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	check(t, ls[1].Close())
}

// Something else listens at a member's address: all members learn of it.
func TestBootstrapWrongService(t *testing.T) {
	for _, c := range []struct {
		says string
		want error
	}{
		{"220 mail.example ESMTP ready\r\n", tcp.ErrProtocol},
		{"RDMC/TCP\x00\x09\x00\x00\x00\x00", tcp.ErrVersion},
		{"RDMC/TCP\x00\x03\xff\x00\x00\x00", tcp.ErrProtocol},
	} {
		const n = 4
		ls, addrs := listen(t, n)
		go func() {
			for {
				c0, err := ls[0].Accept()
				if err != nil {
					return
				}
				_, _ = c0.Write([]byte(c.says))
				_, _ = io.CopyN(io.Discard, c0, 1)
				_ = c0.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c0)
				_ = c0.Close()
			}
		}()
		_, errs := connectAll(t, n-1, func(i int) tcp.Options {
			return tcp.Options{Members: addrs, Self: i + 1, Listener: ls[i+1]}
		})
		wantAll(t, errs, c.want, "member 0 ("+addrs[0]+")")
		check(t, ls[0].Close())
	}
}

// A member of the next epoch waits for one that is still in the last; one of the
// last doesn't get into the next.
func TestEpochs(t *testing.T) {
	ls, addrs := listen(t, 2)
	ts, errs := connectAll(t, 2, func(i int) tcp.Options {
		return tcp.Options{Members: addrs, Self: i, Epoch: 4, Listener: ls[i]}
	})
	check(t, errors.Join(errs...))
	check(t, ts[1].Close())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error)
	go func() {
		x, err := tcp.Connect(ctx, tcp.Options{Members: addrs, Self: 1, Epoch: 5})
		if err == nil {
			err = x.Close()
		}
		done <- err
	}()
	// Member 0 leaves epoch 4 when member 1 has been turned away once; here that is when it
	// learns that member 1 went, or later.
	(&inbox{t: t, x: ts[0]}).next()
	check(t, ts[0].Close())
	x, err := tcp.Connect(ctx, tcp.Options{Members: addrs, Self: 0, Epoch: 5})
	check(t, err)
	check(t, <-done)
	check(t, x.Close())

	ls, addrs = listen(t, 3)
	errs = make([]error, 3)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = tcp.Connect(ctx, tcp.Options{Members: addrs, Self: i, Epoch: uint64(5 - i/2), Listener: ls[i]})
			if i == 2 {
				cancel() // the others would wait for it
			}
		})
	}
	wg.Wait()
	if !errors.Is(errs[2], tcp.ErrStale) {
		t.Errorf("member 2, of epoch 4: %v", errs[2])
	}
	for _, err := range errs[:2] { // until the context ends, it may come
		if !errors.Is(err, tcp.ErrMissing) || !strings.Contains(err.Error(), "member 2") {
			t.Errorf("a member of epoch 5: %v", err)
		}
	}
}

func TestOptions(t *testing.T) {
	good := []string{"127.0.0.1:1", "127.0.0.1:2"}
	for _, c := range []struct {
		o    tcp.Options
		text string
	}{
		{tcp.Options{}, "0 members"},
		{tcp.Options{Members: good[:1]}, "1 members"},
		{tcp.Options{Members: good, Self: 2}, "member 2 of 2"},
		{tcp.Options{Members: good, Self: -1}, "member -1 of 2"},
		{tcp.Options{Members: []string{"127.0.0.1:1", "127.0.0.1"}}, "member 1: "},
		{tcp.Options{Members: []string{"a:1", "b:1", "a:1"}}, "members 0 and 2 both have the address a:1"},
		{tcp.Options{Members: good, Hello: make([]byte, tcp.MaxHello+1)}, "hello"},
		{tcp.Options{Members: good, DeadAfter: 1}, "DeadAfter is 1ns"},
		{tcp.Options{Members: []string{"a:1", strings.Repeat("b", 1<<19) + ":1"}}, "addresses take"},
		{tcp.Options{Members: slices.Repeat(good, tcp.MaxMembers)}, "8192 members"},
	} {
		if _, err := tcp.Connect(t.Context(), c.o); !errors.Is(err, tcp.ErrOptions) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("error %v, want %q", err, c.text)
		}
	}
	// The largest hello passes.
	ls, addrs := listen(t, 2)
	ts, errs := connectAll(t, 2, func(i int) tcp.Options {
		return tcp.Options{Members: addrs, Self: i, Listener: ls[i], Hello: bytes.Repeat([]byte{byte(i)}, tcp.MaxHello)}
	})
	check(t, errors.Join(errs...))
	if !bytes.Equal(ts[0].Hello(1), bytes.Repeat([]byte{1}, tcp.MaxHello)) {
		t.Error("the hello changed on its way")
	}
}
