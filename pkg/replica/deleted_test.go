package replica

import (
	"errors"
	"os"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// TestDeleted: only a record that a volume was deleted has hosts remove its data. When the configuration manager has
// lost the volume's record, it goes on.
func TestDeleted(t *testing.T) {
	r := newRig(t, 3, 2, 8<<20, Fast())
	r.acting(3)
	r.must(r.volume(1).WriteAt(r.ctx(), fillBlock(1), 0, true))
	pairs, _, err := r.kv.Get(r.ctx(), "volumes/")
	r.must(err)
	_, err = r.kv.Commit(r.ctx(), osdmap.Change{Key: pairs[0].Key, Revision: pairs[0].Revision})
	r.must(err)
	r.wait("the hosts know", func() error {
		for _, h := range r.hosts[1:] {
			h.mu.Lock()
			n := len(h.state.Volumes)
			h.mu.Unlock()
			if n > 0 {
				return errors.New("there is a volume")
			}
		}
		return nil
	})
	for i := 1; i <= 3; i++ {
		r.must(r.volume(i).WriteAt(r.ctx(), fillBlock(2), 0, true))
	}

	_, err = r.kv.Commit(r.ctx(), osdmap.Change{Key: pairs[0].Key, Value: pairs[0].Value})
	r.must(err)
	r.must(osdmap.New(r.kv, osdmap.Options{}).Delete(r.ctx(), r.id))
	r.wait("the data is removed", func() error {
		for i := 1; i <= 3; i++ {
			if _, err := os.Stat(volumeDir(r.hosts[i].cfg.Dir, r.id)); !errors.Is(err, os.ErrNotExist) {
				return errors.New("it is there")
			}
		}
		return nil
	})
}
