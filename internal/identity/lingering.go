package identity

import (
	"io"
	"net"
	"time"
)

// lingering is a connection whose Close after a handshake that failed waits until
// the client has closed it too. The client has sent more by then; closing at once
// would reset the connection, and the alert that says what is wrong with its
// certificate could be lost.
type lingering struct {
	*net.TCPConn
	accepted bool
}

func (l *lingering) Close() error {
	if !l.accepted && l.CloseWrite() == nil && l.SetReadDeadline(time.Now().Add(time.Second)) == nil {
		_, _ = io.CopyN(io.Discard, l.TCPConn, 64<<10)
	}
	return l.TCPConn.Close()
}
