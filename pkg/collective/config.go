package collective

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/pkg/collective/core"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// Defaults of a Config.
const (
	DefaultLanes = 2
	DefaultSlots = 8
	DefaultBlock = 11*4096 - 16 // with its trailer it fills eleven packets of the largest path MTU
	DefaultSmall = 4 << 10
	DefaultWait  = 30 * time.Second
	DefaultPoll  = 2 * time.Millisecond
)

// MaxLanes is the maximum number of concurrent operations.
const MaxLanes = mcrdma.Counters / 2

const (
	maxSlots = 128
	pathMTU  = 4096 // the largest
	maxBlock = 1 << 20
)

// A Config configures Join. Service and Hosts are required. They, and Lanes, Slots, Block, Small
// and Degree, must be the same at all ranks.
type Config struct {
	// Service is the name for which the ranks listen: see mcrdma.ListenConfig. A Client can be in a
	// service only once at a time.
	Service string
	// Hosts are the ranks' hosts, by rank, by name or address: 1 to 17.
	Hosts []string
	// Rank is this rank's index into Hosts.
	Rank int

	// Lanes is the number of concurrent operations, up to MaxLanes; 0: DefaultLanes.
	Lanes int
	// Slots is the maximum number of messages of a lane in flight to a rank; 0: DefaultSlots.
	Slots int
	// Block is the maximum size of a message in bytes, a multiple of 16; 0: DefaultBlock.
	Block int
	// Small is the size in bytes up to which Reduce and Allreduce use a tree, at most Block; 0:
	// DefaultSmall; negative: never.
	Small int
	// Degree is the degree of the tree, 1, 3, 7 or 15; 0: chosen for each size by what Join has
	// measured.
	Degree int

	// Poll is for how long a rank that waits in an operation of up to Small bytes, or in a Barrier, has its
	// device poll before it sleeps, if the device can (qp.Poller); 0: DefaultPoll; negative: never.
	Poll time.Duration

	// Wait is how long Join waits for ranks that are still starting; 0: DefaultWait.
	Wait time.Duration
	// Mode and Tuning are those of the ranks' groups.
	Mode   mcrdma.Mode
	Tuning mcrdma.Tuning
}

// Check returns the error that Join would return for an invalid Config, as far as that can be known without
// the daemon, which checks the names of Service and Hosts.
func (c Config) Check() error { return c.check() }

// check says what is wrong, and fills in defaults.
func (c *Config) check() error {
	c.Lanes, c.Slots, c.Block = cmp.Or(c.Lanes, DefaultLanes), cmp.Or(c.Slots, DefaultSlots), cmp.Or(c.Block, DefaultBlock)
	c.Small = max(cmp.Or(c.Small, min(DefaultSmall, c.Block)), -1)
	c.Wait, c.Poll = cmp.Or(c.Wait, DefaultWait), cmp.Or(c.Poll, DefaultPoll)
	wrong := func(format string, v ...any) error {
		return fmt.Errorf("%w: %s", mcrdma.ErrInvalid, fmt.Sprintf(format, v...))
	}
	for i, h := range c.Hosts {
		if at := slices.Index(c.Hosts, h); at != i {
			return wrong("Hosts: ranks %d and %d are both at %q; a host has one rank", at, i, h)
		}
	}
	switch {
	case c.Service == "":
		return wrong("Service is empty: it is the name for which the ranks listen")
	case len(c.Hosts) < 1 || len(c.Hosts) > core.MaxRanks:
		return wrong("%d Hosts: want 1 to %d", len(c.Hosts), core.MaxRanks)
	case c.Rank < 0 || c.Rank >= len(c.Hosts):
		return wrong("Rank %d: it is an index into Hosts, 0 to %d", c.Rank, len(c.Hosts)-1)
	case c.Lanes < 1 || c.Lanes > MaxLanes:
		return wrong("%d Lanes: want 1 to %d", c.Lanes, MaxLanes)
	case c.Slots < 1 || c.Slots > maxSlots:
		return wrong("%d Slots: want 1 to %d", c.Slots, maxSlots)
	case c.Block < 16 || c.Block > maxBlock || c.Block%16 != 0:
		return wrong("Block of %d bytes: want a multiple of 16 up to %d", c.Block, maxBlock)
	case c.Small > c.Block:
		return wrong("Small of %d bytes: a Block has %d", c.Small, c.Block)
	case c.Degree != 0 && c.Degree != 1 && c.Degree != 3 && c.Degree != 7 && c.Degree != 15:
		return wrong("Degree %d: it is 1, 3, 7 or 15", c.Degree)
	case c.Wait < 0:
		return wrong("Wait %v: it is not negative", c.Wait)
	}
	return nil
}

func (c *Config) layout() core.Layout {
	return core.Layout{Lanes: c.Lanes, Slots: c.Slots, Block: c.Block, Packet: pathMTU}
}

// at says what is wrong if this rank's host has another name and another address.
func (c *Config) at(host, address string) error {
	if h := c.Hosts[c.Rank]; h != host && h != address {
		return fmt.Errorf("%w: rank %d is %s, but this client is on %s (%s)", mcrdma.ErrInvalid, c.Rank, h, host, address)
	}
	return nil
}

// rules is the number of the rules by which ranks count each other's messages, and tell operations apart. It grows when they change.
const rules = 7

// regionName is what a rank asks the others for: they must have the same Config, and the same rules.
func (c *Config) regionName(rank int) string {
	return fmt.Sprintf("rank %d of %d: rules %d, Lanes %d, Slots %d, Block %d, Small %d, Degree %d", rank, len(c.Hosts), rules, c.Lanes, c.Slots, c.Block, c.Small, c.Degree)
}

// asks returns which rank asks for memory, or what is wrong with the request.
func (c *Config) asks(r *mcrdma.Request) (rank int, err error) {
	if len(r.Regions) != 1 {
		return 0, fmt.Errorf("%d regions are asked for: this is a rank of collective operations, with one", len(r.Regions))
	}
	name := r.Regions[0].Name
	if _, err := fmt.Sscanf(name, "rank %d of", &rank); err != nil || rank < 0 || rank >= len(c.Hosts) || name != c.regionName(rank) {
		return 0, fmt.Errorf("it joins as %.120q, and this is %q: ranks need the same Config but for Rank, and a release with the same rules", name, c.regionName(c.Rank))
	}
	if rank == c.Rank {
		return 0, fmt.Errorf("it joins as rank %d, which is this one, %s: Hosts have another order there, or Rank is wrong", rank, c.Hosts[rank])
	}
	if h := c.Hosts[rank]; h != r.Sender && h != r.Group.Source {
		return 0, fmt.Errorf("%s (%s) is not %s, the host of rank %d here: Hosts have another order there, or Rank is wrong", r.Sender, r.Group.Source, h, rank)
	}
	if want := uint64(core.Paths * c.layout().Half()); r.Regions[0].Length != want { //nolint:gosec // not negative
		return 0, fmt.Errorf("%d bytes are asked for, and %d needed", r.Regions[0].Length, want)
	}
	return rank, nil
}
