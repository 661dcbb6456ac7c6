package ibverbs

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// autoGID asks for the first RoCEv2 GID with an IPv4 address.
const autoGID = -1

// A target is what the part of a device name after "ibverbs:" says.
type target struct {
	dev  string // "" for the only device
	port uint8
	gid  int // index, or autoGID
}

// parseTarget parses "mlx5_0", "mlx5_0?gid=3&port=1" or "". Errors wrap
// qp.ErrDevice.
func parseTarget(arg string) (target, error) {
	t := target{port: 1, gid: autoGID}
	name, query, _ := strings.Cut(arg, "?")
	if strings.ContainsAny(name, "/&=") {
		return t, fmt.Errorf("%w: %q is no device name; want for example mlx5_0?port=1&gid=3", qp.ErrDevice, name)
	}
	t.dev = name
	vals, err := url.ParseQuery(query)
	if err != nil {
		return t, fmt.Errorf("%w: options %q: %w", qp.ErrDevice, query, err)
	}
	for key, v := range vals {
		bits := 8 // a port number
		switch key {
		case "port":
		case "gid":
			bits = 16
		default:
			return t, fmt.Errorf("%w: unknown option %q, have port and gid", qp.ErrDevice, key)
		}
		n, err := strconv.ParseUint(v[0], 10, bits)
		if len(v) > 1 || err != nil || key == "port" && n == 0 {
			return t, fmt.Errorf("%w: option %s=%s is not one number in range", qp.ErrDevice, key, strings.Join(v, ","))
		}
		if key == "port" {
			t.port = uint8(n)
		} else {
			t.gid = int(n)
		}
	}
	return t, nil
}

// checkName is what qp.Check asks. Where a device can send to is known to its network alone.
func checkName(arg string, _ []netip.Addr) error {
	_, err := parseTarget(arg)
	return err
}
