package group

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// Auto leaves a choice to the daemon.
const Auto = "auto"

// A Spec is an application's specification of a group.
type Spec struct {
	Service   string
	Program   string
	Mode      mcrdmav1.Mode
	MinSize   uint32
	DSCP, MTU uint32
	Regions   []Region
	Algorithm string // of relaying; "": chosen
	Transport string // of relaying; "": chosen
	Typical   uint64
	CNPGap    time.Duration
	Waits     bool `json:",omitempty"` // with too few receivers, for further ones
}

// A Region is memory of each receiver that the sender writes to: in a Spec as the
// sender's packets address it, in a Receiver as that one's queue pair does.
type Region struct {
	Name   string `json:",omitempty"`
	Length uint64 `json:",omitempty"`
	RKey   uint32
	VA     uint64
}

// Relays says whether hosts may relay in a formation of the group.
func (sp *Spec) Relays(from Endpoint) bool {
	return from.CatchUp || sp.Mode != mcrdmav1.Mode_MODE_REQUIRE
}

// RegionSpecs are the regions as the contract has them.
func (sp *Spec) RegionSpecs() []*mcrdmav1.RegionSpec {
	var out []*mcrdmav1.RegionSpec
	for _, r := range sp.Regions {
		out = append(out, &mcrdmav1.RegionSpec{Name: r.Name, Length: r.Length, Rkey: r.RKey, Va: r.VA})
	}
	return out
}

// SwitchReceivers are receivers as the agent of the switch gets them.
func (sp *Spec) SwitchReceivers(list []Receiver) []*mcrdmav1.Receiver {
	out := make([]*mcrdmav1.Receiver, 0, len(list))
	for _, r := range list {
		x := &mcrdmav1.Receiver{Address: r.Addr.String(), Qpn: r.QPN, SeesIdentification: r.SeesIdentification}
		for i, p := range r.Regions {
			x.Regions = append(x.Regions, &mcrdmav1.MemoryRegion{Rkey: sp.Regions[i].RKey, Va: sp.Regions[i].VA, Length: sp.Regions[i].Length,
				ReceiverRkey: p.RKey, ReceiverVa: p.VA})
		}
		out = append(out, x)
	}
	return out
}

// NoSwitch returns why switches are not even tried for a formation; "": they are.
func (h Host) NoSwitch(sp *Spec, f *Formation) string {
	switch {
	case sp.Mode == mcrdmav1.Mode_MODE_OFF:
		return "the application wants it so (mode off)"
	case f.Sender.CatchUp:
		return "some receivers have to catch up with others"
	case !h.Switch:
		return "no switch agent is configured"
	case f.Sender.QPN == 0:
		return f.Sender.noDevice()
	}
	for _, r := range f.Receivers {
		if r.QPN == 0 {
			return r.noDevice()
		}
	}
	return ""
}

// NoRDMA returns the member whose missing device prevents relaying over queue pairs; "": none. The
// host is "" for the sender.
func NoRDMA(f *Formation) (why, host string) {
	if f.Sender.QPN == 0 {
		return f.Sender.noDevice(), ""
	}
	for _, r := range f.Receivers {
		if r.Transport != transports[0] {
			return r.noDevice(), r.Host
		}
	}
	return "", ""
}

func (e *Endpoint) noDevice() string {
	return strings.TrimSuffix("the sender's application has no RDMA device: "+e.NoDevice, ": ")
}

func (r *Receiver) noDevice() string {
	return strings.TrimSuffix(r.Host+": the receiver's application has no RDMA device: "+r.NoDevice, ": ")
}

