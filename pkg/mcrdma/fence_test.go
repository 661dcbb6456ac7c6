package mcrdma

import (
	"bytes"
	"testing"
	"time"
)

// TestFence: a network holds back what a sender writes, until a second after the member's Close has
// returned, to the group and to the member alone. No byte changes, not even when the same memory has
// become another group's region.
func TestFence(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		r.post(10)
		if err := r.g.WriteImm(t.Context(), At{}, 1, r.mem.Slice(0, 100_000)); err != nil {
			t.Fatal(err)
		}
		d, m, mem := r.ds[0], r.rs[0].m, r.rs[0].mem.Bytes()
		if _, err := m.Recv(t.Context()); err != nil {
			t.Fatal(err)
		}
		u, err := r.g.Unicast(d.address)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Write(t.Context(), At{0, 300_000}, r.mem.Slice(0, 100_000)); err != nil {
			t.Fatal(err)
		}
		d.hold(true)
		if _, err := r.g.Post(t.Context(), Op{Kind: OpWrite, At: At{0, 50_000}, Pieces: []Piece{r.mem.Slice(0, 200_000)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := u.Post(t.Context(), Op{Kind: OpWrite, At: At{0, 350_000}, Pieces: []Piece{r.mem.Slice(0, 200_000)}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(mem)
		time.Sleep(time.Second)
		d.hold(false)
		late := func(when string) {
			t.Helper()
			frames := d.release()
			time.Sleep(time.Second)
			r.rs[0].c.mu.Lock()   // orders, for the race detector, what the device has done
			r.rs[0].c.mu.Unlock() //nolint:staticcheck // see above
			if !bytes.Equal(mem, before) {
				t.Errorf("%s, after %d late frames, bytes have changed", when, frames)
			}
			if r.g.Info().Path == PathSwitch && frames == 0 {
				t.Error("no frame was held back")
			}
		}
		late("closed")
		r.w.mu.Lock()
		r.w.relay = false
		r.w.mu.Unlock()
		g, err := r.c.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{d.address}, Regions: []Region{{"r", regionSize}}})
		if err != nil {
			t.Fatal(err)
		}
		r.rs[0].accept()
		late("in another group")
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestFenceUnicast: the same, of what goes to the member alone, also over TCP.
func TestFenceUnicast(t *testing.T) {
	onUnicasts(t, func(t *testing.T, r *rig, u *Unicast) {
		if err := u.Write(t.Context(), At{}, r.mem.Slice(0, 1000)); err != nil {
			t.Fatal(err)
		}
		d, m, mem := r.ds[0], r.rs[0].m, r.rs[0].mem.Bytes()
		d.hold(true)
		if _, err := u.Post(t.Context(), Op{Kind: OpWrite, At: At{0, 50_000}, Pieces: []Piece{r.mem.Slice(0, 200_000)}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(mem)
		d.hold(false)
		d.release()
		time.Sleep(time.Second)
		r.rs[0].c.mu.Lock()   // orders, for the race detector, what the device has done
		r.rs[0].c.mu.Unlock() //nolint:staticcheck // see above
		if !bytes.Equal(mem, before) {
			t.Error("bytes have changed")
		}
	})
}

// TestRegionAtAnyTime: Region can be called while writes come, and while the member ends.
func TestRegionAtAnyTime(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		r.post(1)
		m := r.rs[0].m
		done := make(chan struct{})
		go func() {
			defer close(done)
			for m.Err() == nil {
				for range 100 {
					if len(m.Region(0)) != regionSize {
						t.Error("another region")
						return
					}
				}
				time.Sleep(time.Microsecond)
			}
		}()
		if err := r.g.WriteImm(t.Context(), At{}, 1, r.mem.Slice(0, 1000)); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
}
