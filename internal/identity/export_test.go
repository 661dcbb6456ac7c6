package identity

import (
	"net"
	"time"
)

func init() { recheck = 0 } // each handshake looks at the files

func SetRecheck(d time.Duration) (restore func()) {
	old := recheck
	recheck = d
	return func() { recheck = old }
}

// Follow returns what says whose certificate files hold, as handshakes see it.
func Follow(f Files) (own func() Identity, due *time.Time, err error) {
	s, err := newSource(f)
	return func() Identity { return s.get().own }, &s.due, err
}

func Claimed(from net.Addr, claims ...string) (Identity, error) { return claimed(from, claims) }
