// Package group implements the life of a group as state machines: [Sender] is one group at its
// sender's daemon, [Memberships] are all memberships of one group at a receiver's daemon. [Stall]
// finds the receivers that stall a formation. The machines are pure: each event is a method call
// with the time as an argument, and Take returns the resulting actions. The caller carries them out
// and reports the outcome of each as another event. [Host] checks the requests of applications and
// other daemons.
package group

import (
	"net/netip"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A Formation describes the connections of a group. It is immutable once it has been passed on.
type Formation struct {
	N         uint32
	MCID      uint32
	PSN       uint32
	Path      mcrdmav1.Path
	Why       []string
	Receivers []Receiver
	First     netip.Addr // receiver that the sender's queue pair is connected to
	Have      uint64
	Relay     *Relay `json:",omitempty"`
	Sender    Endpoint
	// MaxPackets is the maximum number of the sender's packets in flight, for PATH_SWITCH; 0: the
	// agent has not said.
	MaxPackets uint32 `json:",omitempty"`
	// Transient: the path is PATH_RELAY only because the agent was away.
	Transient bool
	// View is the number of the set of receivers. It rises with each formation and each removal; 0:
	// it was formed by a daemon without views.
	View uint32 `json:",omitempty"`

	Tree   []string `json:"-"`
	Phases []Phase  `json:"-"`
	Absent []Absent `json:"-"`
}

// An Absent receiver should have joined with a formation, and has not.
type Absent struct {
	Addr netip.Addr
	Loss
}

// A Receiver is a member of a formation, by its daemon's answer.
type Receiver struct {
	Addr               netip.Addr
	Host               string
	QPN                uint32
	Regions            []Region // without names and lengths, which are in the Spec
	Bootstrap          string
	Transport          string
	Have               uint64
	Rack               uint32
	Unicast            []byte `json:"-"`          // for the sender's application, which keeps it secret
	NoDevice           string `json:",omitempty"` // why its application has none
	SeesIdentification bool   `json:",omitempty"` // its device takes packets with any IPv4 identification
}

// An Endpoint is the sender's end of a formation: its queue pair and listener.
type Endpoint struct {
	QPN       uint32
	Bootstrap string
	Sent      uint64
	CatchUp   bool   `json:",omitempty"` // hosts are to relay
	NoDevice  string `json:",omitempty"` // why its application has none
}

// A Relay says how hosts relay.
type Relay struct {
	Algorithm string
	Transport string
	Block     uint32
	Racks     []uint32 `json:",omitempty"`
	Group     uint64
}

// A Phase is the duration of a part of a formation.
type Phase struct {
	Name string
	Took time.Duration
}

// A Departure is a receiver that was, or is being, removed from a group.
type Departure struct {
	Addr netip.Addr
	Host string
	Why  string
	At   time.Time `json:",omitzero"` // when that was decided
	// Since and Clock are in records of the previous release; nothing reads them.
	Since int64  `json:",omitempty"`
	Clock string `json:",omitempty"`
}

// Addrs are the receivers' addresses.
func (f *Formation) Addrs() []netip.Addr {
	out := make([]netip.Addr, 0, len(f.Receivers))
	for _, r := range f.Receivers {
		out = append(out, r.Addr)
	}
	return out
}

// Receiver returns the receiver with an address; nil: there is none. f may be nil.
func (f *Formation) Receiver(a netip.Addr) *Receiver {
	if f != nil {
		for i := range f.Receivers {
			if r := &f.Receivers[i]; r.Addr == a {
				return r
			}
		}
	}
	return nil
}

// Has says whether a host is a receiver. f may be nil.
func (f *Formation) Has(a netip.Addr) bool { return f.Receiver(a) != nil }

// switched says whether switches copy.
func (f *Formation) switched() bool { return f.Path == mcrdmav1.Path_PATH_SWITCH }
