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
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
)

func init() {
	qp.Register(driverName, func(arg string) (qp.Device, error) { return Open(arg) }, check)
}

// Open opens the device with name driverName:arg. arg is either a local IPv4
// address, or what package framelink's Open understands, for example
// "10.0.0.1/24,tunnel=127.0.0.1:7001-127.0.0.1:7002". Options may follow in the
// form of a URL query. For every device:
//
//	cc=off            without congestion control
//	rate=1gbit        the link's rate, in kbit, mbit or gbit: congestion control
//	                  starts at it, and its steps are in proportion (default 40gbit)
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
	attach, opt, err := parse(arg)
	if err != nil {
		return nil, err
	}
	l, err := attach()
	if err != nil {
		return nil, err
	}
	return New(l, opt)
}

// parse reads Open's argument. attach opens the device's link.
func parse(arg string) (attach func() (link.Link, error), opt Options, err error) {
	where, query, _ := strings.Cut(arg, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, opt, fmt.Errorf("softroce: %w: options: %w", qp.ErrDevice, err)
	}
	if framelink.Is(where) {
		attach = func() (link.Link, error) { return framelink.Open(where) }
		if _, _, err := framelink.Parse(where); err != nil {
			return nil, opt, err
		}
	} else if attach, err = hostLink(where, q); err != nil {
		return nil, opt, fmt.Errorf("softroce: %w: %w", qp.ErrDevice, err)
	}
	if opt, err = parseOptions(q); err != nil {
		return nil, opt, fmt.Errorf("softroce: %w: %w", qp.ErrDevice, err)
	}
	opt.Name = driverName + ":" + arg
	return attach, opt, nil
}

// check implements qp.Check. A device on the host's own stack can send wherever that has routes.
func check(arg string, peers []netip.Addr) error {
	where, _, _ := strings.Cut(arg, "?")
	if _, _, err := parse(arg); err != nil || !framelink.Is(where) {
		return err
	}
	cfg, _, err := framelink.Parse(where)
	if err != nil {
		return err
	}
	for _, p := range peers {
		if p == cfg.Gateway {
			return fmt.Errorf("softroce: %w: gw=%v is the address of a host: want that of the switch in %v", qp.ErrDevice, p, cfg.Prefix.Masked())
		}
		if _, err := cfg.Route(p); err != nil {
			return fmt.Errorf("softroce: %w: %w", qp.ErrDevice, err)
		}
	}
	return nil
}

// parseOptions reads the device's options from q, which must contain nothing else.
func parseOptions(q url.Values) (o Options, err error) {
	if v := q.Get("cc"); v == "off" {
		o.CC.Disable = true
	} else if v != "" && v != "on" {
		return o, fmt.Errorf("option cc=%s: want on or off", v)
	}
	if v := q.Get("rate"); v != "" {
		if o.CC, err = scaled(o.CC, v); err != nil {
			return o, err
		}
	}
	if v := q.Get("window"); v != "" {
		if o.Window, err = strconv.Atoi(v); err != nil || o.Window < 1 || o.Window > 1<<16 {
			return o, fmt.Errorf("option window=%s: want a number from 1 to 65536", v)
		}
	}
	delete(q, "cc")
	delete(q, "rate")
	delete(q, "window")
	if len(q) > 0 {
		return o, fmt.Errorf("unknown options %v", slices.Sorted(maps.Keys(q)))
	}
	return o, nil
}

// scaled scales the rates of congestion control to the link's rate; package rc's defaults are for
// 40 Gb/s.
func scaled(c rc.CCParams, rate string) (rc.CCParams, error) {
	number, unit := rate, 1.0
	for suffix, u := range map[string]float64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9} {
		if n, ok := strings.CutSuffix(rate, suffix); ok {
			number, unit = n, u
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if n *= unit; err != nil || !(n >= 1e6 && n <= 1e12) { // NaN is neither
		return c, fmt.Errorf("option rate=%s: want a rate from 1mbit to 1000gbit", rate)
	}
	c.LineRate = n
	c.MinRate, c.AIRate, c.HAIRate = c.LineRate/4000, c.LineRate/1000, c.LineRate/100
	return c, nil
}
