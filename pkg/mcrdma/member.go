package mcrdma

import "context"

// A ListenConfig says for what service an application receives.
type ListenConfig struct {
	// Service is 1 to 64 letters, digits, '.', '-', '_'.
	Service string
	// Accept decides whether to be a receiver of a group, and what for memory it gets.
	// An error refuses; its text is told to the sender. It is called by a goroutine of
	// its own for each group, and should answer within a second.
	Accept func(*Request) (*Grant, error)
}

// A Request is a sender's wish.
type Request struct {
	Service string
	Sender  string // host, by its certificate
	Program string // of the sender
	Group   GroupID
	Regions []Region
}

// A Grant is what a receiver gives to a group.
type Grant struct {
	// Regions are one for each region of the request, in the same order, and at least
	// as long. Only these bytes, and of them only as many as were asked for, can be
	// written by the sender.
	Regions []Piece
	// Receives are posted before anything comes, as by PostRecv.
	Receives []Piece
}

// A Listener accepts groups for a service. All methods may be called by any goroutine.
type Listener struct{}

// Listen offers a service. The error wraps ErrInvalid, ErrLimit if another application
// of this host has the service, or what went wrong with the daemon.
func (c *Client) Listen(ctx context.Context, cfg ListenConfig) (*Listener, error) {
	return nil, errUnderWay
}

// Accept returns the next group that this application has become a receiver of. The
// error wraps ErrClosed, ErrDaemon, or is ctx's.
func (l *Listener) Accept(ctx context.Context) (*Member, error) { return nil, errUnderWay }

// Close ends the offer. Members go on.
func (l *Listener) Close() error { return errUnderWay }

// A Member is a receiver's place in a group. All methods may be called by any
// goroutine.
type Member struct{}

// A Received is a message that came.
type Received struct {
	// Piece is the receive that was posted, the application's again.
	Piece Piece
	// N is how many bytes came: into Piece by a SEND, into a region by a WRITE.
	N      int
	Imm    uint32
	HasImm bool
	Kind   Kind // OpWriteImm, OpSend or OpSendImm
}

// Bytes returns what a SEND brought; nil for a WRITE.
func (r *Received) Bytes() []byte {
	if r.Kind == OpWriteImm {
		return nil
	}
	return r.Piece.Bytes()[:r.N]
}

// MaxReceives is how many receives may be posted at a member.
const MaxReceives = 1024

// PostRecv gives the place for a message that comes after those for which places were
// given before. It belongs to the member until Recv returns it, or the member has
// ended. A zero Piece will do for WRITEs with immediate. The error wraps ErrDepth if
// MaxReceives are posted, or ErrClosed.
func (m *Member) PostRecv(p Piece) error { return errUnderWay }

// Recv returns the next message: they come in the sender's order, each once. When the
// group is over it returns what has come, and then an error that wraps ErrClosed (the
// sender has closed it, or Close was called), ErrRemoved, ErrSenderLost, ErrTooLong,
// ErrDaemon or ErrFailed.
func (m *Member) Recv(ctx context.Context) (Received, error) { return Received{}, errUnderWay }

// Region returns the bytes of a region, as it was granted. It panics if there is none.
func (m *Member) Region(i int) []byte { return nil }

// Info returns how the group is at present, as far as a receiver knows.
func (m *Member) Info() Info { return Info{} }

// Events returns what happens to the member. If nobody reads, the oldest are lost. It
// is closed after the last event, Closed or Failed.
func (m *Member) Events() <-chan Event { return nil }

// Err returns why the member's time is over, and nil before that.
func (m *Member) Err() error { return nil }

// Close leaves the group, which goes on without this member. It may be called again.
func (m *Member) Close() error { return errUnderWay }
