package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
)

// makeVeths puts this thread into its own network namespace and makes two veth pairs there: h0–s0
// and h1–s1.
func makeVeths() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces take root: run this as root")
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	for _, i := range []string{"0", "1"} {
		la := netlink.NewLinkAttrs()
		la.Name = "h" + i
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: la, PeerName: "s" + i}); err != nil {
			return fmt.Errorf("veth: %w", err)
		}
		for _, name := range []string{"h" + i, "s" + i} {
			// Without router solicitations and the like among the frames.
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0); err != nil && !os.IsNotExist(err) {
				return err
			}
			l, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("veth %s: %w", name, err)
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return fmt.Errorf("veth %s: %w", name, err)
			}
		}
	}
	return nil
}

// A traffic sends frames at one end and counts them at the other.
type traffic struct {
	tx, rx ports.Port
	frames [][]byte
	got    atomic.Int64
	done   chan struct{}
}

const burst = 32

func newTraffic(size int) (*traffic, error) {
	tx, err := ports.OpenInterface("h0", ports.Options{})
	if err != nil {
		return nil, err
	}
	rx, err := ports.OpenInterface("h1", ports.Options{Buffer: 64 << 20})
	if err != nil {
		tx.Close()
		return nil, err
	}
	t := &traffic{tx: tx, rx: rx, done: make(chan struct{})}
	for range burst {
		f := make([]byte, size)
		copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0})
		binary.BigEndian.PutUint16(f[16:], uint16(size-14))
		f[22], f[23] = 64, 17
		copy(f[26:], []byte{10, 1, 0, 1, 10, 9, 8, 7})
		t.frames = append(t.frames, f)
	}
	go t.count()
	return t, nil
}

func (t *traffic) count() {
	defer close(t.done)
	bufs := make([][]byte, ports.MaxBatch)
	for i := range bufs {
		bufs[i] = make([]byte, 0, 2048)
	}
	for {
		n, err := t.rx.Recv(bufs)
		if err != nil {
			return
		}
		own := 0
		for _, b := range bufs[:n] {
			if len(b) == len(t.frames[0]) && [4]byte(b[30:]) == [4]byte{10, 9, 8, 7} {
				own++
			}
		}
		t.got.Add(int64(own))
	}
}

func (t *traffic) close() {
	t.tx.Close()
	t.rx.Close()
	<-t.done
}

// stalled is the time without arrivals after which frames count as lost.
const stalled = 200 * time.Millisecond

// closed sends n frames at a time, as long as fewer than window are in flight, for a while, and
// returns how many arrived and how many did not.
func (t *traffic) closed(window, n int, span time.Duration) (came, lost int, took time.Duration) {
	base := t.got.Load()
	var sent int64
	var missing int64 // given up
	start := time.Now()
	moved, last := start, int64(0)
	for {
		now := time.Now()
		got := t.got.Load() - base
		if got != last {
			moved, last = now, got
		}
		if now.Sub(start) >= span {
			break
		}
		switch under := sent - got - missing; {
		case under > 0 && now.Sub(moved) > stalled:
			missing += under
		case under+int64(n) <= int64(window):
			sent += int64(t.tx.Send(t.frames[:n]))
		default:
			runtime.Gosched()
		}
	}
	took = time.Since(start)
	came = int(t.got.Load() - base)
	t.settle(base + sent)
	return came, int(sent - (t.got.Load() - base)), took
}

// settle waits until that many frames have arrived in all, or no more arrive.
func (t *traffic) settle(want int64) {
	last, moved := t.got.Load(), time.Now()
	for last < want && time.Since(moved) < stalled {
		runtime.Gosched()
		if got := t.got.Load(); got != last {
			last, moved = got, time.Now()
		}
	}
}

// measure runs a contestant once.
func (t *traffic) measure(role string, o options, profile string) (r result, err error) {
	c, err := start(role, profile)
	if err != nil {
		return r, err
	}
	defer c.End()
	t.closed(o.window, burst, o.span/10) // warm up
	before, err := c.CPU()
	if err != nil {
		return r, err
	}
	came, lost, took := t.closed(o.window, burst, o.span)
	after, err := c.CPU()
	if err != nil {
		return r, err
	}
	pings, lostPings, pingTime := t.closed(1, 1, o.span/5)
	if came == 0 || pings == 0 {
		return r, errors.New("nothing came out at the other end")
	}
	_, err = c.Stop()
	return result{pps: float64(came) / took.Seconds(), cpu: (after - before).Seconds() * 1e6 / float64(came),
		latency: pingTime.Seconds() * 1e6 / float64(pings), lost: lost + lostPings}, err
}

// offer sends at a fixed rate through the switch, and returns how many frames it sent, how many did
// not arrive, and what the switch reports about them.
func (t *traffic) offer(o options) (sent, lost int, drops string, err error) {
	c, err := start("switch", "")
	if err != nil {
		return 0, 0, "", err
	}
	defer c.End()
	t.closed(o.window, burst, o.span/10)
	base := t.got.Load()
	begin := time.Now()
	for {
		passed := time.Since(begin)
		if passed > 3*o.span {
			break
		}
		if due := int(passed.Seconds() * float64(o.rate)); due > sent {
			sent += t.tx.Send(t.frames[:min(due-sent, burst)])
		} else {
			runtime.Gosched()
		}
	}
	t.settle(base + int64(sent))
	lost = sent - int(t.got.Load()-base)
	drops, err = c.Stop()
	return sent, lost, drops, err
}
