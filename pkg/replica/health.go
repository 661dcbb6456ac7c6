package replica

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// Health is the state of a host, apart from its volumes.
type Health struct {
	Known   bool             // the configuration manager has reported the hosts and volumes
	Unknown error            // why the configuration manager did not accept this host the last time
	Away    error            // why the configuration manager no longer answers; nil: it does
	Faults  []error          // records that cannot be used
	Broken  map[uint64]error // why copies of volumes cannot be opened; to be repaired by an operator
}

// fault notes why a volume's copy cannot be opened, and returns why not before; nil: it has no fault, perhaps because it has been removed.
func (h *Host) fault(id uint64, err error) (was error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was = h.broken[id]
	if h.broken[id] = err; err == nil {
		delete(h.broken, id)
	}
	return was
}

// Health returns the current state of the host.
func (h *Host) Health() Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Health{Known: len(h.state.Hosts) > 0, Unknown: h.unknown, Away: h.state.Away, Faults: slices.Clone(h.state.Faults), Broken: map[uint64]error{}}
	maps.Copy(s.Broken, h.broken)
	maps.DeleteFunc(s.Broken, func(_ uint64, err error) bool { return errors.Is(err, errLater) })
	return s
}

// Ready reports whether the host serves the volumes that it has to, with a note for people.
func (h *Host) Ready() (ok bool, note string) {
	s := h.Health()
	n := h.opening()
	switch {
	case !s.Known && errors.Is(s.Unknown, osdmap.ErrExists):
		return false, s.Unknown.Error()
	case !s.Known:
		return false, "the configuration manager has not answered yet"
	case len(s.Broken) > 0:
		return false, fmt.Sprintf("%d volumes cannot be opened: the log says why", len(s.Broken))
	case n > 0:
		return false, fmt.Sprintf("%d volumes are not open yet", n)
	case s.Away != nil:
		return true, "the configuration manager does not answer; volumes go on as they are"
	}
	return true, ""
}

// opening returns how many volumes of this host are not open yet.
func (h *Host) opening() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.state.Volumes {
		id := s.Volume.ID
		if slices.Contains(s.Volume.Hosts, h.cfg.Self.ID) && h.volumes[id] == nil && h.broken[id] == nil {
			n++
		}
	}
	return n
}
