package osdmap

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// Errors that those of this package wrap.
var (
	// ErrAway: the store does not answer, or has no majority. The call may have taken effect.
	ErrAway = errors.New("the configuration store is away")
	// ErrExists: there is another of that name or number.
	ErrExists = errors.New("exists already")
	// ErrNotFound: there is none.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: what is to be written makes no sense.
	ErrInvalid = errors.New("not valid")
	// ErrFormat: a newer program wrote the record.
	ErrFormat = errors.New("written by a newer program")
	// ErrDamaged: the record makes no sense.
	ErrDamaged = errors.New("damaged")
)

// Limits of records.
const (
	MaxName   = 63
	MaxHosts  = 64      // of a volume
	MaxSize   = 1 << 60 // bytes of a volume
	MaxAllow  = 128     // clients that a volume names
	maxRecord = 64 << 10
)

// A Host may have copies of volumes.
type Host struct {
	ID     core.ID `json:"id"`     // above 0, and never given to another host
	Name   string  `json:"name"`   // of its identity
	Peer   string  `json:"peer"`   // host:port at which other hosts reach its mcblock
	NBD    string  `json:"nbd"`    // host:port at which clients do
	Device string  `json:"device"` // address of its RDMA device
}

// Beside returns ErrExists if another host has the name or the number of this one.
func (h Host) Beside(x Host) error {
	if (x.ID == h.ID) == (x.Name == h.Name) {
		return nil
	}
	return fmt.Errorf("host %s with the number %d: %w: host %s has the number %d; give each host a name and a number of its own", h.Name, h.ID, ErrExists, x.Name, x.ID)
}

// A Volume is what does not change about a volume, but for Allow and Hosts. Hosts change with the map only, whose Up they are.
type Volume struct {
	ID        uint64    `json:"id"` // above 0, drawn at random: a volume made later under the same name is another
	Name      string    `json:"name"`
	Size      int64     `json:"size"`       // bytes, a multiple of BlockSize
	BlockSize int       `json:"block_size"` // bytes, a power of two from 512 to 65536
	Hosts     []core.ID `json:"hosts"`      // that may have a copy
	Created   time.Time `json:"created"`
	// Allow is which clients may open it; none: all that may connect. Each is an identity, as host:vm1, or Loopback.
	Allow []string `json:"allow,omitempty"`
}

// Loopback in the list of a volume's clients is each that connects from the host itself, in plain text.
const Loopback = "loopback"

// A VolumeState is a volume with its present map.
type VolumeState struct {
	Volume Volume
	Map    core.Map
}

// A State is all that there is, at one moment. It is not to be changed.
type State struct {
	Hosts   []Host        // by ID
	Volumes []VolumeState // by ID
	// Deleted are the numbers of volumes that were deleted. One that is neither here nor in Volumes was not:
	// the store is another one, or was restored from a copy.
	Deleted []uint64
	// Faults are the records that could not be read; each names its key, and wraps ErrFormat or ErrDamaged.
	Faults []error
	// Away is why the store has not answered since this was so (Watch); nil: it is up to date.
	Away error
}

// Volume returns a volume by its number, or nil.
func (s *State) Volume(id uint64) *VolumeState {
	i := slices.IndexFunc(s.Volumes, func(v VolumeState) bool { return v.Volume.ID == id })
	if i < 0 {
		return nil
	}
	return &s.Volumes[i]
}

// Host returns a host by its number, or nil.
func (s *State) Host(id core.ID) *Host {
	i := slices.IndexFunc(s.Hosts, func(h Host) bool { return h.ID == id })
	if i < 0 {
		return nil
	}
	return &s.Hosts[i]
}

// HostName returns the name of a host by its number, also if it is not known.
func (s *State) HostName(id core.ID) string {
	if h := s.Host(id); h != nil {
		return h.Name
	}
	return fmt.Sprintf("host %d", id)
}

// HostNames returns the names of hosts, as HostName does.
func (s *State) HostNames(ids []core.ID) []string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = s.HostName(id)
	}
	return names
}

// FirstMap is the map of a volume that has never been used: epoch 1, no primary, all hosts acting.
func FirstMap(v Volume, minSize int) core.Map {
	m := core.Map{Epoch: 1, MinSize: minSize, Up: v.Hosts}
	for _, id := range v.Hosts {
		m.Acting = append(m.Acting, core.Member{ID: id})
	}
	return m
}

func invalid(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, a...))
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func checkName(what, name string) error {
	if len(name) > MaxName || !nameForm.MatchString(name) {
		return invalid("name of the %s %.100q: want up to %d letters, digits, dots, dashes and underscores, a letter or digit first", what, name, MaxName)
	}
	return nil
}

