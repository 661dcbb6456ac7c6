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

// Key names a group: by its number at the sender's daemon, which it has for all its life,
// written in decimals, and by its MC_ID at switches and in packets, in hexadecimals. Either is
// 0 if it is not known.
type Key struct {
	Source netip.Addr
	Number uint64
	ID     uint32
}

// ParseKey reads SOURCE/NUMBER or SOURCE/0xMC_ID. What it returns has only the one or the other.
func ParseKey(s string) (Key, error) {
	const form = "a group is SOURCE/NUMBER, such as 10.1.0.1/3, or with its MC_ID, SOURCE/0x800001"
	source, id, ok := strings.Cut(s, "/")
	if !ok {
		return Key{}, fmt.Errorf("%q: %s", s, form)
	}
	addr, err := netip.ParseAddr(source)
	if err != nil || !addr.Is4() {
		return Key{}, fmt.Errorf("%q: %q is not an IPv4 address; %s", s, source, form)
	}
	if hex, ok := strings.CutPrefix(strings.ToLower(id), "0x"); ok {
		n, err := strconv.ParseUint(hex, 16, 64)
		if err != nil || n == 0 || n > maxID {
			return Key{}, fmt.Errorf("%q: the MC_ID %q is not one from 0x1 to %#x; %s", s, id, maxID, form)
		}
		return Key{Source: addr, ID: uint32(n)}, nil
	}
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil || n == 0 {
		return Key{}, fmt.Errorf("%q: %q is not a number from 1 on; %s", s, id, form)
	}
	return Key{Source: addr, Number: n}, nil
}

// KeyOf is the group's name as an agent writes it. It may be anything that an agent
// can write.
func KeyOf(k *mcrdmav1.GroupKey) string {
	if k.GetNumber() == 0 {
		return k.GetSource() + "/" + qpnText(k.GetMcId())
	}
	return k.GetSource() + "/" + strconv.FormatUint(k.GetNumber(), 10)
}

// String is what ParseKey reads: with the number, or else with the MC_ID.
func (k Key) String() string { return KeyOf(k.Proto()) }

// title is all that is known of it.
func (k Key) title() string {
	if k.Number == 0 {
		return k.String()
	}
	return k.String() + ", MC_ID " + qpnText(k.ID)
}

// Proto is the key as agents are asked for it.
func (k Key) Proto() *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: k.Source.String(), Number: k.Number, McId: k.ID}
}

// qpnText is a QPN as drivers and tools print it.
func qpnText(n uint32) string { return fmt.Sprintf("0x%06x", n) }
