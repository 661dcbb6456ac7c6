package lab

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// p4rtTarget is gRPC's target for a switch, in its namespace.
var p4rtTarget = fmt.Sprintf("passthrough:///127.0.0.1:%d", p4rtPort)

// dialP4Runtime returns options with which p4rtTarget connects to the switch.
func (n *SwitchNode) dialP4Runtime() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (conn net.Conn, err error) {
			err = n.Space.Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, "tcp4", addr)
				return err
			})
			return conn, err
		})}
}

// CopiesKeepICRC reads from the switch whether it keeps the ICRC of all copies: its mode is
// neutral, and it has constants for everything that it rewrites. It returns the number of copies
// for receivers; the error names those whose ICRC the switch would recompute.
func (n *SwitchNode) CopiesKeepICRC(ctx context.Context) (last int, err error) {
	c, err := p4rt.New(p4rt.Config{Target: p4rtTarget, Dial: n.dialP4Runtime()})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	s, err := c.Read(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", n.Name, err)
	}
	last, err = copiesKeepICRC(s)
	if err != nil {
		err = fmt.Errorf("%s: %w", n.Name, err)
	}
	return last, err
}

// copiesKeepICRC is CopiesKeepICRC for a given state. A copy for a branch may keep its address, and
// so all headers; a copy for a receiver never does, because no queue pair has an MC_ID as its
// number.
func copiesKeepICRC(s *switchspec.State) (last int, err error) {
	mode := switchspec.ICRCRecompute
	for x := range switchspec.Of[switchspec.Settings](s) {
		mode = x.ICRC
	}
	if mode != switchspec.ICRCNeutral {
		return 0, fmt.Errorf("the mode of the ICRC is %v, and not %v", mode, switchspec.ICRCNeutral)
	}
	for r := range switchspec.Of[switchspec.Replica](s) {
		if !r.Last {
			continue
		}
		last++
		if r.Neutral == 0 {
			return last, fmt.Errorf("no constant keeps the ICRC of %v", r)
		}
	}
	for r := range switchspec.Of[switchspec.Region](s) {
		if r.Neutral == 0 && (r.Offset != 0 || r.NewRKey != r.RKey) {
			return last, fmt.Errorf("no constant keeps the ICRC of %v", r)
		}
	}
	return last, nil
}

// CopiesKeepICRC checks all switches.
func (l *Lab) CopiesKeepICRC(ctx context.Context) (last int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, n := range l.Switches {
		more, err := n.CopiesKeepICRC(ctx)
		if last += more; err != nil {
			return last, err
		}
	}
	return last, nil
}
