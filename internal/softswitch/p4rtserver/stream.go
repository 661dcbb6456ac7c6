package p4rtserver

import (
	"sync/atomic"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

// controlQueue is how many arbitration messages may wait for a controller that does not read; the
// next one ends its stream.
const controlQueue = 256

// A stream is one controller's StreamChannel.
type stream struct {
	ctl  chan *p4.StreamMessageResponse // arbitration; never dropped
	data chan *p4.StreamMessageResponse // all other messages; dropped if full
	end  chan error                     // why the stream ends; with room for every goroutine that may report it

	// Guarded by Server.mu:
	role     *role // nil before the first arbitration
	election *electionID
	gone     bool
}

// control queues an arbitration message.
func (st *stream) control(m *p4.StreamMessageResponse) {
	select {
	case st.ctl <- m:
	default:
		st.stop(fail(codes.ResourceExhausted, "%d arbitration messages wait to be read", controlQueue))
	}
}

// offer queues another message, and returns false if the queue is full.
func (st *stream) offer(m *p4.StreamMessageResponse) bool {
	select {
	case st.data <- m:
		return true
	default:
		return false
	}
}

// stop ends the stream. Only the first call has an effect.
func (st *stream) stop(err error) {
	select {
	case st.end <- err:
	default:
	}
}

// send sends queued messages, arbitration messages first.
func (st *stream) send(g p4.P4Runtime_StreamChannelServer, done <-chan struct{}) error {
	for {
		var m *p4.StreamMessageResponse
		select {
		case m = <-st.ctl:
		default:
			select {
			case m = <-st.ctl:
			case m = <-st.data:
			case <-done:
				return nil
			}
		}
		if err := g.Send(m); err != nil {
			return err
		}
	}
}

// offerAll queues a message for several streams, and adds n to a counter for each.
func offerAll(to []*stream, n int, sent, dropped *atomic.Uint64, m *p4.StreamMessageResponse) {
	for _, st := range to {
		if st.offer(m) {
			sent.Add(uint64(n))
		} else {
			dropped.Add(uint64(n))
		}
	}
}
