package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/wal"
)

// errLater: the copy is removed, without anyone's help, when enough members act.
var errLater = errors.New("it is removed when enough of them act")

// evict removes this host's closed copy of a volume in which another host has taken its place. It
// does so when enough members act: until then this may be the last copy, and the operator can give
// the host its place again. A copy that came with the disk of another host is kept: that the others
// act does not mean that their disks are left.
func (h *Host) evict(s osdmap.VolumeState) {
	dir := volumeDir(h.cfg.Dir, s.Volume.ID)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		_ = h.fault(s.Volume.ID, nil)
		return
	}
	h.mu.Lock()
	hosts := strings.Join(h.state.HostNames(s.Volume.Hosts), ", ")
	h.mu.Unlock()
	err := h.removeCopy(dir, s, hosts)
	was := h.fault(s.Volume.ID, err)
	switch {
	case err == nil:
		h.cfg.Log.Warn("this host has no place in the volume any more, another one was given it: the copy that was here is removed", "volume", s.Volume.Name, "hosts", hosts)
	case was != nil && was.Error() == err.Error():
	case errors.Is(err, errLater):
		h.cfg.Log.Info("this host has no place in the volume any more", "volume", s.Volume.Name, "copy", err)
	default:
		h.cfg.Log.Error("this host has no place in the volume any more", "volume", s.Volume.Name, "error", err)
	}
}

// removeCopy removes the data of a volume, or says why not yet.
func (h *Host) removeCopy(dir string, s osdmap.VolumeState, hosts string) error {
	kept := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s has its copies on %s, and what is in %s is not served, but kept: %w", ErrNotFound, s.Volume.Name, hosts, dir, fmt.Errorf(format, a...))
	}
	switch n := len(s.Map.Acting); {
	case !slices.Contains(s.Map.Former, h.cfg.Self.ID):
		return kept("this host was not replaced by one of them, and so it may be another host's copy: move it back, or give this host the place (mcblock volume replace); remove it if it is not needed")
	case s.Map.Since == 0:
		return kept("the volume is not served yet: %w", errLater)
	case n < s.Map.MinSize:
		return kept("%d hosts act, and min_size is %d: %w", n, s.Map.MinSize, errLater)
	}
	l, err := wal.Open(filepath.Join(dir, "log"), s.Volume.ID, wal.Options{})
	if err != nil {
		return kept("it cannot be read: %w; remove it if it is not needed", err)
	}
	known := l.Stored().Epoch
	if err := l.Close(); err != nil {
		return kept("%w", err)
	}
	if known > s.Map.Epoch {
		return kept("it knows epoch %d of the volume, and the configuration manager has %d, as if that were an old copy of etcd: restore a newer one, or remove the data if it is not needed", known, s.Map.Epoch)
	}
	return os.RemoveAll(dir)
}
