// Package guestexec runs programs over a byte stream: what the host of the
// interoperability tests speaks with the init of its guests. One connection
// runs one program. The client sends a Request as a line of JSON and then the
// program's standard input, closing its side at the end of it; the server
// sends frames of output and at last the exit.
package guestexec

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A Request names the program to run.
type Request struct {
	Argv []string
	Env  []string // in addition to the server's
	// Timeout is how long the program may run, 0 for without end.
	Timeout time.Duration
}

// The frame kinds: a frame is the kind, a 32-bit big-endian length and so many
// bytes. An exit frame is the last and holds an error text, empty for success.
const (
	frameStdout = 1
	frameStderr = 2
	frameExit   = 3
)

// maxFrame bounds what a client accepts as a frame's length.
const maxFrame = 1 << 20

// ErrProtocol is wrapped by errors about malformed frames.
var ErrProtocol = errors.New("guestexec: protocol error")

type frameWriter struct {
	mu *sync.Mutex
	w  io.Writer
	// failed is called if the client is gone.
	failed func()
	kind   byte
}

func (f frameWriter) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n := 0; ; {
		part := b[n:min(len(b), n+maxFrame)]
		frame := binary.BigEndian.AppendUint32([]byte{f.kind}, uint32(len(part)))
		if _, err := f.w.Write(append(frame, part...)); err != nil {
			f.failed()
			return n, err
		}
		if n += len(part); n == len(b) {
			return n, nil
		}
	}
}

// Serve runs the one program that the client of conn asks for and closes conn.
// The program is killed if ctx ends, its time is up or the client is gone.
func Serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := bufio.NewReader(conn)
	line, err := in.ReadBytes('\n')
	if err == io.EOF && len(line) == 0 {
		return nil // a client only checked that the server is there
	}
	if err != nil {
		return fmt.Errorf("%w: reading the request: %w", ErrProtocol, err)
	}
	var req Request
	if err := json.Unmarshal(line, &req); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	out := frameWriter{mu: new(sync.Mutex), w: conn, failed: cancel}
	exit := out
	exit.kind = frameExit
	if err := serve(ctx, req, in, out); err != nil {
		_, werr := exit.Write([]byte(err.Error()))
		return werr
	}
	_, err = exit.Write(nil)
	return err
}

func serve(ctx context.Context, req Request, in io.Reader, out frameWriter) error {
	if len(req.Argv) == 0 {
		return fmt.Errorf("%w: no program named", ErrProtocol)
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.Timeout)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, req.Argv[0], req.Argv[1:]...)
	cmd.Env = append(os.Environ(), req.Env...)
	stdout, stderr := out, out
	stdout.kind, stderr.kind = frameStdout, frameStderr
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// A pipe of our own: with cmd.Stdin, Wait would wait for the client to
	// close its side although the program is long gone.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(stdin, in) // ends when either side does
		stdin.Close()
	}()
	err = cmd.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w: %w", req.Argv[0], ctx.Err(), err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", req.Argv[0], err)
	}
	return nil
}

// An ExitError is a program's failure, as the server describes it.
type ExitError struct{ Text string }

// Error returns the server's text.
func (e *ExitError) Error() string { return e.Text }

// Start sends req over conn.
func Start(conn net.Conn, req Request) error {
	b, err := json.Marshal(req)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(b, '\n'))
	return err
}

// Copy copies the program's output to the two writers until the program ends,
// and returns an *ExitError if it failed.
func Copy(conn io.Reader, stdout, stderr io.Writer) error {
	in := bufio.NewReader(conn)
	for {
		var hdr [5]byte
		if _, err := io.ReadFull(in, hdr[:]); err != nil {
			return fmt.Errorf("%w: connection lost: %w", ErrProtocol, err)
		}
		n := binary.BigEndian.Uint32(hdr[1:])
		if n > maxFrame {
			return fmt.Errorf("%w: frame of %d bytes", ErrProtocol, n)
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(in, data); err != nil {
			return fmt.Errorf("%w: connection lost: %w", ErrProtocol, err)
		}
		switch hdr[0] {
		case frameStdout, frameStderr:
			w := stdout
			if hdr[0] == frameStderr {
				w = stderr
			}
			if _, err := w.Write(data); err != nil {
				return err
			}
		case frameExit:
			if n > 0 {
				return &ExitError{string(data)}
			}
			return nil
		default:
			return fmt.Errorf("%w: frame kind %d", ErrProtocol, hdr[0])
		}
	}
}
