package identity

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Errors that those of this package wrap.
var (
	// ErrNoIdentity: a certificate or a claim has no identity.
	ErrNoIdentity = errors.New("no identity")
	// ErrMismatch: the server is not the one that the client expected.
	ErrMismatch = errors.New("not the identity expected")
	// ErrUntrusted: the server's certificate is not valid here.
	ErrUntrusted = errors.New("certificate not trusted")
	// ErrWantsTLS: the server speaks TLS, and the client plain text.
	ErrWantsTLS = errors.New("it speaks TLS, and this side has no certificate")
	// ErrFiles: a certificate, key or CA file cannot be used.
	ErrFiles = errors.New("bad certificate files")
)

// A Role is what an identity stands for: a host, a switch or an administrator.
type Role uint8

// Roles. No identity has the zero Role; where an identity is expected, it means any.
const (
	Host   Role = iota + 1 // a host's daemon
	Switch                 // a switch's agent
	Admin                  // an administrator's tool
)

var roles = [...]string{"any", "host", "switch", "admin"}

func (r Role) String() string {
	if int(r) >= len(roles) {
		return fmt.Sprintf("role %d", uint8(r))
	}
	return roles[r]
}

const (
	scheme   = "mcrdma:" // of URIs
	maxName  = 253       // characters of a name, as of a DNS name
	maxAddrs = 256       // addresses of a claim
	forms    = "mcrdma:host:NAME, mcrdma:switch:NAME or mcrdma:admin:NAME"
)

// An Identity identifies a client or a server. Names have up to 253 letters, digits, '.', '-' and
// '_'; case matters.
type Identity struct {
	Role  Role
	Name  string
	Addrs []netip.Addr // its own; IPv4 as such, never mapped to IPv6

	loopback bool // a peer in plain text on loopback: all loopback addresses are its own
}

// Is reports whether the identity has one of these roles.
func (id Identity) Is(any ...Role) bool { return id.Role != 0 && slices.Contains(any, id.Role) }

// Owns reports whether the address is one of the identity's own.
func (id Identity) Owns(a netip.Addr) bool {
	a = a.Unmap()
	return slices.Contains(id.Addrs, a) || id.loopback && a.IsLoopback()
}

// String is "role:name", followed by the addresses, with spaces between. Parse
// reads it.
func (id Identity) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v:%s", id.Role, id.Name)
	for _, a := range id.Addrs {
		fmt.Fprintf(&b, " %v", a)
	}
	return b.String()
}

// Parse reads what String writes: "switch:torA", "host:h1 10.1.0.11". Errors wrap
// ErrNoIdentity.
func Parse(s string) (Identity, error) {
	id, err := parse(s)
	if err != nil {
		return Identity{}, fmt.Errorf("identity: %w", err)
	}
	return id, nil
}

func parse(s string) (Identity, error) {
	who, list, more := strings.Cut(s, " ")
	id, err := parseWho(who)
	if err != nil || !more {
		return id, err
	}
	for f := range strings.SplitSeq(list, " ") {
		a, err := netip.ParseAddr(f)
		if err != nil || a.Zone() != "" {
			return Identity{}, fmt.Errorf("%w: %s: %.50q is not an IP address", ErrNoIdentity, who, f)
		}
		if len(id.Addrs) == maxAddrs {
			return Identity{}, fmt.Errorf("%w: %s: more than %d addresses", ErrNoIdentity, who, maxAddrs)
		}
		id.Addrs = append(id.Addrs, a.Unmap())
	}
	return id, nil
}

// parseWho reads "role:name".
func parseWho(s string) (Identity, error) {
	role, name, _ := strings.Cut(s, ":")
	r := slices.Index(roles[:], role)
	switch {
	case r <= 0:
		return Identity{}, fmt.Errorf("%w: %.300q is none of host:NAME, switch:NAME, admin:NAME", ErrNoIdentity, s)
	case len(name) > maxName || !nameForm.MatchString(name):
		return Identity{}, fmt.Errorf("%w: the name in %.300q is not 1 to %d letters, digits, '.', '-' and '_'", ErrNoIdentity, s, maxName)
	}
	return Identity{Role: Role(r), Name: name}, nil
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// FromCert reads the identity in a certificate, without verifying the certificate. URIs of other
// schemes are ignored. Errors wrap ErrNoIdentity.
func FromCert(c *x509.Certificate) (Identity, error) {
	var id Identity
	for _, u := range c.URIs {
		s := u.String()
		if u.Scheme+":" != scheme {
			continue
		}
		one, err := parseWho(strings.TrimPrefix(s, scheme))
		if err != nil {
			return Identity{}, fmt.Errorf("identity: certificate of %s has the URI %.300q: %w; URIs are %s", subject(c), s, err, forms)
		}
		if id.Role != 0 {
			return Identity{}, fmt.Errorf("identity: %w: certificate of %s names two identities, %v and %v; issue one for each",
				ErrNoIdentity, subject(c), id, one)
		}
		id = one
	}
	if id.Role == 0 {
		return Identity{}, fmt.Errorf("identity: %w: certificate of %s names no mcrdma identity; issue it with a URI (subject alternative name) %s",
			ErrNoIdentity, subject(c), forms)
	}
	for _, ip := range c.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			id.Addrs = append(id.Addrs, a.Unmap())
		}
	}
	return id, nil
}

// subject names a certificate in errors.
func subject(c *x509.Certificate) string {
	name := c.Subject.CommonName
	if name == "" && len(c.URIs) > 0 {
		name = c.URIs[0].String()
	}
	return fmt.Sprintf("%.100q", cmp.Or(name, c.Subject.String(), "(no name)"))
}

// check compares with what is expected; what is not said may be anything.
func (id Identity) check(expect Identity) error {
	foreign := func(a netip.Addr) bool { return !id.Owns(a) }
	if expect.Role != 0 && id.Role != expect.Role || expect.Name != "" && id.Name != expect.Name ||
		slices.ContainsFunc(expect.Addrs, foreign) {
		return fmt.Errorf("identity: %w: the server is %v, and should be %v; correct the address, or what is expected there, or the certificate",
			ErrMismatch, id, expect)
	}
	return nil
}
