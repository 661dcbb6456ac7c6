package core

import "time"

// attempt is what was sent to a member last, and is long to send.
type attempt struct {
	from  uint64
	begun time.Duration // when it was sent first; 0: it has arrived, or nothing was sent
	took  time.Duration // what came before it, until that was known to have arrived
	wait  time.Duration // from when it was sent last until it has probably been lost
	again time.Duration // when that is
	calls uint64        // of clients, when it was sent
	rest  time.Duration // nothing more is sent before, as clients have calls; 0: they have none
}

const (
	// patience is how many times as long as the one before an attempt may take. The link may be slow, or busy: what is
	// sent again then makes it slower.
	patience = 4
	// longest is after how many leases something is sent again at the latest.
	longest = 16
	// pace is how many times as long as a piece took a backfill rests after it, if clients have calls meanwhile. Even if
	// they stood still while a piece is sent they would lose a seventh.
	pace = 6
)

// due says whether something is to be sent: it is something else, or has probably been lost.
func (a *attempt) due(from uint64, now, lease time.Duration) bool {
	if a.from != from {
		a.from, a.begun = from, 0
	}
	switch {
	case a.begun == 0:
		a.begun, a.wait = now, min(patience*max(lease, a.took), longest*lease)
	case now < a.again:
		return false
	default:
		a.wait = min(2*a.wait, longest*lease)
	}
	a.again = now + a.wait
	return true
}

// arrived says that what was sent has arrived.
func (a *attempt) arrived(now time.Duration) {
	if a.begun != 0 {
		a.took, a.begun = now-a.begun, 0
	}
}
