package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const inheritedFD = "DISTRIBUTE_LISTENER" // environment: the listener's file descriptor

// demonstrate starts receivers as processes of their own and sends to them.
func demonstrate(ctx context.Context, s *settings) (err error) {
	if _, err := regular(s.file); err != nil {
		return err // before receivers are started
	}
	if s.out == "" {
		if s.out, err = os.MkdirTemp("", "distribute-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(s.out) }()
		fmt.Println("the receivers' copies are removed in the end; --out DIR keeps them")
	}
	listeners := make([]*net.TCPListener, s.receivers+1)
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		listeners[i] = l.(*net.TCPListener)
		s.members = append(s.members, l.Addr().String())
	}
	ctx, cancel := context.WithCancel(ctx)
	var children sync.WaitGroup
	errs := make([]error, s.receivers+1)
	defer children.Wait()
	defer cancel()
	for i := 1; i <= s.receivers; i++ {
		c, err := s.receiver(ctx, i, listeners[i])
		if err != nil {
			return fmt.Errorf("receiver %d: %w", i, err)
		}
		children.Go(func() {
			if err := c.Wait(); err != nil {
				errs[i] = fmt.Errorf("receiver %d: %w", i, err)
			}
		})
	}
	if errs[0] = send(ctx, s, listeners[0]); errs[0] != nil {
		cancel()
	}
	children.Wait()
	return errors.Join(errs...)
}

// receiver starts a receiver, which inherits its listener.
func (s *settings) receiver(ctx context.Context, self int, l *net.TCPListener) (*exec.Cmd, error) {
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir := filepath.Join(s.out, fmt.Sprintf("receiver-%d", self))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, exe, "--members", strings.Join(s.members, ","), "--self", strconv.Itoa(self),
		"--algorithm", s.algorithm.String(), "--block", strconv.Itoa(s.blockSize), "--wait", s.wait.String(), "--out", dir)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.ExtraFiles = []*os.File{f} // number 3 there
	c.Env = append(os.Environ(), inheritedFD+"=3")
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 5 * time.Second
	return c, c.Start()
}

// inherited returns the listener that a process was started with; nil if none.
func inherited() (net.Listener, error) {
	v := os.Getenv(inheritedFD)
	if v == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", inheritedFD, err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	return net.FileListener(f)
}
