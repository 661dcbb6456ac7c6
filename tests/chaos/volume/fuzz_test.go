package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
)

// A script is a server that sends the same whatever it receives.
type script struct {
	net.Conn
	says *bytes.Reader
	told bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)  { return s.says.Read(p) }
func (s *script) Write(p []byte) (int, error) { return s.told.Write(p) }

// FuzzReplies: whatever a server sends, a request succeeds only by its own reply, and has the data
// of that.
func FuzzReplies(f *testing.F) {
	hello := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, nbdInit), nbdOption)
	hello = append(hello, 0, 3)
	info := append(binary.BigEndian.AppendUint64(nil, 4*Block), 0, 5)
	reply := func(cookie uint64, errno uint32, data string) []byte {
		b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, nbdReply), errno)
		return append(binary.BigEndian.AppendUint64(b, cookie), data...)
	}
	good := append(bytes.Clone(hello), info...)
	f.Add(append(bytes.Clone(good), append(reply(1, 0, ""), append(reply(2, 0, "data"), reply(3, 0, "")...)...)...))
	f.Add(append(bytes.Clone(good), reply(1, 5, "")...))
	f.Add(append(bytes.Clone(good), reply(2, 0, "")...))
	f.Add(hello[:9])
	f.Fuzz(func(t *testing.T, says []byte) {
		s := &script{says: bytes.NewReader(says)}
		c, err := connect(s, "vol")
		if err != nil {
			if len(says) >= len(good) && bytes.Equal(says[:16], hello[:16]) && says[17]&nbdFixed == nbdFixed && says[18] < 0x80 {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(says[:16], hello[:16]) || c.size < 0 || uint64(c.size) != binary.BigEndian.Uint64(says[nbdPreamble:]) {
			t.Fatalf("%d bytes by % x", c.size, says)
		}
		says = says[len(good):]
		for i, x := range []struct {
			command uint16
			data    string
		}{{nbdWrite, "written"}, {nbdRead, "read"}, {nbdFlush, ""}} {
			told, data := s.told.Len(), []byte(x.data)
			err := c.do(x.command, 0, Block, data)
			request := s.told.Bytes()[told:]
			if n := 28 + len(x.data); x.command == nbdWrite && (len(request) != n || string(request[28:]) != x.data) || x.command != nbdWrite && len(request) != 28 {
				t.Fatalf("request % x", request)
			}
			want := reply(uint64(i)+1, 0, "") //nolint:gosec // small
			n := len(want)
			if x.command == nbdRead {
				n += len(data)
			}
			if ok := len(says) >= n && bytes.Equal(says[:len(want)], want); ok != (err == nil) {
				t.Fatalf("request %d: %v by % x", i+1, err, says)
			} else if !ok {
				if len(says) < len(want) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatal(err)
				}
				return
			}
			if x.command == nbdRead && !bytes.Equal(data, says[len(want):n]) {
				t.Fatalf("%q is read of % x", data, says)
			}
			says = says[n:]
		}
	})
}
