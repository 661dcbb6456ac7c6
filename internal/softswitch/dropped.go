package softswitch

import (
	"sync/atomic"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
)

const (
	dropsPeriod = time.Second // interval of checks of the ports' drops
	droppedFor  = time.Minute // how long a port that drops frames is reported after the last one
)

// mendable are the reasons of drops that last until a setting is changed.
var mendable = [...]struct {
	reason       ports.Reason
	what, remedy string
}{
	{ports.RxSegmented, "drops frames that combine several packets", "turn offloads off at both ends of the link, as the switch's log says"},
	{ports.RxTooLong, "drops frames that are longer than its MTU was when the switch started", "restart the switch"},
	{ports.TxTooLong, "drops frames that are longer than its MTU", "give all interfaces of the switch the same MTU"},
}

// dropped is how many frames a port has dropped, by mendable reason, and when it last did.
type dropped [len(mendable)]struct {
	count uint64
	last  atomic.Pointer[time.Time]
}

func (d *dropped) look(drops map[string]uint64, now time.Time) {
	for i := range d {
		if n := drops[mendable[i].reason.String()]; n > d[i].count {
			d[i].count = n
			d[i].last.Store(&now)
		}
	}
}

// lately calls f with the mendable reasons for which frames were dropped lately.
func (d *dropped) lately(now time.Time, f func(what, remedy string)) {
	for i := range d {
		if last := d[i].last.Load(); last != nil && now.Sub(*last) < droppedFor {
			f(mendable[i].what, mendable[i].remedy)
		}
	}
}
