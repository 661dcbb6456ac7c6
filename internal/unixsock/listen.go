// Package unixsock serves gRPC on a unix socket to processes of the same host, whose users the
// kernel reports.
//
//	l, err := unixsock.Listen("/run/mcrdma/daemon.sock", 0o660)
//	s := grpc.NewServer(grpc.Creds(unixsock.Creds()))
//	… user, err := unixsock.UserOf(ctx) … // in a handler
package unixsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// A Listener removes its socket at the end, but not one that has taken its place.
type Listener struct {
	path   string
	mode   uint32
	mu     sync.Mutex
	socket net.Listener
	own    fs.FileInfo // nil: it is closed
}

// Listen listens on a unix socket. One that a process has left behind is
// replaced; one that a process serves is not.
func Listen(path string, mode uint32) (*Listener, error) {
	l := &Listener{path: path, mode: mode}
	return l, l.open()
}

func (l *Listener) open() error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil { //nolint:gosec // all users may find the socket; its own permissions count
		return err
	}
	s, err := net.Listen("unix", l.path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(l.path); err != nil {
			return err
		}
		s, err = net.Listen("unix", l.path)
	}
	if err != nil {
		return err
	}
	if err := os.Chmod(l.path, fs.FileMode(l.mode)&fs.ModePerm); err != nil {
		return errors.Join(err, s.Close())
	}
	info, err := os.Stat(l.path)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	s.(*net.UnixListener).SetUnlinkOnClose(false)
	l.socket, l.own = s, info
	return nil
}

// Renew makes the socket anew if it was removed, or a process that has ended has left another in its place.
func (l *Listener) Renew() (renewed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own == nil || !l.gone() {
		return false, nil
	}
	old := l.socket
	if err := l.open(); err != nil {
		return false, fmt.Errorf("the socket %s was removed, and cannot be made anew: %w", l.path, err)
	}
	return true, old.Close()
}

// gone reports that the socket is not in its place.
func (l *Listener) gone() bool {
	now, err := os.Stat(l.path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, l.own)
}

func (l *Listener) present() net.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.socket
}

// Accept returns the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		s := l.present()
		if c, err := s.Accept(); err == nil || s == l.present() {
			return c, err
		}
	}
}

// Addr returns the socket's address.
func (l *Listener) Addr() net.Addr { return l.present().Addr() }

// Close ends Accept.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own != nil && !l.gone() {
		_ = os.Remove(l.path) // an error: the next listener replaces it
	}
	l.own = nil // later, its number may be another's
	return l.socket.Close()
}

func removeStale(path string) error {
	if info, err := os.Stat(path); err != nil || info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is not a socket: move it away", path)
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("another program serves %s: stop it, or configure another socket", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
