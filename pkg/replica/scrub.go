package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/store"
)

// scrubTime is how long the comparison of a piece is repeated if it was written to meanwhile, or
// the acting set changes.
const scrubTime = 10 * time.Second

// ErrUnreadable means that a host cannot read its copy.
var ErrUnreadable = errors.New("it cannot be read")

var errBusy = errors.New("written to all the time")

// A Scrubbed is the comparison of a piece of a volume at all acting members, as of the same entry
// of the log.
type Scrubbed struct {
	Offset, Length int64
	Sums           []Sum
	Busy           error // why it could not be compared
}

// A Sum is a member's checksum.
type Sum struct {
	Host core.ID
	CRC  uint32 // CRC-32C
	Err  error  // it cannot be read
}

// Wrong returns the hosts that differ from the majority, or cannot read the piece. If no content
// has a majority, it returns all hosts.
func (p *Scrubbed) Wrong() (hosts []core.ID) {
	votes, read := map[uint32]int{}, 0
	for _, s := range p.Sums {
		if s.Err == nil {
			votes[s.CRC]++
			read++
		}
	}
	for _, s := range p.Sums {
		if s.Err != nil || 2*votes[s.CRC] <= read {
			hosts = append(hosts, s.Host)
		}
	}
	return hosts
}

// Scrub compares the copies of all acting members of a volume, piece by piece, while clients write,
// and reports each piece.
func (o *Operator) Scrub(ctx context.Context, volume uint64, tell func(s *osdmap.State, p Scrubbed)) error {
	s, v, err := o.look(ctx, volume)
	if err != nil {
		return err
	}
	size := v.Volume.Size
	for off := int64(0); off < size; off += store.Piece {
		p := Scrubbed{Offset: off, Length: min(store.Piece, size-off)}
		for begun := time.Now(); ; {
			again := o.compare(ctx, v, &p)
			if again == nil {
				break
			}
			if time.Since(begun) > scrubTime {
				if p.Sums, p.Busy = nil, again; !errors.Is(again, errBusy) {
					return again
				}
				break
			}
			select {
			case <-time.After(retryTime):
			case <-ctx.Done():
				return ctx.Err()
			}
			if s, v, err = o.look(ctx, volume); err != nil {
				return err
			}
		}
		tell(s, p)
	}
	return nil
}

// compare asks all acting members for a piece, and returns why it must be repeated, if so.
func (o *Operator) compare(ctx context.Context, v *osdmap.VolumeState, p *Scrubbed) (again error) {
	ask := func(id core.ID, n int64, at *replicav1.Version) (*replicav1.ChecksumResponse, error) {
		return query(ctx, o, id, replicav1.ReplicasClient.Checksum, &replicav1.ChecksumRequest{Volume: v.Volume.ID, Offset: p.Offset, Length: n, At: at})
	}
	if v.Map.Since == 0 {
		return fmt.Errorf("volume %s has no primary", v.Volume.Name)
	}
	point, err := ask(v.Map.Primary.ID, 0, nil)
	if err != nil {
		return err
	}
	if point.GetChecked() != replicav1.Checked_CHECKED_DONE {
		return fmt.Errorf("the primary of volume %s does not serve", v.Volume.Name)
	}
	p.Sums = make([]Sum, len(v.Map.Acting))
	failures := make([]error, len(v.Map.Acting))
	ids := hostsOf(v.Map.Acting)
	forEach(ids, func(i int, id core.ID) {
		a, err := ask(id, p.Length, point.GetAt())
		p.Sums[i] = Sum{Host: id, CRC: a.GetCrc()}
		switch c := a.GetChecked(); {
		case err != nil:
			failures[i] = err
		case c == replicav1.Checked_CHECKED_UNREADABLE:
			p.Sums[i].Err = fmt.Errorf("%w: %s", ErrUnreadable, a.GetError())
		case c == replicav1.Checked_CHECKED_PAST:
			failures[i] = fmt.Errorf("%d bytes at %d: %w", p.Length, p.Offset, errBusy)
		case c != replicav1.Checked_CHECKED_DONE:
			failures[i] = fmt.Errorf("host %d does not have all of the log: %v", id, c)
		}
	})
	return cmp.Or(failures...)
}
