package library

import (
	"testing"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// TestToldStays: a receiver learned of two WRITEs that another one lacks when the group is
// formed anew, because a third joins. If both write the same bytes, the first receiver does
// not see the first of them again: hosts relay until the others have caught up. That
// nothing is written again can be seen, because the receiver has changed its bytes.
func TestToldStays(t *testing.T) {
	for name, apart := range map[string]uint64{"same bytes": 0, "other bytes": 1} {
		t.Run(name, func(t *testing.T) {
			ways(t, func(t *testing.T, l *lab, cfg mcrdma.GroupConfig) {
				cfg.MinSize, cfg.Algorithm = 2, "sequential"
				tm := l.group("s", l.hosts[0], l.hosts[1:3], 1<<20, 0, cfg)
				spare := l.hosts[3].receive("s", 1<<20, 0)
				ahead, behind := tm.apps[0], tm.apps[1]
				post := func(a *app) {
					for range 2 {
						l.must(a.m.PostRecv(mcrdma.Piece{}))
					}
				}
				copy(tm.mem.Bytes(), "ab")
				post(ahead)
				done := make(chan error, 2)
				for n := range uint64(2) {
					l.must(tm.g.Submit(t.Context(), &mcrdma.Op{Kind: mcrdma.OpWriteImm, At: mcrdma.At{Offset: n * apart}, Imm: uint32(n),
						Pieces: []mcrdma.Piece{tm.mem.Slice(int(n), 1)}, Done: func(op *mcrdma.Op) { done <- op.Err }}))
				}
				for range 2 {
					_, err := ahead.m.Recv(t.Context())
					l.must(err)
				}
				bySwitch := tm.g.Info().Path == mcrdma.PathSwitch
				copy(ahead.m.Region(0), "!!")
				ahead.m.Region(0) // what comes after this was written after that, for the race detector
				_, err := tm.g.Add(t.Context(), l.hosts[3].name)
				l.must(err)
				spare.m, err = spare.l.Accept(t.Context())
				l.must(err)
				e := event(t, tm.g.Events(), mcrdma.EventReformed)
				catchesUp := bySwitch && apart == 0
				if catchesUp != (e.Before != e.After) {
					t.Errorf("%v → %v", e.Before, e.After)
				}
				post(behind)
				post(spare)
				for range 2 {
					l.must(<-done)
				}
				if catchesUp {
					if e = event(t, tm.g.Events(), mcrdma.EventReformed); e.After != mcrdma.PathSwitch {
						t.Errorf("%v", e)
					}
				}
				l.must(tm.g.Write(t.Context(), mcrdma.At{Offset: 2}, tm.mem.Slice(2, 1)))
				if i := tm.g.Info(); bySwitch != (i.Path == mcrdma.PathSwitch) || len(i.Members) != 3 || i.Stats.Completed != 3 {
					t.Errorf("%+v", i)
				}
				all := "b"
				if apart > 0 {
					all = "ab"
				}
				want := map[*app]string{ahead: "!!", behind: all, spare: all}
				if bySwitch && !catchesUp { // writing the same again is safe
					want[ahead] = all
				}
				for a, want := range want {
					if got := string(a.m.Region(0)[:len(want)]); got != want {
						t.Errorf("%s reads %q instead of %q", a.h.name, got, want)
					}
				}
				tm.apps = append(tm.apps, spare)
				tm.close()
			})
		})
	}
}