// Spec checks an application's request before any other host is asked.
func (h Host) Spec(program string, req *mcrdmav1.CreateGroupRequest) (Spec, []netip.Addr, error) {
	sp := Spec{Service: req.GetService(), Program: program, Mode: cmp.Or(req.GetMode(), mcrdmav1.Mode_MODE_AUTO), MinSize: req.GetMinSize(),
		DSCP: req.GetDscp(), MTU: req.GetMtu(), Algorithm: req.GetAlgorithm(), Transport: req.GetTransport(),
		Typical: req.GetTypicalSize(), CNPGap: req.GetCnpGap().AsDuration(), Waits: req.GetWaits()}
	if err := CheckService(sp.Service); err != nil {
		return sp, nil, err
	}
	addrs, err := h.ReceiversFrom(req.GetReceivers())
	if err != nil {
		return sp, nil, err
	}
	size := uint32(len(addrs)) + 1 //nolint:gosec // at most 17
	switch {
	case mcrdmav1.Mode_name[int32(sp.Mode)] == "":
		return sp, nil, failure.New(mcrdmav1.Reason_INVALID, "there is no mode %d", sp.Mode)
	case sp.DSCP > 63:
		return sp, nil, failure.New(mcrdmav1.Reason_INVALID, "DSCP %d has more than 6 bits", sp.DSCP)
	case sp.MinSize > size:
		return sp, nil, failure.New(mcrdmav1.Reason_MIN_SIZE, "min_size %d is more than the %d copies, the sender's own counted, that the group can have", sp.MinSize, size)
	case sp.CNPGap < 0 || sp.CNPGap > time.Hour:
		return sp, nil, failure.New(mcrdmav1.Reason_INVALID, "a least time of %v between CNPs is not in 0 to 1 h", sp.CNPGap)
	}
	if sp.MinSize == 0 {
		sp.MinSize = size - size/2
	}
	if sp.Regions, err = h.regionsFrom(req.GetRegions()); err != nil {
		return sp, nil, err
	}
	return sp, addrs, sp.checkRelay()
}

// ReceiversFrom resolves addresses and names of hosts.
func (h Host) ReceiversFrom(list []string) ([]netip.Addr, error) {
	if len(list) == 0 {
		return nil, failure.New(mcrdmav1.Reason_INVALID, "a group without receivers: name at least one")
	}
	if most := h.Receivers; len(list) > most {
		return nil, failure.New(mcrdmav1.Reason_TOO_MANY_RECEIVERS, "%d receivers, and %d is the most: make several groups", len(list), most)
	}
	var out []netip.Addr
	names := map[netip.Addr]string{}
	for _, s := range list {
		a, err := h.resolve(s)
		if err != nil {
			return nil, err
		}
		if a == h.Addr {
			return nil, failure.New(mcrdmav1.Reason_INVALID, "receiver %q is the sender itself, which has the data: leave it out", s)
		}
		if was, ok := names[a]; ok {
			return nil, failure.New(mcrdmav1.Reason_DUPLICATE_ADDRESS, "receivers %q and %q both are %v: name each host once", was, s, a)
		}
		names[a] = s
		out = append(out, a)
	}
	return out, nil
}

// resolve finds a host's address.
func (h Host) resolve(s string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if !a.Is4() || a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return netip.Addr{}, failure.New(mcrdmav1.Reason_INVALID, "receiver %v is not an IPv4 address of a host", a)
		}
		return a, nil
	}
	if s == h.Name {
		return h.Addr, nil
	}
	if a, ok := h.Hosts[s]; ok {
		return a, nil
	}
	return netip.Addr{}, failure.New(mcrdmav1.Reason_NO_SUCH_HOST, "no host %q is in the daemon's configuration: add it under hosts, or give its address", failure.Clip(s, failure.MaxName))
}

