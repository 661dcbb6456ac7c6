package identity

import (
	"errors"
	"fmt"
	"time"
)

// soon is how long before its end a certificate should be renewed.
const soon = 7 * 24 * time.Hour

// ErrSoon means that a certificate is accepted, but not for long.
var ErrSoon = errors.New("ends soon")

// EndsSoon reports whether a certificate should be renewed: less than most is left, or of one that is issued for a short
// time a third.
func EndsSoon(from, until, now time.Time, most time.Duration) bool {
	return until.Sub(now) < min(most, until.Sub(from)/3)
}

// Accepted returns why others will not accept the certificate as that of own, now or (ErrSoon) soon;
// nil: they will, or there are no files. Errors of files wrap ErrFiles.
func (f Files) Accepted(own Identity) error {
	if f.Plain() {
		return nil
	}
	m, err := f.load()
	if err != nil {
		return err
	}
	at := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
	now, from, until := time.Now(), m.cert.Leaf.NotBefore, m.cert.Leaf.NotAfter
	switch {
	case m.own.check(own) != nil:
		return fmt.Errorf("the certificate %s is for %v, and should be for %v: issue one for it", f.Cert, m.own, own)
	case now.Before(from):
		return fmt.Errorf("the certificate %s is valid only from %s on, and by this host's clock it is %s: set the clock (NTP)", f.Cert, at(from), at(now))
	case now.After(until):
		return fmt.Errorf("the certificate %s has ended, on %s: renew it (cmd-daemon init --renew for a lab's)", f.Cert, at(until))
	}
	if err := f.trusts(m); err != nil {
		return err
	}
	if EndsSoon(from, until, now, soon) {
		return fmt.Errorf("the certificate %s %w, on %s: renew it (cmd-daemon init --renew for a lab's)", f.Cert, ErrSoon, at(until))
	}
	return nil
}

// Expiry returns the end of the certificate in Unix seconds, for metrics; 0: there are no files, or
// they cannot be read.
func (f Files) Expiry() float64 {
	_, until, err := f.Read()
	if err != nil || until.IsZero() {
		return 0
	}
	return float64(until.Unix())
}
