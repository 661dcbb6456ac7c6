package ports

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Capture returns a port that does what p does, and writes the frames received and sent to pcap
// files in dir: NAME_in.pcap and NAME_out.pcap, with slashes in the name replaced by underscores.
// The files are complete after each Recv and Send. After a write error, the file is not written any
// more, and Close returns the error. Existing files are overwritten.
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
	pcap *pcapgo.Writer
	err  error // the first
}

// snapLen is the maximum length of a frame in a file.
const snapLen = 1 << 18

func createPcap(name string) (*pcapWriter, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	w := &pcapWriter{file: f, buf: bufio.NewWriterSize(f, 1<<16)}
	w.pcap = pcapgo.NewWriter(w.buf)
	w.err = w.pcap.WriteFileHeader(snapLen, layers.LinkTypeEthernet)
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
	for _, f := range frames {
		// The writer keeps its first error, which Flush returns.
		_ = w.pcap.WritePacket(gopacket.CaptureInfo{Timestamp: now, CaptureLength: len(f), Length: len(f)}, f)
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
