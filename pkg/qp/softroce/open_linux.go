package softroce

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/udplink"
)

func init() {
	qp.Register(driverName, func(arg string) (qp.Device, error) { return Open(arg) })
}

// Open opens the device with name driverName:arg. arg is the local IPv4
// address, and options in the form of a URL query:
//
//	rx=auto|raw|udp   receive mode, see package udplink
//	gso=off gro=off   without UDP segmentation offloads
//	batch=N           messages per system call, 1..64
//	rcvbuf=N sndbuf=N socket buffers, bytes
//	poll=off|100us    how long to poll before blocking, see udplink.Options
//	cc=off            without congestion control
//	window=N          unacknowledged packets per queue pair
func Open(arg string) (*Device, error) {
	host, query, _ := strings.Cut(arg, "?")
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil, fmt.Errorf("softroce: %w: want an IPv4 address, as in softroce:10.0.0.1: %w", qp.ErrDevice, err)
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("softroce: %w: options: %w", qp.ErrDevice, err)
	}
	lopt, err := udplink.ParseOptions(q)
	if err != nil {
		return nil, fmt.Errorf("softroce: %w: %w", qp.ErrDevice, err)
	}
	opt, err := parseOptions(q)
	if err != nil {
		return nil, fmt.Errorf("softroce: %w: %w", qp.ErrDevice, err)
	}
	opt.Name = driverName + ":" + arg
	l, err := udplink.Open(addr, lopt)
	if err != nil {
		return nil, err
	}
	return New(l, opt)
}

// parseOptions reads the device's options from q, in which nothing else may be
// left.
func parseOptions(q url.Values) (o Options, err error) {
	if v := q.Get("cc"); v == "off" {
		o.CC.Disable = true
	} else if v != "" && v != "on" {
		return o, fmt.Errorf("option cc=%s: want on or off", v)
	}
	if v := q.Get("window"); v != "" {
		if o.Window, err = strconv.Atoi(v); err != nil || o.Window < 1 || o.Window > 1<<16 {
			return o, fmt.Errorf("option window=%s: want a number from 1 to 65536", v)
		}
	}
	delete(q, "cc")
	delete(q, "window")
	if len(q) > 0 {
		return o, fmt.Errorf("unknown options %v", slices.Sorted(maps.Keys(q)))
	}
	return o, nil
}
