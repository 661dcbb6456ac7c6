package softroce

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
)

func init() {
	qp.Register(driverName, func(arg string) (qp.Device, error) { return Open(arg) })
}

// Open opens the device with name driverName:arg. arg is either a local IPv4
// address, or what package framelink's Open understands, for example
// "10.0.0.1/24,tunnel=127.0.0.1:7001-127.0.0.1:7002". Options may follow in the
// form of a URL query. For every device:
//
//	cc=off            without congestion control
//	window=N          unacknowledged packets per queue pair
//
// and on a local address:
//
//	rx=auto|raw|udp   receive mode, see package udplink
//	gso=off gro=off   without UDP segmentation offloads
//	batch=N           messages per system call, 1..64
//	rcvbuf=N sndbuf=N socket buffers, bytes
//	poll=off|100us    how long to poll before blocking, see udplink.Options
func Open(arg string) (*Device, error) {
	where, query, _ := strings.Cut(arg, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("softroce: %w: options: %w", qp.ErrDevice, err)
	}
	attach := func() (link.Link, error) { return framelink.Open(where) }
	if !framelink.Is(where) {
		if attach, err = hostLink(where, q); err != nil {
			return nil, fmt.Errorf("softroce: %w: %w", qp.ErrDevice, err)
		}
	}
	opt, err := parseOptions(q)
	if err != nil {
		return nil, fmt.Errorf("softroce: %w: %w", qp.ErrDevice, err)
	}
	opt.Name = driverName + ":" + arg
	l, err := attach()
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
