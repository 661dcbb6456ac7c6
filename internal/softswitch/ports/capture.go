package ports

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Capture returns a port that is p and writes what it receives and sends to
// files in dir in the format of pcap: NAME_in.pcap and NAME_out.pcap, with
// slashes in the name replaced by underscores. They are complete after each Recv
// and Send. A file that cannot be written any more is given up, and Close
// returns why. Files of these names are overwritten.
func Capture(p Port, dir string) (Port, error) {
	base := filepath.Join(dir, strings.ReplaceAll(p.Name(), "/", "_"))
	c := &capture{Port: p}
	for _, f := range []struct {
		suffix string
		to     **pcapWriter
	}{{"_in.pcap", &c.in}, {"_out.pcap", &c.out}} {
		w, err := createPcap(base + f.suffix)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("ports: capture of %s: %w", p.Name(), err), c.closeFiles())
		}
		*f.to = w
	}
	return c, nil
}

type capture struct {
	Port
	in, out *pcapWriter
}

func (c *capture) Recv(bufs [][]byte) (int, error) {
	n, err := c.Port.Recv(bufs)
	c.in.write(bufs[:n])
	return n, err
}

func (c *capture) Send(frames [][]byte) int {
	c.out.write(frames)
	return c.Port.Send(frames)
}

func (c *capture) Close() error { return errors.Join(c.Port.Close(), c.closeFiles()) }

func (c *capture) closeFiles() error {
	var errs []error
	for _, w := range []*pcapWriter{c.in, c.out} {
		if w != nil {
			errs = append(errs, w.close())
		}
	}
	return errors.Join(errs...)
}

// A pcapWriter writes a capture file.
type pcapWriter struct {
	mu   sync.Mutex
	file *os.File // nil when closed
	buf  *bufio.Writer
	err  error // the first
}

// The format: a file header, and then a header before each packet.
const (
	pcapMagic  = 0xa1b2c3d4 // times in microseconds
	pcapSnap   = 1 << 18
	pcapLink   = 1 // Ethernet
	pcapHeader = 24
	pcapRecord = 16
)

func createPcap(name string) (*pcapWriter, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	w := &pcapWriter{file: f, buf: bufio.NewWriterSize(f, 1<<16)}
	var h [pcapHeader]byte
	binary.LittleEndian.PutUint32(h[0:], pcapMagic)
	binary.LittleEndian.PutUint16(h[4:], 2) // version 2.4
	binary.LittleEndian.PutUint16(h[6:], 4)
	binary.LittleEndian.PutUint32(h[16:], pcapSnap)
	binary.LittleEndian.PutUint32(h[20:], pcapLink)
	_, w.err = w.buf.Write(h[:])
	w.write(nil)
	return w, w.err
}

func (w *pcapWriter) write(frames [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil || w.err != nil {
		return
	}
	now := time.Now()
	var h [pcapRecord]byte
	binary.LittleEndian.PutUint32(h[0:], uint32(now.Unix()))
	binary.LittleEndian.PutUint32(h[4:], uint32(now.Nanosecond()/1000))
	for _, f := range frames {
		binary.LittleEndian.PutUint32(h[8:], uint32(len(f)))
		binary.LittleEndian.PutUint32(h[12:], uint32(len(f)))
		// The writer keeps its first error, which Flush returns.
		_, _ = w.buf.Write(h[:])
		_, _ = w.buf.Write(f)
	}
	w.err = w.buf.Flush()
}

func (w *pcapWriter) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return nil
	}
	err := errors.Join(w.err, w.file.Close())
	w.file = nil
	return err
}
