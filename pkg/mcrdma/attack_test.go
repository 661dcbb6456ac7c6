package mcrdma

import (
	"fmt"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/internal/unicast"
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

// TestAttackOnUnicast: a host that is not the sender connects to the port of a member's unicast connection,
// with what is no hello, with a secret that it guesses, and endlessly without a word, also from the
// sender's address. It is turned away and counted; the connection goes on, and is made again when it was lost meanwhile.
func TestAttackOnUnicast(t *testing.T) {
	onUnicasts(t, func(t *testing.T, r *rig, u *Unicast) {
		addr := string(u.how[len(unicast.Secret{}):])
		const rounds = 20
		for n := range rounds {
			c, err := r.w.net.Dial(t.Context(), "mallory/x", addr)
			if err != nil {
				t.Fatal(err)
			}
			hello := append([]byte("MCUNI\x01"), make([]byte, 33)...)
			text := [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n and so on, so that it is long enough"), hello}[n%2]
			if _, err := c.Write(text); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("it was answered")
			}
			_ = c.Close()
			if err := u.Write(t.Context(), At{}, r.mem.Slice(0, 5000)); err != nil {
				t.Fatal(err)
			}
		}
		if n := r.rs[0].m.Info().Stats.Strangers; n != rounds {
			t.Errorf("%d strangers were counted", n)
		}
		for n := range 10 * maxCalls {
			from := []string{"mallory", r.src.address, fmt.Sprint("m", n)}[n%3]
			c, err := r.w.net.Dial(t.Context(), from+"/x", addr)
			if err != nil { // too many at a time
				time.Sleep(time.Millisecond)
				continue
			}
			defer c.Close()
		}
		r.w.net.Break(r.src.address+"/app", r.ds[0].address+"/app")
		time.Sleep(time.Second)
		begun := time.Now()
		if err := u.Write(t.Context(), At{}, r.mem.Slice(0, 5000)); err != nil || time.Since(begun) > time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}
