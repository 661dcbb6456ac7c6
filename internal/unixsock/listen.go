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

// Listen listens on a unix socket. One that a process has left behind is
// replaced; one that a process serves is not.
func Listen(path string, mode uint32) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // all users may find the socket; its own permissions count
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		l, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, fs.FileMode(mode)&fs.ModePerm); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	return &listener{Listener: l, path: path, own: info}, nil
}

// A listener removes its socket at the end, but not one that has taken its place.
type listener struct {
	net.Listener
	path string
	own  fs.FileInfo
	once sync.Once // later, own's number may be another's
}

func (l *listener) Close() error {
	l.once.Do(func() {
		if now, err := os.Stat(l.path); err == nil && os.SameFile(now, l.own) {
			_ = os.Remove(l.path) // an error: the next listener replaces it
		}
	})
	return l.Listener.Close()
}

func removeStale(path string) error {
	if info, err := os.Stat(path); err != nil || info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is not a socket: move it away", path)
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("another daemon serves %s: stop it, or configure another socket", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