// regionsFrom gives regions the keys and addresses that the sender's packets carry.
func (h Host) regionsFrom(list []*mcrdmav1.RegionSpec) ([]Region, error) {
	if n, most := len(list), h.Regions; n > most {
		return nil, failure.New(mcrdmav1.Reason_LIMIT, "%d memory regions, and %d is the most: join some, or raise limits.regions", n, most)
	}
	var out []Region
	names := map[string]bool{}
	for i, r := range list {
		switch {
		case r.GetLength() == 0 || r.GetLength() > maxRegion:
			return nil, failure.New(mcrdmav1.Reason_INVALID, "memory region %d (%q) of %d bytes: the length is 1 to 2^40", i, failure.Clip(r.GetName(), failure.MaxName), r.GetLength())
		case len(r.GetName()) > failure.MaxName:
			return nil, failure.New(mcrdmav1.Reason_INVALID, "the name of memory region %d has %d characters, and %d is the most", i, len(r.GetName()), failure.MaxName)
		case r.GetName() != "" && names[r.GetName()]:
			return nil, failure.New(mcrdmav1.Reason_INVALID, "two memory regions are called %q", r.GetName())
		}
		names[r.GetName()] = true
		out = append(out, Region{Name: strings.ToValidUTF8(r.GetName(), "\ufffd"), Length: r.GetLength(),
			RKey: rocev2.PortKey(uint16(i)), VA: uint64(i+1) << 40}) //nolint:gosec // few regions
	}
	return out, nil
}

// Sender checks what the sender brings to a formation.
func (h Host) Sender(sp *Spec, req *mcrdmav1.Forming) (Endpoint, error) {
	from := Endpoint{QPN: req.GetQpn(), Bootstrap: req.GetBootstrap(), Sent: req.GetSent(), CatchUp: req.GetCatchUp(),
		NoDevice: failure.Clip(req.GetNoDevice(), failure.MaxText)}
	relays := sp.Relays(from)
	switch {
	case from.QPN > maxQPN || from.QPN == 1:
		return from, failure.New(mcrdmav1.Reason_INVALID, "%#x is not the QPN of a device", from.QPN)
	case from.QPN != 0 && !validMTU(sp.MTU):
		return from, failure.New(mcrdmav1.Reason_MTU, "%d is not a path MTU of a device: one is 256, 512, 1024, 2048 or 4096", sp.MTU)
	case !relays && !h.Switch:
		return from, failure.New(mcrdmav1.Reason_NO_SWITCH, "mode require, and the daemon's configuration names no switch agent: add it under switch, or use mode auto")
	case !relays && from.QPN == 0:
		return from, failure.New(mcrdmav1.Reason_NO_SWITCH, "mode require, and the application has no RDMA device: open one, or use mode auto")
	case from.QPN == 0 && from.Bootstrap == "":
		return from, failure.New(mcrdmav1.Reason_INVALID, "the sender has neither a queue pair nor an address for relaying")
	case relays && from.Bootstrap == "" && (!h.Switch || from.CatchUp || sp.Mode == mcrdmav1.Mode_MODE_OFF):
		return from, failure.New(mcrdmav1.Reason_INVALID, "hosts are to relay, and the sender has no address where it listens for that")
	}
	if from.Bootstrap != "" {
		return from, checkEndpoint(from.Bootstrap, "the sender's address for relaying")
	}
	return from, nil
}

// checkRelay says what is wrong with how hosts are to relay.
func (sp *Spec) checkRelay() error {
	if sp.Algorithm != "" && sp.Algorithm != Auto {
		if err := new(schedule.Algorithm).UnmarshalText([]byte(failure.Clip(sp.Algorithm, failure.MaxName))); err != nil {
			return failure.New(mcrdmav1.Reason_INVALID, "the algorithm of relaying: %v", err)
		}
	}
	switch sp.Transport {
	case "", Auto, "rdma", "tcp":
		return nil
	}
	return failure.New(mcrdmav1.Reason_INVALID, "the transport of relaying is auto, rdma or tcp, and not %q", failure.Clip(sp.Transport, failure.MaxName))
}

// NameOf returns what the configuration calls the host with an address; "": nothing.
func (h Host) NameOf(a netip.Addr) string {
	for name, x := range h.Hosts {
		if x == a {
			return name
		}
	}
	return ""
}
