package framelink

// A Conn carries Ethernet frames, without frame check sequence, like a cable:
// in order unless something on the way reorders, and possibly with loss.
type Conn interface {
	// Send sends frames in order. It may wait while the Conn's own buffers are
	// full, but never for the peer; frames that cannot be delivered are lost
	// and counted. It does not keep the frames. Many goroutines may call it at
	// once. After Close it returns net.ErrClosed, wrapped or not.
	Send(frames [][]byte) error
	// Recv waits for frames, sets the first elements of frames to them and
	// returns how many there are, at least one. The Conn owns the memory; it is
	// valid until the next Recv. One goroutine calls it at a time. After Close
	// it returns net.ErrClosed, wrapped or not.
	Recv(frames [][]byte) (int, error)
	// Counters adds the Conn's statistics to m.
	Counters(m map[string]uint64)
	// Close ends the Conn; blocked calls return.
	Close() error
}
