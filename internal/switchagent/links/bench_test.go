package links

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// A switch with 64 links that are up: the cost of each hello that comes in, and of the
// one that goes out for it.
func BenchmarkManager(b *testing.B) {
	const ports = 64
	now := time.Unix(0, 0)
	var m [2]*Manager
	for i, name := range []string{"A", "B"} {
		cfg := Config{Name: name, Rand: rand.New(rand.NewPCG(uint64(i), 0))}
		for p := range uint16(ports) {
			cfg.Ports = append(cfg.Ports, Port{Number: p, MAC: switchspec.MAC{2, byte(i), byte(p)}, Expect: string('B' - rune(i))})
		}
		m[i] = New(cfg, now)
	}
	hellos := 0
	var tick func(i int)
	tick = func(i int) {
		send, _, _ := m[i].Tick(now)
		for _, f := range send {
			hellos++
			if err := m[1-i].Receive(now, f.Port, f.Bytes); err != nil {
				b.Fatal(err)
			}
			tick(1 - i)
		}
	}
	exchange := func() {
		now = now.Add(10 * time.Millisecond)
		tick(0)
		tick(1)
	}
	for range 100 {
		exchange()
	}
	for _, s := range m[0].States() {
		if s.State != Up {
			b.Fatalf("%+v", s)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	hellos = 0
	for b.Loop() {
		exchange()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(hellos), "ns/hello")
	for _, s := range m[0].States() {
		if s.State != Up {
			b.Fatalf("%+v", s)
		}
	}
}

func BenchmarkReceive(b *testing.B) {
	s, _, _ := two(b, 1)
	var frame []byte
	for frame == nil {
		s.now = s.now.Add(time.Millisecond)
		send, _, _ := s.nodes["B"].Tick(s.now)
		for _, f := range send {
			if f.Port == 1 {
				frame = f.Bytes
			}
		}
	}
	m := s.nodes["A"]
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Receive(s.now, 1, frame); err != nil {
			b.Fatal(err)
		}
	}
}
