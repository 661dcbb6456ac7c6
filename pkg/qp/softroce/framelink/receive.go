package framelink

import (
	"errors"
	"net/netip"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A counter is an index into Host.counts.
type counter uint8

const (
	txFrames counter = iota
	txPackets
	txDropBad
	txDropNoRoute
	rxFrames
	rxPackets
	rxARP
	rxDropTruncated
	rxDropMalformed
	rxDropVLAN
	rxDropMAC
	rxDropNotIPv4
	rxDropChecksum
	rxDropFragment
	rxDropNotOurs
	rxDropSource
	rxDropProtocol
	rxDropPort
	rxDropICRC
	numCounters
)

var counterNames = [numCounters]string{
	txFrames:        "tx_frames",
	txPackets:       "tx_roce",
	txDropBad:       "tx_drop_bad",      // Send refused it
	txDropNoRoute:   "tx_drop_no_route", // to an address outside the prefix without a gateway, or to none of a host
	rxFrames:        "rx_frames",
	rxPackets:       "rx_roce",
	rxARP:           "rx_arp",
	rxDropTruncated: "rx_drop_truncated",
	rxDropMalformed: "rx_drop_malformed", // lengths that contradict each other
	rxDropVLAN:      "rx_drop_vlan",
	rxDropMAC:       "rx_drop_mac",      // to another MAC address, or from a group address
	rxDropNotIPv4:   "rx_drop_not_ipv4", // nor ARP
	rxDropChecksum:  "rx_drop_checksum", // IPv4 header
	rxDropFragment:  "rx_drop_fragment",
	rxDropNotOurs:   "rx_drop_not_ours", // to another IPv4 address
	rxDropSource:    "rx_drop_source",   // from an IPv4 address that no other host can have
	rxDropProtocol:  "rx_drop_protocol", // not UDP
	rxDropPort:      "rx_drop_port",     // UDP, but not RoCEv2
	rxDropICRC:      "rx_drop_icrc",
}

const (
	vlanIDMask     = 0xfff
	smallestRoCEv2 = rocev2.BTHLen + rocev2.ICRCLen
)

// Counters implements link.Link.
func (h *Host) Counters(m map[string]uint64) {
	for c, name := range counterNames {
		m[name] += h.counts[c].Load()
	}
	h.mu.Lock()
	s := h.arp.stats
	h.mu.Unlock()
	m["rx_drop_arp"] += s.malformed
	m["tx_drop_unresolved"] += s.dropped
	m["arp_requests"] += s.requests
	m["arp_replies"] += s.replies
	m["arp_announcements"] += s.announces
	m["arp_failed"] += s.failed
	m["arp_conflicts"] += s.conflicts
	h.conn.Counters(m)
}

// Recv implements link.Link.
func (h *Host) Recv(batch []link.Rx) (int, error) {
	for len(batch) > 0 {
		n, err := h.conn.Recv(h.rx[:min(len(batch), len(h.rx))])
		if err != nil {
			return 0, h.connError(err)
		}
		kept := 0
		for _, frame := range h.rx[:n] {
			c := h.receive(frame, &batch[kept])
			h.counts[c].Add(1)
			if c == rxPackets {
				kept++
			}
		}
		h.counts[rxFrames].Add(uint64(n))
		if kept > 0 {
			return kept, nil
		}
	}
	return 0, nil
}

// receive takes one frame and returns what became of it: rxPackets if it is in
// rx, anything else if it is done with.
func (h *Host) receive(frame []byte, rx *link.Rx) counter {
	var eth rocev2.Ethernet
	p, err := eth.Parse(frame)
	switch {
	case errors.Is(err, rocev2.ErrTruncated):
		return rxDropTruncated
	case err != nil || eth.TCI&vlanIDMask != 0: // VLAN 0 is a priority and no VLAN
		return rxDropVLAN
	case eth.Src[0]&1 != 0:
		return rxDropMAC
	case eth.Dst != h.cfg.MAC && (eth.Dst != broadcast || eth.EtherType != rocev2.EtherTypeARP):
		return rxDropMAC
	case eth.EtherType == rocev2.EtherTypeARP:
		return h.receiveARP(p)
	case eth.EtherType == rocev2.EtherTypeIPv4:
		return h.receiveIPv4(p, rx)
	}
	return rxDropNotIPv4
}

func (h *Host) receiveARP(p []byte) counter {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.arp.input(p, h.now())
		_ = h.flushARP() // the next conn.Recv reports the Conn's end
	}
	return rxARP
}

func (h *Host) receiveIPv4(b []byte, rx *link.Rx) counter {
	var ip rocev2.IPv4
	p, err := ip.Parse(b)
	switch {
	case err != nil:
		return dropReason(err)
	case ip.Dst != h.ip:
		return rxDropNotOurs
	case !h.validSource(ip.Src):
		return rxDropSource
	case ip.Protocol != rocev2.ProtocolUDP:
		return rxDropProtocol
	}
	var udp rocev2.UDP
	p, err = udp.Parse(p)
	switch {
	case err != nil:
		return dropReason(err)
	case udp.DstPort != rocev2.UDPPort:
		return rxDropPort
	case len(p) < smallestRoCEv2:
		return rxDropTruncated
	case !rocev2.VerifyICRC(b[:ip.TotalLen]):
		return rxDropICRC
	}
	*rx = link.Rx{Src: netip.AddrFrom4(ip.Src), TOS: ip.TOS, Data: p[:len(p)-rocev2.ICRCLen]}
	return rxPackets
}

func dropReason(err error) counter {
	switch {
	case errors.Is(err, rocev2.ErrTruncated):
		return rxDropTruncated
	case errors.Is(err, rocev2.ErrNotIPv4):
		return rxDropNotIPv4
	case errors.Is(err, rocev2.ErrChecksum):
		return rxDropChecksum
	case errors.Is(err, rocev2.ErrFragment):
		return rxDropFragment
	}
	return rxDropMalformed
}

// validSource reports whether src can be another host's address.
func (h *Host) validSource(src ipAddr) bool {
	if src == h.ip || src[0] == 0 || src[0] == 127 || src[0] >= 224 {
		return false
	}
	return isHost(h.cfg.Prefix, src) || !h.cfg.Prefix.Contains(netip.AddrFrom4(src))
}
