package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mcrdma/mcrdma/examples/internal/bar"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// The file travels as a head, pieces, and a tail, each one message.
const (
	piece  = 16 << 20 // bytes of a message
	pieces = 4        // that are read, or written, ahead
)

type head struct {
	Name string
	Size int64
}

type tail struct{ SHA256 []byte }

// regular describes the file to send. Others may have no end, or wait for a writer when they are opened.
func regular(file string) (os.FileInfo, error) {
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", file)
	}
	return info, err
}

// send is the sender.
func send(ctx context.Context, s *settings, l net.Listener) error {
	info, err := regular(s.file)
	if err != nil {
		return err
	}
	f, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer f.Close()
	progress := bar.New(os.Stderr, info.Size())
	free := make(chan []byte, pieces)
	for range pieces {
		free <- nil // made when it is needed
	}
	g, err := join(ctx, s, l, rdmcfallback.Config{Complete: func(msg []byte) {
		if cap(msg) == piece {
			progress.Add(len(msg))
			free <- msg
		}
	}}, progress.Text)
	if err != nil {
		return err
	}
	if s.plan != "" {
		progress.End()
		fmt.Println(s.plan)
	}
	begin := time.Now()
	sum, sendErr := sendAll(ctx, g, f, head{filepath.Base(s.file), info.Size()}, free)
	if sendErr != nil {
		// Leave, so that no receiver takes what was sent for the whole.
		var leave context.CancelFunc
		ctx, leave = context.WithCancel(ctx)
		leave()
	}
	err = g.Close(ctx)
	took := time.Since(begin)
	progress.End()
	if sendErr != nil && (err == nil || !errors.Is(sendErr, err)) {
		return errors.Join(sendErr, err)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d receivers have %s, %d bytes, after %v, %s to each; SHA-256 %x\n", len(s.members)-1,
		filepath.Base(s.file), info.Size(), took.Round(time.Millisecond), bar.Rate(info.Size(), took), sum)
	return nil
}

// join makes the group, with a listener or, if that is nil, at the member's own
// address.
func join(ctx context.Context, s *settings, l net.Listener, c rdmcfallback.Config, show func(string)) (*rdmcfallback.Group, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.wait, fmt.Errorf("not all members came within %v", s.wait))
	defer cancel()
	met := 0
	t, err := tcp.Connect(ctx, tcp.Options{Members: s.members, Self: s.self, Listener: l, Progress: func(int) {
		met++
		show(fmt.Sprintf("%d of %d members are here", met+1, len(s.members)))
	}})
	if err != nil {
		return nil, err
	}
	c.Members, c.Self, c.Algorithm, c.BlockSize = s.members, s.self, s.algorithm, s.blockSize
	return rdmcfallback.Join(ctx, c, t)
}

func sendAll(ctx context.Context, g *rdmcfallback.Group, f *os.File, h head, free chan []byte) ([]byte, error) {
	if err := sendJSON(ctx, g, h); err != nil {
		return nil, err
	}
	sum := sha256.New()
	for left := h.Size; left > 0; {
		var buf []byte
		select {
		case buf = <-free:
		case <-g.Done():
			return nil, g.Err()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if buf == nil {
			buf = make([]byte, piece)
		}
		buf = buf[:min(left, piece)]
		if _, err := io.ReadFull(f, buf); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		_, _ = sum.Write(buf) // never fails
		left -= int64(len(buf))
		if err := g.Send(ctx, buf); err != nil {
			return nil, err
		}
	}
	return sum.Sum(nil), sendJSON(ctx, g, tail{sum.Sum(nil)})
}

func sendJSON(ctx context.Context, g *rdmcfallback.Group, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return g.Send(ctx, b)
}
