package mcrdma

import "context"

// A Group is a sender's. All methods may be called by any goroutine.
type Group struct{}

// Create makes a group, or changes nothing anywhere. It returns when the group is
// ready. The error wraps one of this package's that says what is wrong, or ctx's.
func (c *Client) Create(ctx context.Context, cfg GroupConfig) (*Group, error) {
	return nil, errUnderWay
}

// Write puts the pieces, one behind the other, into a region of every receiver, and
// returns when all have them. If ctx ends before, the operation goes on, and the bytes
// belong to the group until a later operation is complete, or the group is closed.
// The error wraps ErrRange if it is outside of the region, ErrDepth, ErrClosed,
// ErrFailed, ErrMinSize, or is ctx's.
func (g *Group) Write(ctx context.Context, at At, pieces ...Piece) error { return errUnderWay }

// WriteImm is Write, and takes a posted receive of each receiver, which gets imm.
func (g *Group) WriteImm(ctx context.Context, at At, imm uint32, pieces ...Piece) error {
	return errUnderWay
}

// Send sends the pieces, as one message, to a posted receive of every receiver, and
// returns as Write does.
func (g *Group) Send(ctx context.Context, pieces ...Piece) error { return errUnderWay }

// SendImm is Send with immediate data.
func (g *Group) SendImm(ctx context.Context, imm uint32, pieces ...Piece) error { return errUnderWay }

// Submit begins an operation and returns; op.Done tells its end. If GroupConfig.Depth
// operations are under way it waits for room, or until ctx ends. After an error, Done
// is not called. Operations take effect in the order of Submit. In the steady state it
// does not allocate.
func (g *Group) Submit(ctx context.Context, op *Op) error { return errUnderWay }

// Info returns how the group is at present.
func (g *Group) Info() Info { return Info{} }

// Events returns what happens to the group. If nobody reads, the oldest are lost. It is
// closed after the last event, Closed or Failed.
func (g *Group) Events() <-chan Event { return nil }

// Err returns why the group is over, and nil before that.
func (g *Group) Err() error { return nil }

// Close waits for the operations under way, and ends the group for all members. If ctx
// ends before they are complete, they fail with ErrClosed, the group is closed anyhow,
// and Close returns ctx's error. It returns nil if every member has everything that
// was submitted. Close may be called again, and returns the same.
func (g *Group) Close(ctx context.Context) error { return errUnderWay }
