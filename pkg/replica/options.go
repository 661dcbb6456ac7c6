package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// Config configures a Host. All fields are required except Options and those that say otherwise.
type Config struct {
	Self     osdmap.Host    // is registered with the configuration manager
	Client   *mcrdma.Client // the caller closes it
	Manager  *osdmap.Manager
	Dir      string         // of the volumes' data
	Listener net.Listener   // for other hosts, at Self.Peer
	Files    identity.Files // PEM files Cert, Key and CA; the certificate names Self.Name; zero: plain text
	Options
	// Register, if not nil, adds services to the server at Listener.
	Register func(grpc.ServiceRegistrar)
	// Dial connects to other hosts; nil: by TCP.
	Dial func(ctx context.Context, target string) (net.Conn, error)
	// Registry gets the metrics; nil: none are kept.
	Registry prometheus.Registerer
	Log      *slog.Logger // nil: the default one
}

// Options must be the same on all hosts of a volume. Zero fields have defaults.
type Options struct {
	Mode      mcrdma.Mode // of the groups
	Algorithm string      // of relaying: mcrdma.Tuning.Algorithm
	// Lease is the duration of a lease that a member grants to the primary, and Grace is how long
	// the member then waits before it may take over. A dead primary is replaced a little after
	// Grace. Both must be longer than any pause of a working host. Default: 1.2 s, 1.5 s.
	Lease, Grace time.Duration
	Beat         time.Duration // between two requests for leases; default 1/5 of Lease
	Ring         int64         // bytes at each member, for entries in flight; default 64 MiB
	Memory       int           // bytes for a volume's entries, for each of the three kinds of buffers; default 64 MiB
	// Keep is the number of entries that the log keeps for members that return, and Limit the
	// number at which it accepts no more. Default: one for each MiB of the volume, from 1024 to
	// 16384; and 4 times as many.
	Keep, Limit uint64

	logDelay time.Duration // how long entries of the log wait to share a sync; default logDelay
}

// Fast returns Options with shorter times, for hosts and networks without long pauses.
func Fast() Options { return Options{Lease: 400 * time.Millisecond, Grace: 500 * time.Millisecond} }

func (o Options) withDefaults() Options {
	o.Lease = cmp.Or(o.Lease, 1200*time.Millisecond)
	o.Grace = cmp.Or(o.Grace, o.Lease*5/4)
	o.Beat = cmp.Or(o.Beat, o.Lease/5)
	o.Ring = cmp.Or(o.Ring, 64<<20)
	o.Memory = cmp.Or(o.Memory, 64<<20)
	o.logDelay = cmp.Or(o.logDelay, logDelay)
	return o
}

// keep returns Keep and Limit for a volume of a size.
func (o *Options) keep(size int64) (keep, limit uint64) {
	keep = cmp.Or(o.Keep, uint64(min(max(size>>20, 1024), 16384))) //nolint:gosec // above 0
	return keep, cmp.Or(o.Limit, 4*keep)
}

func (c *Config) check() error {
	switch {
	case c.Client == nil || c.Manager == nil || c.Listener == nil || c.Dir == "":
		return errors.New("replica: Config needs Client, Manager, Listener and Dir")
	case c.Ring < 4*(MaxEntry+align) || c.Ring%align != 0 || c.Ring > 1<<38:
		return fmt.Errorf("replica: a ring of %d bytes: want a multiple of %d, from 4 entries of 1 MiB to 256 GiB", c.Ring, align)
	case c.Memory < 4*MaxEntry:
		return fmt.Errorf("replica: memory of %d bytes: want at least 4 entries of 1 MiB", c.Memory)
	}
	if err := c.Self.Check(); err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	own, _, err := c.Files.Read()
	if err == nil && !c.Files.Plain() && (own.Role != identity.Host || own.Name != c.Self.Name) {
		err = fmt.Errorf("the certificate is of %v, and this is host %s", own, c.Self.Name)
	}
	if err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	return nil
}
