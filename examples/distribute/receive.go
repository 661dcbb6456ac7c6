package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mcrdma/mcrdma/examples/internal/bar"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
)

// receive is a receiver: the group's goroutine hands each message to this one,
// which writes it to a file, so that a slow disk doesn't hold up the relaying
// before all buffers are full.
func receive(ctx context.Context, s *settings, l net.Listener) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	quiet := l != nil // the sender, beside it, shows how far it is
	var progress *bar.Bar
	if !quiet {
		progress = bar.New(os.Stderr, 0)
	}
	free, messages := make(chan []byte, pieces), make(chan []byte, pieces)
	for range pieces {
		free <- nil
	}
	g, err := join(ctx, s, l, rdmcfallback.Config{
		Incoming: func(size int64) ([]byte, error) {
			if size > piece {
				return nil, fmt.Errorf("a message of %d bytes, expected %d at most", size, piece)
			}
			select {
			case buf := <-free:
				if buf == nil {
					buf = make([]byte, piece)
				}
				return buf[:size], nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		},
		Complete: func(msg []byte) { messages <- msg }, // there is room: a message has a buffer
	}, progress.Text)
	if err != nil {
		return err
	}
	closed := make(chan error, 1)
	go func() { closed <- g.Close(ctx) }()
	w := &writer{dir: s.out, bar: progress}
	defer w.discard()
	for {
		select {
		case msg := <-messages:
			if err := w.message(msg); err != nil {
				fail(err) // the group fails, and every member learns of it
				return errors.Join(err, <-closed)
			}
			free <- msg[:piece]
		case err := <-closed:
			for err == nil && len(messages) > 0 {
				err = w.message(<-messages)
			}
			progress.End()
			if err != nil {
				return err
			}
			return w.finish(s.self)
		}
	}
}

// A writer puts a file together from messages.
type writer struct {
	dir   string
	bar   *bar.Bar
	head  head
	tail  tail
	file  *os.File // with a name of its own, until it is complete
	sum   hash.Hash
	left  int64
	begin time.Time
}

func (w *writer) message(msg []byte) error {
	switch {
	case w.file == nil:
		return w.open(msg)
	case w.left == 0:
		return w.check(msg)
	case int64(len(msg)) > w.left:
		return fmt.Errorf("%d bytes more than were announced", int64(len(msg))-w.left)
	}
	_, _ = w.sum.Write(msg) // never fails
	w.left -= int64(len(msg))
	w.bar.Add(len(msg))
	_, err := w.file.Write(msg)
	return err
}

func (w *writer) open(msg []byte) (err error) {
	if err := json.Unmarshal(msg, &w.head); err != nil {
		return fmt.Errorf("the first message is not a head: %w", err)
	}
	if name := w.head.Name; name != filepath.Base(name) || name == "." || name == ".." || name == "/" || w.head.Size < 0 {
		return fmt.Errorf("the sender announces %d bytes of a file named %q", w.head.Size, name)
	}
	w.sum, w.left, w.begin = sha256.New(), w.head.Size, time.Now()
	w.bar.Total(w.head.Size)
	w.file, err = os.CreateTemp(w.dir, "."+w.head.Name+".*.part")
	return err
}

func (w *writer) check(msg []byte) error {
	if w.tail.SHA256 != nil {
		return errors.New("there is a message after the last one")
	}
	if err := json.Unmarshal(msg, &w.tail); err != nil {
		return fmt.Errorf("the last message is not a tail: %w", err)
	}
	if sum := w.sum.Sum(nil); !bytes.Equal(sum, w.tail.SHA256) {
		return fmt.Errorf("received bytes have SHA-256 %x, the sender's have %x", sum, w.tail.SHA256)
	}
	return nil
}

// finish gives the file its name, when all receivers have everything.
func (w *writer) finish(self int) error {
	if w.tail.SHA256 == nil {
		return errors.New("the sender has sent no file")
	}
	took := time.Since(w.begin)
	part := w.file.Name()
	if err := errors.Join(w.file.Chmod(0o644), w.file.Close()); err != nil {
		return err
	}
	name := filepath.Join(w.dir, w.head.Name)
	if err := os.Rename(part, name); err != nil {
		return err
	}
	w.file = nil
	fmt.Printf("receiver %d: %s, %d bytes in %v, SHA-256 %x, equal to the sender's\n", self, name, w.head.Size,
		took.Round(time.Millisecond), w.tail.SHA256)
	return nil
}

// discard removes what is not complete.
func (w *writer) discard() {
	if w.file != nil {
		_ = w.file.Close()
		_ = os.Remove(w.file.Name())
	}
}
