package udplink

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// An RXMode says how packets are received; see the package comment.
type RXMode uint8

// The receive modes.
const (
	RXAuto RXMode = iota
	RXRaw
	RXUDP
)

var rxModeNames = [...]string{RXAuto: "auto", RXRaw: "raw", RXUDP: "udp"}

// String returns the mode's name in a device name's options.
func (m RXMode) String() string {
	if int(m) < len(rxModeNames) {
		return rxModeNames[m]
	}
	return "RXMODE_UNKNOWN"
}

// Defaults for the zero values in Options.
const (
	DefaultBatch  = 32
	DefaultBuffer = 4 << 20
	DefaultPoll   = 100 * time.Microsecond
)

// The largest Options.Batch and poll option.
const (
	maxBatch = 64
	maxPoll  = 10 * time.Millisecond
)

// Options of a Link. The zero value is the fast one.
type Options struct {
	RX    RXMode
	NoGSO bool // one UDP datagram per message, no UDP_SEGMENT
	NoGRO bool // do not ask the kernel to deliver aggregated datagrams (UDP_GRO)
	// Batch is the largest number of messages per system call, 1 to 64; 0
	// means DefaultBatch.
	Batch int
	// RcvBuf and SndBuf are the socket buffer sizes in bytes; 0 means
	// DefaultBuffer. Without CAP_NET_ADMIN the kernel caps them at
	// net.core.rmem_max and wmem_max.
	RcvBuf, SndBuf int
	// Poll is for how long the receiver polls before it blocks, after a wait
	// that was no longer than that; an idle link does not poll, nor one whose
	// processor others need. 0 means DefaultPoll, a negative value never.
	Poll time.Duration
}

// ParseOptions reads Options from the query of a device name, for example
// "rx=udp&gso=off&gro=off&batch=1&poll=off&rcvbuf=1048576", and deletes from q what it
// has understood, so that the caller can refuse the rest.
func ParseOptions(q url.Values) (Options, error) {
	var o Options
	var err error
	if v, ok := take(q, "rx"); ok {
		if o.RX, err = parseRXMode(v); err != nil {
			return o, err
		}
	}
	if o.NoGSO, err = takeOff(q, "gso"); err != nil {
		return o, err
	}
	if o.NoGRO, err = takeOff(q, "gro"); err != nil {
		return o, err
	}
	for _, n := range []struct {
		key string
		dst *int
		max int
	}{{"batch", &o.Batch, maxBatch}, {"rcvbuf", &o.RcvBuf, 1 << 30}, {"sndbuf", &o.SndBuf, 1 << 30}} {
		v, ok := take(q, n.key)
		if !ok {
			continue
		}
		if *n.dst, err = strconv.Atoi(v); err != nil || *n.dst < 1 || *n.dst > n.max {
			return o, fmt.Errorf("udplink: option %s=%s: want a number from 1 to %d", n.key, v, n.max)
		}
	}
	if v, ok := take(q, "poll"); ok {
		if v == "off" {
			o.Poll = -1
		} else if o.Poll, err = time.ParseDuration(v); err != nil || o.Poll <= 0 || o.Poll > maxPoll {
			return o, fmt.Errorf("udplink: option poll=%s: want off or a duration up to %v", v, maxPoll)
		}
	}
	return o, nil
}

func parseRXMode(v string) (RXMode, error) {
	m := slices.Index(rxModeNames[:], v)
	if m < 0 {
		return 0, fmt.Errorf("udplink: option rx=%s: want auto, raw or udp", v)
	}
	return RXMode(m), nil
}

// take returns and deletes the last value of key.
func take(q url.Values, key string) (string, bool) {
	vs, ok := q[key]
	delete(q, key)
	if !ok || len(vs) == 0 {
		return "", false
	}
	return vs[len(vs)-1], true
}

// takeOff reads an on/off switch and reports whether it is off.
func takeOff(q url.Values, key string) (bool, error) {
	v, ok := take(q, key)
	switch {
	case !ok || v == "on":
		return false, nil
	case v == "off":
		return true, nil
	}
	return false, fmt.Errorf("udplink: option %s=%s: want on or off", key, v)
}
