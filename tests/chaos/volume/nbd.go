package volume

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// Numbers of the NBD protocol (proto.md).
const (
	nbdInit     = 0x4e42444d41474943
	nbdOption   = 0x49484156454f5054
	nbdRequest  = 0x25609513
	nbdReply    = 0x67446698
	nbdFixed    = 1 | 2 // fixed newstyle, no zeroes
	nbdExport   = 1     // NBD_OPT_EXPORT_NAME
	nbdRead     = 0
	nbdWrite    = 1
	nbdFlush    = 3
	nbdFlagFUA  = 1
	nbdPreamble = 8 + 8 + 2
)

// A conn is a connection to an export, for one request at a time.
type conn struct {
	net.Conn
	size   int64
	cookie uint64
}

// connect negotiates an export.
func connect(c net.Conn, export string) (*conn, error) {
	hello := make([]byte, nbdPreamble)
	if _, err := io.ReadFull(c, hello); err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint64(hello) != nbdInit || binary.BigEndian.Uint64(hello[8:]) != nbdOption {
		return nil, fmt.Errorf("no NBD server: it begins with %x", hello)
	}
	if flags := binary.BigEndian.Uint16(hello[16:]); flags&nbdFixed != nbdFixed {
		return nil, fmt.Errorf("the NBD server has flags %x, and not fixed newstyle without zeroes", flags)
	}
	b := binary.BigEndian.AppendUint32(nil, nbdFixed)
	b = binary.BigEndian.AppendUint64(b, nbdOption)
	b = binary.BigEndian.AppendUint32(b, nbdExport)
	b = binary.BigEndian.AppendUint32(b, uint32(len(export))) //nolint:gosec // a name
	if _, err := c.Write(append(b, export...)); err != nil {
		return nil, err
	}
	info := make([]byte, 8+2)
	if _, err := io.ReadFull(c, info); err != nil {
		return nil, err // the server has no such export (yet)
	}
	size := int64(binary.BigEndian.Uint64(info)) //nolint:gosec // checked
	if size < 0 {
		return nil, fmt.Errorf("an export of %x bytes", info[:8])
	}
	return &conn{Conn: c, size: size}, nil
}

// do does a request, and fills data if it is a read. An errno of the server is an error.
func (c *conn) do(command, flags uint16, off int64, data []byte) error {
	c.cookie++
	b := binary.BigEndian.AppendUint32(nil, nbdRequest)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, command)
	b = binary.BigEndian.AppendUint64(b, c.cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(off))       //nolint:gosec // not negative
	b = binary.BigEndian.AppendUint32(b, uint32(len(data))) //nolint:gosec // blocks
	if command == nbdWrite {
		b = append(b, data...)
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	reply := make([]byte, 4+4+8)
	if _, err := io.ReadFull(c, reply); err != nil {
		return err
	}
	want := binary.BigEndian.AppendUint32(nil, nbdReply)
	if !bytes.Equal(reply[:4], want) || binary.BigEndian.Uint64(reply[8:]) != c.cookie {
		return fmt.Errorf("the answer to request %d begins with %x", c.cookie, reply)
	}
	if errno := binary.BigEndian.Uint32(reply[4:]); errno != 0 {
		return fmt.Errorf("NBD error %d", errno)
	}
	if command == nbdRead {
		_, err := io.ReadFull(c, data)
		return err
	}
	return nil
}
