package softroce

import (
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

// A packet counts once, whatever the link counts besides, and what a queue pair
// has counted stays when it is gone.
func TestCounters(t *testing.T) {
	for name, connected := range map[string]func(*testing.T) (a, b *end){
		"udp": func(t *testing.T) (a, b *end) { return pair(t, "", 4096) },
		"pipe": func(t *testing.T) (a, b *end) {
			return piped(t, pipe.Config{}, Options{}, 4096, qp.Init{}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t)
			b.recv(1, b.mr.SGE(0, 100))
			a.send(qp.SendWR{ID: 1, Opcode: qp.OpSend, SGEs: []qp.SGE{a.mr.SGE(0, 90)}})
			a.want(1, qp.StatusSuccess)
			b.want(1, qp.StatusSuccess)
			check := func() {
				t.Helper()
				for _, c := range []struct {
					e    *end
					want map[string]uint64
				}{
					{a, map[string]uint64{"tx_packets": 1, "tx_bytes": 90, "rx_packets": 1, "rx_bytes": 0, "rc_acks_received": 1,
						"rc_messages_received": 0, "tx_retransmits": 0}},
					{b, map[string]uint64{"tx_packets": 1, "tx_bytes": 0, "rx_packets": 1, "rx_bytes": 90, "rc_acks_sent": 1,
						"rc_messages_received": 1, "tx_retransmits": 0}},
				} {
					got := c.e.dev.Counters()
					for k, v := range c.want {
						if g, ok := got[k]; g != v || !ok {
							t.Errorf("%s is %d, want %d", k, g, v)
						}
					}
				}
			}
			check()
			modify(t, a, qp.StateReset, qp.MaskState)
			if err := b.qp.Close(); err != nil {
				t.Fatal(err)
			}
			check()
		})
	}
}

// Events that are not read are lost at some time, and counted; the first ones
// are kept.
func TestEventsLost(t *testing.T) {
	d := onLink(t, newWire(), Options{})
	for i := range eventDepth + 3 {
		d.event(qp.EventQPFatal, 0x100+rocev2.QPN(i), nil)
	}
	if n := d.Counters()["events_lost"]; n != 3 {
		t.Errorf("events_lost is %d", n)
	}
	if e := must(d.Event(t.Context()))(t); e.QPN != 0x100 {
		t.Errorf("event %+v", e)
	}
}
