package connmgr

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// A groupID names a group for all its life.
type groupID struct {
	source netip.Addr
	number uint64
}

func (id groupID) proto() *mcrdmav1.GroupID {
	return &mcrdmav1.GroupID{Source: id.source.String(), Number: id.number}
}

// MarshalText makes a groupID a text in records.
func (id groupID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the opposite of MarshalText.
func (id *groupID) UnmarshalText(b []byte) error {
	source, number, _ := bytes.Cut(b, []byte("/"))
	addr, err := netip.ParseAddr(string(source))
	if err != nil {
		return err
	}
	id.source = addr
	_, err = fmt.Sscan(string(number), &id.number)
	return err
}

func (id groupID) String() string {
	return id.source.String() + "/" + strconv.FormatUint(id.number, 10)
}

func groupIDFrom(g *mcrdmav1.GroupID) (groupID, error) {
	source, err := machine.AddrFrom(g.GetSource(), "source of the group")
	if err != nil {
		return groupID{}, err
	}
	if g.GetNumber() == 0 {
		return groupID{}, failure.New(mcrdmav1.Reason_INVALID, "a group of %v without number", source)
	}
	return groupID{source, g.GetNumber()}, nil
}

func compareIDs(x, y groupID) int {
	return cmp.Or(x.source.Compare(y.source), cmp.Compare(x.number, y.number))
}

// identity is who this daemon is to others.
func (m *Manager) identity() identity.Identity {
	return identity.Identity{Role: identity.Host, Name: m.cfg.Name, Addrs: []netip.Addr{m.cfg.Address}}
}
