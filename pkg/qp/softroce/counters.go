package softroce

import (
	"sync"
	"sync/atomic"

	"github.com/mcrdma/mcrdma/pkg/qp/rc"
)

// An rxDrop is a reason for dropping a packet that the link has accepted.
type rxDrop uint8

const (
	noDrop rxDrop = iota
	dropTruncated
	dropOpcode
	dropTVer
	dropPKey
	dropQPN
	dropState
	dropPeer
	dropLength
	rxDrops
)

var rxDropNames = [rxDrops]string{
	dropTruncated: "rx_drop_truncated",
	dropOpcode:    "rx_drop_opcode",
	dropTVer:      "rx_drop_tver",
	dropPKey:      "rx_drop_pkey",
	dropQPN:       "rx_drop_qpn",
	dropState:     "rx_drop_state",
	dropPeer:      "rx_drop_peer",
	dropLength:    "rx_drop_length",
}

// counters are the device's statistics. Those of the two directions are in different cache lines,
// because different processors write them.
type counters struct {
	txPackets, txBytes, txRetransmits, txErrors atomic.Uint64
	_                                           [64]byte
	rxPackets, rxBytes                          atomic.Uint64
	rxDrop                                      [rxDrops]atomic.Uint64
	eventsLost                                  atomic.Uint64

	mu   sync.Mutex
	past rcSums // of queue pairs that were destroyed
}

// rcSums adds up statistics of state machines.
type rcSums map[string]uint64

func (s rcSums) add(st rc.Stats) {
	q, p := &st.Requester, &st.Responder
	s["rc_timeouts"] += q.Timeouts
	s["rc_acks_received"] += q.Acks
	s["rc_naks_received"] += q.NakSequence + q.NakFatal
	s["rc_rnr_naks_received"] += q.NakRNR
	s["rc_stale_acks"] += q.StaleAcks
	s["rc_bad_acks"] += q.BadAcks
	s["rc_read_responses_received"] += q.Responses
	s["rc_cnps_received"] += q.CNPs
	s["rc_messages_received"] += p.Messages
	s["rc_duplicates"] += p.Duplicates
	s["rc_out_of_sequence"] += p.OutOfSequence
	s["rc_acks_sent"] += p.AcksSent
	s["rc_read_responses_sent"] += p.ResponsesSent
	s["rc_naks_sent"] += p.NakSequence + p.NakFatal
	s["rc_rnr_naks_sent"] += p.NakRNR
	s["rc_cnps_sent"] += p.CNPsSent
	s["rc_ecn_marked"] += p.CongestionSeen
	s["rc_unexpected"] += st.Unexpected
}

func (c *counters) retire(st rc.Stats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.past == nil {
		c.past = rcSums{}
	}
	c.past.add(st)
}

// Counters implements qp.Device:
//
//	tx_packets, tx_bytes  sent; bytes of payload
//	tx_retransmits        packets among them that repeat a PSN
//	tx_errors             batches with packets that the link could not send
//	rx_packets, rx_bytes  taken by queue pairs
//	rx_drop_truncated     shorter than its headers
//	rx_drop_opcode        unknown, or not of the reliable-connection service
//	rx_drop_tver          transport header version other than 0
//	rx_drop_pkey          partition key other than the default one
//	rx_drop_qpn           no such queue pair
//	rx_drop_state         queue pair before RTR, or in the error state
//	rx_drop_peer          source is not the queue pair's peer
//	rx_drop_length        more payload than the path MTU
//	rc_*                  what the state machines of all queue pairs counted
//	events_lost           events that were not read in time
//	qps                   existing queue pairs
//
// and those of the link (see for example udplink.Link.Counters); counters with the same name are
// added up.
func (d *Device) Counters() map[string]uint64 {
	m := rcSums{}
	c := &d.counters
	m["tx_packets"] = c.txPackets.Load()
	m["tx_bytes"] = c.txBytes.Load()
	m["tx_retransmits"] = c.txRetransmits.Load()
	m["tx_errors"] = c.txErrors.Load()
	m["rx_packets"] = c.rxPackets.Load()
	m["rx_bytes"] = c.rxBytes.Load()
	m["events_lost"] = c.eventsLost.Load()
	m["qps"] = uint64(len(d.qps.all()))
	for i := noDrop + 1; i < rxDrops; i++ {
		m[rxDropNames[i]] = c.rxDrop[i].Load()
	}
	m.add(rc.Stats{})
	for _, q := range d.qps.all() {
		q.mu.Lock()
		if q.rc != nil {
			m.add(q.rc.Stats())
		}
		q.mu.Unlock()
	}
	c.mu.Lock()
	for k, v := range c.past {
		m[k] += v
	}
	c.mu.Unlock()
	d.link.Counters(m)
	return m
}
