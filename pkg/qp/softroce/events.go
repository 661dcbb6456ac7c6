package softroce

import (
	"context"
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// eventDepth is the maximum number of unread events; more are counted as lost.
const eventDepth = 256

// Event implements qp.Device.
func (d *Device) Event(ctx context.Context) (qp.Event, error) {
	select {
	case e := <-d.events:
		return e, nil
	default:
	}
	select {
	case e := <-d.events:
		return e, nil
	case <-d.done:
		return qp.Event{}, errClosed("device")
	case <-ctx.Done():
		return qp.Event{}, ctx.Err()
	}
}

func (d *Device) event(t qp.EventType, qpn rocev2.QPN, err error) {
	select {
	case d.events <- qp.Event{Type: t, QPN: qpn, Err: err}:
	default:
		d.counters.eventsLost.Add(1)
	}
}

// linkFailed raises the event that the link has failed.
func (d *Device) linkFailed(err error) {
	if !d.closing() {
		d.event(qp.EventDeviceFatal, 0, err)
	}
}

// closing reports whether err only says that the link was closed by Close.
func (d *Device) closing() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// now returns the device's own time: the time since it was made, less the time in which it was held
// up. It steps back when a delay is detected.
func (d *Device) now() time.Duration {
	return time.Since(d.epoch) - time.Duration(d.heldUp.Load())
}

func errClosed(what string) error { return fmt.Errorf("softroce: %w: %s", qp.ErrClosed, what) }
