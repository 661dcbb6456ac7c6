package grouptree

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// maxID is the largest MC_ID: it is a QPN, of 24 bits.
const maxID = 1<<24 - 1

// Key names a group, written SOURCE/MC_ID.
type Key struct {
	Source netip.Addr
	ID     uint32
}

// ParseKey reads SOURCE/MC_ID: the sender's IPv4 address, and the MC_ID in decimals or,
// after 0x, in hexadecimals.
func ParseKey(s string) (Key, error) {
	const form = "a group is named SOURCE/MC_ID, such as 10.1.0.1/2049 or 10.1.0.1/0x801"
	source, id, ok := strings.Cut(s, "/")
	if !ok {
		return Key{}, fmt.Errorf("%q: %s", s, form)
	}
	addr, err := netip.ParseAddr(source)
	if err != nil || !addr.Is4() {
		return Key{}, fmt.Errorf("%q: %q is not an IPv4 address; %s", s, source, form)
	}
	digits, base := id, 10
	if hex, ok := strings.CutPrefix(strings.ToLower(id), "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil || n > maxID {
		return Key{}, fmt.Errorf("%q: the MC_ID %q is not one from 0 to %d; %s; to the number that a daemon gives a group, \"cmd-daemon group show\" at its sender's host says the MC_ID",
			s, id, maxID, form)
	}
	return Key{Source: addr, ID: uint32(n)}, nil
}

// KeyOf is the group's name as an agent writes it. It may be anything that an agent
// can write.
func KeyOf(k *mcrdmav1.GroupKey) string {
	return k.GetSource() + "/" + strconv.FormatUint(uint64(k.GetMcId()), 10)
}

// String is SOURCE/MC_ID, with the MC_ID in decimals.
func (k Key) String() string { return fmt.Sprintf("%v/%d", k.Source, k.ID) }

// Proto is the key as agents are asked for it.
func (k Key) Proto() *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: k.Source.String(), McId: k.ID}
}
