package fabric

import (
	"net"
	"net/netip"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
)

// Device puts a softroce device in a host's place: with its address, its MAC and
// its wire. From then on the host itself neither sends nor receives.
func (f *Fabric) Device(name string, o softroce.Options) *softroce.Device {
	f.t.Helper()
	h := f.host(name)
	h.close()
	link, err := framelink.New(&conn{plug: h.wire.sockets[1].plug()}, framelink.Config{
		Prefix: netip.PrefixFrom(h.Addr, h.node.Prefix.Bits()), Gateway: h.node.gateway(), MAC: h.mac})
	f.must(err)
	d, err := softroce.New(link, o)
	f.must(err)
	f.t.Cleanup(func() { _ = d.Close() })
	return d
}

// A conn is a wire as framelink takes it.
type conn struct {
	*plug
	held []*frame // what Recv returned last
}

var _ framelink.Conn = (*conn)(nil)

func (c *conn) Send(list [][]byte) error {
	if !c.Up() {
		return net.ErrClosed
	}
	c.plug.Send(list)
	return nil
}

func (c *conn) Recv(list [][]byte) (int, error) {
	for _, f := range c.held {
		frames.Put(f)
	}
	c.held = c.held[:0]
	f := c.next()
	if f == nil {
		return 0, net.ErrClosed
	}
	for ; f != nil; f = c.more() {
		list[len(c.held)] = f.b
		c.held = append(c.held, f)
		if len(c.held) == len(list) {
			break
		}
	}
	return len(c.held), nil
}

func (c *conn) Counters(m map[string]uint64) { m["tx_drop_overflow"] += c.wire.full.Load() }
