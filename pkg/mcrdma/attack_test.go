package mcrdma

import (
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestAttackOnRelay: a host that is not in the group connects to the ports at which its
// members listen, again and again, and sends various data. It is turned away and counted;
// the group's data arrives, and the group is not formed anew.
func TestAttackOnRelay(t *testing.T) {
	for _, name := range []string{"tcp", "rdma"} {
		testenv.Bubble(t, name, func(t *testing.T) {
			r := newRig(t, 2, true, GroupConfig{Tuning: Tuning{Transport: name}})
			r.g.mu.Lock()
			members := r.g.life.info.GetRelay().GetBootstrap()
			r.g.mu.Unlock()
			if len(members) != 3 {
				t.Fatalf("members listen at %q", members)
			}
			const rounds = 20
			for n := range rounds {
				for _, addr := range members {
					c, err := r.w.net.Dial(t.Context(), "mallory/x", addr)
					if err != nil {
						t.Fatal(err)
					}
					text := []string{"GET / HTTP/1.1\r\n\r\n", "RDMC/TCP\x00\x02\xff\xff\xff\xff", "RDMC/TCP\x00\x09\x00\x00\x00\x00"}[n%3]
					if _, err := c.Write([]byte(text)); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = c.Close() })
				}
				fillRandom(r.mem.Bytes(), uint64(n))
				if err := r.g.Write(t.Context(), At{}, r.mem.Slice(0, 5000)); err != nil {
					t.Fatal(err)
				}
				r.same(0, 5000)
			}
			eventually(t, "the strangers are counted", func() bool { return r.g.Info().Stats.Strangers == rounds })
			if i := r.g.Info(); i.Formation != 1 || len(i.Members) != 2 {
				t.Errorf("the group has changed: %+v", i)
			}
		})
	}
}
