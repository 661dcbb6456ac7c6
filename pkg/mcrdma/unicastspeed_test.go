package mcrdma

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// BenchmarkUnicast has the latency of the unicast connection beside that of a group's 64-byte write, in turns, in any order:
// of a counter, from SetCounter until the sender's WaitCounter has returned, of a message of the member, from
// Send until Recv has returned, and of a 64-byte write and read of one member. The metrics are medians, their
// ratios to the group's write, and those of the fastest tenth, which a busy machine disturbs less.
func BenchmarkUnicast(b *testing.B) {
	ctx := context.Background()
	for name, device := range map[string]bool{"queuepair": true, "tcp": false} {
		b.Run(name, func(b *testing.B) {
			w, ds := newWorldOn(b, 2, "127.%d.%d.%d", "softroce:%s?rx=udp")
			w.noDevice = !device
			r := newRigIn(w, ds, !device, GroupConfig{})
			u, err := r.g.Unicast(r.ds[0].address)
			if err != nil {
				b.Fatal(err)
			}
			m, piece := r.rs[0].m, r.mem.Slice(0, 64)
			message, sent := make([]byte, 64), make(chan error, 1)
			count := uint64(0)
			steps := []struct {
				name string
				do   func() error
			}{
				{"group", func() error { return r.g.Write(ctx, At{}, piece) }},
				{"counter", func() error {
					count++
					if err := m.SetCounter(0, count); err != nil {
						return err
					}
					return u.WaitCounter(ctx, 0, count)
				}},
				{"message", func() error {
					go func() { sent <- m.Send(ctx, message) }()
					_, err := u.Recv(ctx)
					return err
				}},
				{"write", func() error { return u.Write(ctx, At{}, piece) }},
				{"read", func() error { return u.Read(ctx, At{}, piece) }},
			}
			took := make([][]time.Duration, len(steps))
			for n := 0; b.Loop(); n++ {
				for _, i := range rand.Perm(len(steps)) {
					s, begun := steps[i], time.Now()
					if err := s.do(); err != nil {
						b.Fatal(s.name, err)
					}
					if n > 0 { // the first connects
						took[i] = append(took[i], time.Since(begun))
					}
					if s.name == "message" {
						if err := <-sent; err != nil {
							b.Fatal(err)
						}
					}
				}
			}
			var group [2]float64
			for i, s := range steps {
				if len(took[i]) == 0 {
					return
				}
				slices.Sort(took[i])
				for j, at := range []int{len(took[i]) / 2, len(took[i]) / 10} {
					us := took[i][at].Seconds() * 1e6
					if i == 0 {
						group[j] = us
					}
					if j == 0 {
						b.ReportMetric(us, s.name+"-µs")
					}
					b.ReportMetric(us/group[j], s.name+[]string{"/group", "/group-fastest"}[j])
				}
			}
		})
	}
}
