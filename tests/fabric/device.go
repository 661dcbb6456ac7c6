package fabric

import (
	"net/netip"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

// Device puts a softroce device in a host's place: with its address, its MAC and
// its wire. From then on the host itself neither sends nor receives.
func (f *Fabric) Device(name string, o softroce.Options) *softroce.Device {
	f.t.Helper()
	h := f.host(name)
	h.close()
	link, err := framelink.New(memnet.NIC{Plug: h.socket.plug()}, framelink.Config{
		Prefix: netip.PrefixFrom(h.Addr, h.node.Prefix.Bits()), Gateway: h.node.gateway(), MAC: h.mac})
	f.must(err)
	d, err := softroce.New(link, o)
	f.must(err)
	f.t.Cleanup(func() { _ = d.Close() })
	return d
}
