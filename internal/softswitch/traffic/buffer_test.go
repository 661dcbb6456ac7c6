package traffic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestSizes(t *testing.T) {
	for _, c := range []Config{{Memory: Memory{Shared: -1}}, {Memory: Memory{Reserve: -1}},
		{Memory: Memory{Shared: 1 << 60}}, {Classes: -1}, {Classes: MaxClasses + 1}, {Unit: -1}, {Unit: 1 << 30}} {
		if _, err := New(c, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, c := range []Config{{}, {Classes: MaxClasses, Unit: 64, Memory: Memory{Shared: 1, Reserve: 1}}} {
		if _, err := New(c, nil); err != nil {
			t.Error(err)
		}
	}
}

// fill puts data into a port until it is full, and returns how many bytes that took.
func fill(p *Port[int], class int) (bytes int) {
	for p.Put(0, class, 1000, 0) {
		bytes += 1000
	}
	return bytes
}

// TestSharing: few busy queues get much of the shared bytes, many leave each other
// some, and what each has of its own is there in any case.
func TestSharing(t *testing.T) {
	const shared, reserve = 1_000_000, 10_000
	for _, c := range []struct{ busy, want int }{{1, 500_000}, {3, 250_000}, {9, 100_000}} {
		b, err := NewBuffer(Memory{shared, reserve})
		if err != nil {
			t.Fatal(err)
		}
		ports := make([]*Port[int], c.busy)
		for i := range ports {
			ports[i] = share(t, b, 2, Rate{PerSecond: 1})
		}
		for full := 0; full < len(ports); { // they fill in turn
			full = 0
			for _, p := range ports {
				if !p.Put(0, 0, 1000, 0) {
					full++
				}
			}
		}
		for i, p := range ports {
			if got := p.Stats(0).Waiting.Bytes; got < c.want+reserve-2000 || got > c.want+reserve+2000 {
				t.Errorf("queue %d of %d holds %d bytes, want %d", i, c.busy, got, c.want+reserve)
			}
		}
	}
	// However many are busy: each has what is its own.
	b, err := NewBuffer(Memory{shared, reserve})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		fill(share(t, b, 1, Rate{PerSecond: 1}), 0)
	}
	if got := fill(share(t, b, 1, Rate{PerSecond: 1}), 0); got < reserve {
		t.Errorf("a queue among 1000 full ones holds %d bytes", got)
	}
	if b.Free() < 0 {
		t.Errorf("%d bytes are free", b.Free())
	}
}

// TestUrgent: with all ports full and far more data than the link takes, what is in
// the upper class is not lost and waits for one frame at most, the one that is on
// its way.
func TestUrgent(t *testing.T) {
	const (
		rate  = 1_000_000_000
		data  = 1100
		small = 80
	)
	b, err := NewBuffer(Memory{Shared: 100_000, Reserve: 2000})
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		fill(share(t, b, 2, Rate{PerSecond: 1}), 0) // which stays
	}
	p := share(t, b, 2, Rate{rate, true})
	size := func(class int) int { return []int{data, small}[class] }
	var most time.Duration
	left := func(at time.Duration, _ int, s Seen) {
		if s.Class == 1 {
			most = max(most, at-s.Since)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	var now, urgent time.Duration
	for now < 100*time.Millisecond {
		now += time.Duration(r.IntN(2000)) // 9 times as much as the rate
		p.until(now, size, left)
		p.Put(now, 0, data, 0)
		if now > urgent {
			p.Put(now, 1, small, 1)
			urgent = now + 10*us
		}
	}
	p.until(1<<62, size, left)
	low, high := p.Stats(0), p.Stats(1)
	if low.Dropped < low.Queued || high.Dropped != 0 || high.Sent < 9000 || high.Sent != high.Queued {
		t.Errorf("data %+v, urgent %+v", low, high)
	}
	if frame := time.Duration(data * 8 * int(time.Second) / rate); most > frame {
		t.Errorf("an urgent packet waited for %v, and a frame of data takes %v", most, frame)
	}
}

// TestIncast: three senders have 256 KiB each for one receiver, all at once and at the speed of its
// link. The buffer holds the excess, of which 64 packets would be a fraction.
func TestIncast(t *testing.T) {
	const (
		senders, frames, bytes = 3, 256, 1098
		gap                    = bytes * 8 // ns at 1 Gb/s
	)
	for _, c := range []struct {
		memory Memory
		lost   bool
	}{{Memory{}, false}, {Memory{Shared: 1, Reserve: 64 * bytes}, true}} {
		p := open(t, c.memory, 2, Rate{1e9, true})
		none := func(time.Duration, int, Seen) {}
		size := func(int) int { return bytes }
		for i := range frames {
			now := time.Duration(i * gap)
			p.until(now, size, none)
			for range senders {
				p.Put(now, 0, bytes, 0)
			}
		}
		p.until(1<<62, size, none)
		s := p.Stats(0)
		if (s.Dropped > 0) != c.lost || s.Sent+s.Dropped != senders*frames {
			t.Errorf("%+v: %+v", c.memory, s)
		}
		if !c.lost && s.Peak.Packets < (senders-1)*frames*9/10 {
			t.Errorf("only %d packets waited", s.Peak.Packets)
		}
	}
}

// TestNoAllocs: neither queues nor drops cost memory.
func TestNoAllocs(t *testing.T) {
	p := open(t, Memory{Shared: 20_000}, 2, Rate{1e9, true})
	var now time.Duration
	step := func() {
		now += us
		for class := range 2 {
			p.Put(now, class, 1000, 0)
		}
		for {
			if _, _, ok := p.Take(now); !ok {
				break
			}
			p.Sent(1000)
		}
	}
	for range 1000 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 || p.Stats(0).Dropped == 0 {
		t.Errorf("%v allocations per packet; %+v", n, p.Stats(0))
	}
}

func BenchmarkFull(b *testing.B) {
	for _, classes := range []int{1, 2, MaxClasses} {
		b.Run(fmt.Sprint(classes, " classes"), func(b *testing.B) {
			p := open(b, Memory{Shared: 100_000}, classes, Rate{1e9, true})
			b.ReportAllocs()
			var now time.Duration
			for b.Loop() {
				now += us
				p.Put(now, 0, 1100, 0)
				if _, _, ok := p.Take(now); ok {
					p.Sent(1100)
				}
			}
		})
	}
}
