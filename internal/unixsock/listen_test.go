package unixsock

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestReplaced: a socket that has taken the place of one that was removed is not removed with it.
func TestReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	first, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is left behind")
	}
}

// TestRenewed: a socket that was removed is made anew, and Accept, which waits meanwhile, returns its connections. One that
// another process serves stays.
func TestRenewed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error)
	go func() {
		for {
			c, err := l.Accept()
			if err == nil {
				err = c.Close()
			}
			if accepted <- err; err != nil {
				return
			}
		}
	}()
	for _, c := range []struct {
		remove, renewed bool
	}{{false, false}, {true, true}, {true, true}} {
		if c.remove {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if renewed, err := l.Renew(); renewed != c.renewed || err != nil {
			t.Errorf("%+v: %v, %v", c, renewed, err)
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-accepted, conn.Close()); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if renewed, err := l.Renew(); renewed || err == nil {
		t.Errorf("another process serves it: %v, %v", renewed, err)
	}
	if err := errors.Join(l.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err == nil {
		t.Error("closed, and a connection is accepted")
	}
	if renewed, err := l.Renew(); renewed || err != nil {
		t.Errorf("closed: %v, %v", renewed, err)
	}
}
