package replica

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// ErrDenied means that the client may not open the volume.
var ErrDenied = errors.New("not allowed")

// access is the access list of a volume.
type access struct {
	mu     sync.Mutex
	volume osdmap.Volume // as last reported by the configuration manager
	grants map[string]chan struct{}
	ended  bool
}

// Grant checks that a client, named as in [osdmap.Volume.Allows], may open the volume. The channel
// is closed when the client no longer may, or the volume is closed at this host. The error wraps
// ErrDenied.
func (v *Volume) Grant(client string) (ended <-chan struct{}, err error) {
	a := &v.access
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.volume.Allows(client) {
		who := client
		if who == "" {
			who = "a client without a certificate, or without an identity in it,"
		}
		return nil, fmt.Errorf("volume %s: %w: %s may not open it, only %s; \"mcblock volume allow\" changes that", v.info.Name, ErrDenied, who, strings.Join(a.volume.Allow, ", "))
	}
	c := a.grants[client]
	if c == nil {
		c = make(chan struct{})
		a.grants[client] = c
	}
	if a.ended {
		close(c)
		delete(a.grants, client)
	}
	return c, nil
}

// set adopts the configuration manager's list, and ends the grants of clients that are no longer
// allowed.
func (a *access) set(v osdmap.Volume) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.grants == nil {
		a.grants = map[string]chan struct{}{}
	}
	a.volume = v
	a.end(func(client string) bool { return !v.Allows(client) })
}

// close ends all grants.
func (a *access) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.end(func(string) bool { return true })
}

func (a *access) end(these func(client string) bool) {
	for client, c := range a.grants {
		if these(client) {
			close(c)
			delete(a.grants, client)
		}
	}
}
