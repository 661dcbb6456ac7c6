package softroce

import (
	"fmt"
	"net/netip"
	"net/url"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/udplink"
)

// hostLink prepares an attachment to the host's own stack and takes its options
// from q.
func hostLink(where string, q url.Values) (func() (link.Link, error), error) {
	addr, err := netip.ParseAddr(where)
	if err != nil {
		return nil, fmt.Errorf("want an IPv4 address, as in softroce:10.0.0.1, or softroce:%s: %w", framelink.Syntax, err)
	}
	opt, err := udplink.ParseOptions(q)
	if err != nil {
		return nil, err
	}
	return func() (link.Link, error) { return udplink.Open(addr, opt) }, nil
}
