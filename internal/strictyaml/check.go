package strictyaml

import (
	"encoding/binary"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A name goes into frames, certificates and the names of files.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// GoodName reports whether a host, a switch or an administrator can have that name.
func GoodName(name string) bool { return nameForm.MatchString(name) }

// Name checks the name of a host or a switch; missing is said if it is empty.
func (f *Faults) Name(path, name, missing string) bool {
	switch {
	case name == "":
		f.Add(path, "missing: %s", missing)
	case !GoodName(name):
		f.Add(path, "%q: want up to 63 letters, digits, dots, dashes and underscores, a letter or digit first", name)
	default:
		return true
	}
	return false
}

// Host checks the name of a host with that address. Where a host is named, its address may stand
// instead: a name must not be another's.
func (f *Faults) Host(path, name, missing string, own netip.Addr) bool {
	if !f.Name(path, name, missing) {
		return false
	}
	if a, err := netip.ParseAddr(name); err == nil && own.IsValid() && a != own {
		f.Add(path, "%q is an IP address, and not its own: name or address names a host", name)
		return false
	}
	return true
}

// Station reports whether an IPv4 address can be that of one station.
func Station(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// Unicast checks an IPv4 address of one station that must be there; what says what it is.
func (f *Faults) Unicast(path string, a netip.Addr, what string) bool {
	switch {
	case !a.IsValid():
		f.Add(path, "missing: %s", what)
	case !a.Is4():
		f.Add(path, "%v is not IPv4, which alone is supported", a)
	case !Station(a):
		f.Add(path, "%v is not the address of one station", a)
	default:
		return true
	}
	return false
}

// InSubnet checks that the address of a host is neither the first nor the last of its subnet, if that is one of those.
func (f *Faults) InSubnet(path string, a netip.Addr, subnets []netip.Prefix) {
	for _, p := range subnets {
		if !p.Contains(a) || !a.Is4() || p.Bits() > 30 {
			continue
		}
		first := p.Masked().Addr()
		switch host := first.Next().Next(); a { // after the gateway's
		case first:
			f.Add(path, "%v is the address of the network %v itself: want one in it, as %v", a, p, host)
		case last(p):
			f.Add(path, "%v is the broadcast address of %v: want another one in it, as %v", a, p, host)
		}
	}
}

// last is the last address of an IPv4 prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|1<<(32-p.Bits())-1)
	return netip.AddrFrom4(b)
}

// A Claim is a prefix that a field assigns to a switch.
type Claim struct {
	netip.Prefix
	Of, Path string
}

// Overlaps reports claims that overlap: the one that stands first in the file, and another one.
func (f *Faults) Overlaps(all []Claim, found func(first, second Claim)) {
	slices.SortStableFunc(all, func(a, b Claim) int { return a.Compare(b.Prefix) })
	for i := 1; i < len(all); i++ { // sorted: an overlapping prefix follows its container
		if a, b := all[i-1], all[i]; a.Overlaps(b.Prefix) {
			all[i] = a // it may contain the next as well
			if f.Line(a.Path) > f.Line(b.Path) {
				a, b = b, a
			}
			found(a, b)
		}
	}
}

// Between checks a time.
func (f *Faults) Between(path string, d, least, most time.Duration) {
	if d < least || d > most {
		f.Add(path, "%v: want %v to %v", d, least, most)
	}
}

// Number checks a number.
func (f *Faults) Number(path string, n, least, most int) {
	if n < least || n > most {
		f.Add(path, "%d: want %d to %d", n, least, most)
	}
}

// HostPort checks "host:port" and returns the host.
func (f *Faults) HostPort(path, s string) (host string, ok bool) {
	host, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		f.Add(path, "%q is not an address with a port, as 192.0.2.1:9560", s)
	}
	return host, err == nil
}

// Reaches checks the "host:port" of a server elsewhere.
func (f *Faults) Reaches(path, s string) {
	host, ok := f.HostPort(path, s)
	a, err := netip.ParseAddr(host)
	_, port, _ := net.SplitHostPort(s)
	if n, _ := strconv.Atoi(port); ok && (host == "" || n == 0 || err == nil && a.IsUnspecified()) {
		f.Add(path, "%s is not an address to connect to, as 192.0.2.1:9560", s)
	}
}

// TLS holds the names of PEM files; the zero TLS is plain text.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	CA   string `yaml:"ca"`
}

// TLS checks the field tls.
func (f *Faults) TLS(t TLS) {
	if t != (TLS{}) && (t.Cert == "" || t.Key == "" || t.CA == "") {
		f.Add("tls", "incomplete: want cert, key and ca, or none of them")
	}
}

// Listens checks an address that is listened at: in plain text only this machine may reach it.
// remedy says where to take certificates from.
func (f *Faults) Listens(path, at string, plain bool, remedy string) {
	host, ok := f.HostPort(path, at)
	if ok && plain && !Loopback(host) && !f.Unread("tls") {
		f.Add(path, "%s can be reached from elsewhere, and nothing protects it: set tls%s, or insecure: true to verify no identity", at, remedy)
	}
}

// Metrics checks the field metrics: nothing else may be served at that address.
func (f *Faults) Metrics(at, listen string) {
	if at == "" {
		return
	}
	if _, ok := f.HostPort("metrics", at); ok && at == listen && !strings.HasSuffix(at, ":0") {
		f.Add("metrics", "%s is the address in listen: want another port", at)
	}
}

// Loopback says whether a host can be reached from this machine only.
func Loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// Scalar returns a name as it is written in YAML: in quotes if it would not be read as text.
func Scalar(name string) string {
	if strings.EqualFold(name, "null") {
		return strconv.Quote(name)
	}
	return name
}
