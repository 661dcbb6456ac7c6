package udplink

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A txError is a reason for which the kernel refuses to send.
type txError uint8

const (
	txTooBig txError = iota // EMSGSIZE: more than the path takes
	txUnreachable
	txRefused // EPERM, EACCES: a firewall or policy
	txNoBuffers
	txOther
	txErrors
)

var txErrorNames = [txErrors]string{"tx_err_too_big", "tx_err_unreachable", "tx_err_refused", "tx_err_no_buffers", "tx_err_other"}

func classify(e unix.Errno) txError {
	switch e {
	case unix.EMSGSIZE:
		return txTooBig
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.EADDRNOTAVAIL, unix.ECONNREFUSED:
		return txUnreachable
	case unix.EPERM, unix.EACCES:
		return txRefused
	case unix.ENOBUFS, unix.ENOMEM:
		return txNoBuffers
	}
	return txOther
}

// An rxDrop is a reason for which a received packet is dropped.
type rxDrop uint8

const (
	dropTruncated rxDrop = iota // shorter than headers and ICRC
	dropFormat                  // IPv4 or UDP header malformed
	dropFragment
	dropICRC
	rxDrops
)

var rxDropNames = [rxDrops]string{"rx_drop_truncated", "rx_drop_format", "rx_drop_fragment", "rx_drop_icrc"}

// counters are the link's statistics. Those of one direction share cache lines
// with nothing of the other.
type counters struct {
	txSyscalls, txMessages, txGSO, txGSORefused, txWaits atomic.Uint64
	txErr                                                [txErrors]atomic.Uint64
	_                                                    [64]byte
	rxSyscalls, rxMessages, rxSplit, rxSolved            atomic.Uint64
	rxPolls, rxBlocks                                    atomic.Uint64
	rxDrop                                               [rxDrops]atomic.Uint64
	groRefused                                           atomic.Uint64
}

// Counters adds the link's statistics to m:
//
//	rx_drop_*        packets dropped, by reason; rx_drop_buffer_full are those
//	                 that the kernel dropped because the receive buffer was full
//	tx_err_*         packets that the kernel refused to send, by reason
//	tx_syscalls      sendmmsg calls; tx_messages what they carried
//	tx_gso           messages of several segments among them
//	tx_gso_refused   how often GSO was refused and then done without
//	tx_waits         how often the send buffer was full
//	rx_syscalls      recvmmsg calls that returned messages; rx_messages those
//	rx_polls         how often the receiver looked for packets again before it went to sleep
//	rx_blocks        how often the receiver went to sleep
//	rx_split         messages that held several segments
//	rx_id_solved     packets whose IP identification had to be computed
//	rx_gro_refused   1 if the kernel refused UDP_GRO
func (l *Link) Counters(m map[string]uint64) {
	c := &l.counters
	for i := range c.txErr {
		m[txErrorNames[i]] += c.txErr[i].Load()
	}
	for i := range c.rxDrop {
		m[rxDropNames[i]] += c.rxDrop[i].Load()
	}
	m["rx_drop_buffer_full"] += l.rx.sock.drops()
	m["tx_syscalls"] += c.txSyscalls.Load()
	m["tx_messages"] += c.txMessages.Load()
	m["tx_gso"] += c.txGSO.Load()
	m["tx_gso_refused"] += c.txGSORefused.Load()
	m["tx_waits"] += c.txWaits.Load()
	m["rx_syscalls"] += c.rxSyscalls.Load()
	m["rx_polls"] += c.rxPolls.Load()
	m["rx_blocks"] += c.rxBlocks.Load()
	m["rx_messages"] += c.rxMessages.Load()
	m["rx_split"] += c.rxSplit.Load()
	m["rx_id_solved"] += c.rxSolved.Load()
	m["rx_gro_refused"] += c.groRefused.Load()
}
