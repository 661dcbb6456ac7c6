package guestexec

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// serveOnce returns a connection to a server.
func serveOnce(t *testing.T) *net.TCPConn {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer l.Close()
		if conn, err := l.Accept(); err == nil {
			_ = Serve(context.Background(), conn) // what the client sees is tested
		}
	}()
	conn, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		select {
		case <-served:
		case <-time.After(20 * time.Second):
			t.Error("the server goes on after its client has gone")
		}
	})
	return conn.(*net.TCPConn)
}

func sh(t *testing.T, script string) Request {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	return Request{Argv: []string{sh, "-c", script}}
}

func TestRun(t *testing.T) {
	for _, tc := range []struct{ script, in, out, msg, exit string }{
		{"echo hello; echo oops >&2", "", "hello\n", "oops\n", ""},
		{"cat", "input", "input", "", ""},
		{"exit 3", "", "", "", "exit status 3"},
		{"echo $MCRDMA_TEST", "", "set\n", "", ""},
		{"sleep 100", "", "", "", "deadline"},
	} {
		conn := serveOnce(t)
		req := sh(t, tc.script)
		req.Env = []string{"MCRDMA_TEST=set"}
		if tc.exit == "deadline" {
			req.Argv[2], req.Timeout = "exec "+tc.script, 50*time.Millisecond
		}
		if err := Start(conn, req); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, tc.in); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		var out, msg bytes.Buffer
		err := Copy(conn, &out, &msg)
		var exit *ExitError
		if tc.exit == "" && err != nil || tc.exit != "" && (!errors.As(err, &exit) || !strings.Contains(exit.Text, tc.exit)) {
			t.Errorf("%s: %v, want %q", tc.script, err, tc.exit)
		}
		if out.String() != tc.out || msg.String() != tc.msg {
			t.Errorf("%s: output %q and %q", tc.script, out.String(), msg.String())
		}
	}
}

func TestMuchOutput(t *testing.T) {
	name := t.TempDir() + "/data"
	if err := os.WriteFile(name, bytes.Repeat([]byte("x"), 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	conn := serveOnce(t)
	if err := Start(conn, sh(t, "cat "+name)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Copy(conn, &out, io.Discard); err != nil || out.Len() != 3<<20 {
		t.Errorf("%d bytes, %v", out.Len(), err)
	}
}

func TestNoProgram(t *testing.T) {
	for _, req := range []Request{{}, {Argv: []string{"/no/such/program"}}} {
		conn := serveOnce(t)
		if err := Start(conn, req); err != nil {
			t.Fatal(err)
		}
		var exit *ExitError
		if err := Copy(conn, io.Discard, io.Discard); !errors.As(err, &exit) {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

// TestClientGone relies on the clean-up of serveOnce: the server must end.
func TestClientGone(t *testing.T) {
	conn := serveOnce(t)
	if err := Start(conn, sh(t, "while echo x; do :; done")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
}

func FuzzCopy(f *testing.F) {
	f.Add([]byte{frameStdout, 0, 0, 0, 1, 'a', frameExit, 0, 0, 0, 0})
	f.Add([]byte{frameExit, 0, 0, 0, 1, 'e'})
	f.Add([]byte{9, 0, 0, 0, 0})
	f.Add([]byte{frameStdout, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		err := Copy(bytes.NewReader(b), &out, &out)
		var exit *ExitError
		if err != nil && !errors.As(err, &exit) && !errors.Is(err, ErrProtocol) {
			t.Errorf("%v is neither ErrProtocol nor an ExitError", err)
		}
		if out.Len() > len(b) {
			t.Error("more came out than went in")
		}
	})
}
