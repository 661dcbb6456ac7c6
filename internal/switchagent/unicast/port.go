package unicast

import "github.com/mcrdma/mcrdma/internal/switchspec"

// A port with what is known of its link.
type port struct {
	Port
	label   string // its number, in decimal
	state   linkState
	peer    switchspec.MAC // by its hellos
	assumed switchspec.MAC // as the switch had it, until Settled
}

type linkState uint8

const (
	linkUnknown linkState = iota
	linkUp
	linkDown
)

// routed says whether a switch is behind the port.
func (p *port) routed() bool { return p.To != "" }

// usable says whether packets may leave by the port.
func (p *port) usable() bool { return !p.routed() || !p.Hello || p.state == linkUp || p.presumed() }

// presumed says whether a link is taken to be as it was on the switch that was
// adopted.
func (p *port) presumed() bool {
	return p.Hello && p.state == linkUnknown && p.assumed != switchspec.MAC{}
}

// mac is the neighboring switch's, as far as the link tells; else zero.
func (p *port) mac() switchspec.MAC {
	for _, m := range []switchspec.MAC{p.peer, p.assumed, p.PeerMAC} {
		if p.routed() && m != (switchspec.MAC{}) {
			return m
		}
	}
	return switchspec.MAC{}
}