// Check says what is wrong with a host's record; errors wrap ErrInvalid.
func (h *Host) Check() error {
	if err := checkName("host", h.Name); err != nil {
		return err
	}
	if h.ID == 0 {
		return invalid("host %s has the number 0: numbers begin with 1", h.Name)
	}
	for _, a := range []struct{ what, addr string }{{"peer", h.Peer}, {"nbd", h.NBD}} {
		host, port, err := net.SplitHostPort(a.addr)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || host == "" {
			return invalid("host %s: %s address %.100q: want host:port", h.Name, a.what, a.addr)
		}
	}
	if net.ParseIP(h.Device) == nil {
		return invalid("host %s: address of its RDMA device %.100q: want an IP address", h.Name, h.Device)
	}
	return nil
}

// Check says what is wrong with a volume; errors wrap ErrInvalid.
func (v *Volume) Check() error {
	if err := checkName("volume", v.Name); err != nil {
		return err
	}
	switch b := v.BlockSize; {
	case v.ID == 0:
		return invalid("volume %s has the number 0", v.Name)
	case b < 512 || b > 65536 || b&(b-1) != 0:
		return invalid("volume %s: blocks of %d bytes: want a power of two from 512 to 65536", v.Name, b)
	case v.Size <= 0 || v.Size > MaxSize || v.Size%int64(b) != 0:
		return invalid("volume %s: size of %d bytes: want a multiple of %d, up to %d", v.Name, v.Size, b, int64(MaxSize))
	case len(v.Hosts) == 0 || len(v.Hosts) > MaxHosts:
		return invalid("volume %s is on %d hosts: want 1 to %d", v.Name, len(v.Hosts), MaxHosts)
	}
	for i, id := range v.Hosts {
		if id == 0 || slices.Contains(v.Hosts[:i], id) {
			return invalid("volume %s: host number %d is 0 or there twice", v.Name, id)
		}
	}
	return v.checkAllow()
}

// clientForm is that of package identity.
var clientForm = regexp.MustCompile(`^(host|switch|admin):[A-Za-z0-9._-]{1,253}$`)

func (v *Volume) checkAllow() error {
	if len(v.Allow) > MaxAllow {
		return invalid("volume %s: %d clients: want at most %d", v.Name, len(v.Allow), MaxAllow)
	}
	for i, c := range v.Allow {
		if c != Loopback && !clientForm.MatchString(c) {
			return invalid("volume %s: client %.100q: want %s, or an identity as in a certificate: host:NAME or admin:NAME", v.Name, c, Loopback)
		}
		if slices.Contains(v.Allow[:i], c) {
			return invalid("volume %s: client %s is there twice", v.Name, c)
		}
	}
	return nil
}

// Allows says whether a client may open the volume, by its identity; one in plain text at the host itself is
// Loopback, and others without an identity are "".
func (v *Volume) Allows(client string) bool {
	return len(v.Allow) == 0 || slices.Contains(v.Allow, client)
}

// CheckMap says what is wrong with a map of this volume; errors wrap ErrInvalid.
func (v *Volume) CheckMap(m core.Map) error {
	switch {
	case m.Epoch == 0:
		return invalid("map of volume %s: epochs begin with 1", v.Name)
	case m.MinSize < 1 || m.MinSize > len(v.Hosts):
		return invalid("map of volume %s: min_size %d: want 1 to %d, the hosts of the volume", v.Name, m.MinSize, len(v.Hosts))
	case len(m.Acting) == 0 || len(m.Acting) > len(v.Hosts):
		return invalid("map of volume %s: %d acting members of %d hosts", v.Name, len(m.Acting), len(v.Hosts))
	case m.Since > m.Epoch || (m.Since == 0) != (m.Primary == core.Member{}):
		return invalid("map of volume %s: primary %v since epoch %d in epoch %d", v.Name, m.Primary, m.Since, m.Epoch)
	case len(m.Former) > len(v.Hosts):
		return invalid("map of volume %s: %d hosts have got places of others, of %d", v.Name, len(m.Former), len(v.Hosts))
	case m.Since > 0 && !m.Acts(m.Primary):
		return invalid("map of volume %s: the primary %v is not acting", v.Name, m.Primary)
	}
	for i, x := range m.Acting {
		if !slices.Contains(v.Hosts, x.ID) {
			return invalid("map of volume %s: member %d is not one of its hosts %v", v.Name, x.ID, v.Hosts)
		}
		if slices.ContainsFunc(m.Acting[:i], func(y core.Member) bool { return y.ID == x.ID }) {
			return invalid("map of volume %s: host %d is acting twice", v.Name, x.ID)
		}
	}
	return nil
}
