package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

const serveHelp = `Receives the writes of lat, bw and compare, until an interrupt. The host's daemon must
run, and no other process may have the host's RDMA device open.

If the sender has --check, the receiver verifies the content of every write. If it
finds wrong content, it says so and leaves the group, and the sender fails.`

func serveCommand() *cobra.Command {
	var socket, service string
	cmd := &cobra.Command{
		Use:     "serve [flags]",
		Short:   "Receive the writes of lat, bw and compare",
		Long:    serveHelp,
		Example: "  mcbench serve\n  mcbench serve --service bench2 --socket lab/h2/daemon.sock",
		Args:    cli.NoArgs,
	}
	cli.AddSocketFlag(cmd, &socket, "")
	cmd.Flags().StringVar(&service, "service", defaultService, "`name` of the service, the same as at the sender")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if service == "" {
			return cli.Usagef("--service is empty")
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		ctx, end := withParent(ctx)
		defer end()
		client, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: cli.Socket(socket), Program: "mcbench"})
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }() // the end of the session ends everything
		return serve(ctx, client, service, cmd.OutOrStdout())
	}
	return cmd
}

// A server receives. Each group has its own memory.
type server struct {
	client *mcrdma.Client

	mu      sync.Mutex
	w       io.Writer
	granted map[string]grant // groups that have not been accepted yet, by name
	bad     int              // groups with wrong content
}

// A grant is the memory of a group.
type grant struct {
	layout layout
	memory *mcrdma.Memory
}

func (s *server) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.w, format+"\n", args...) // lost if there is no reader
}

// serve receives until ctx ends. It fails if any content was wrong.
func serve(ctx context.Context, client *mcrdma.Client, service string, w io.Writer) error {
	s := &server{client: client, w: w, granted: map[string]grant{}}
	l, err := client.Listen(ctx, mcrdma.ListenConfig{Service: service, Accept: s.accept})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the session ends next
	s.say("ready: host %s receives for service %s; an interrupt ends it", client.Host(), service)
	var members sync.WaitGroup
	defer members.Wait()
	for {
		m, err := l.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			members.Wait()
			if s.bad > 0 {
				return fmt.Errorf("%s had wrong content", cli.Plural(s.bad, "group"))
			}
			return nil
		case err != nil:
			return err
		}
		members.Go(func() { s.member(ctx, m) })
	}
}

// accept grants memory.
func (s *server) accept(r *mcrdma.Request) (*mcrdma.Grant, error) {
	if len(r.Regions) != 1 {
		return nil, fmt.Errorf("mcbench gives one region, and %d are asked for", len(r.Regions))
	}
	l, err := parseLayout(r.Regions[0].Name, r.Regions[0].Length)
	if err != nil {
		return nil, err
	}
	if l.receives > mcrdma.MaxReceives {
		return nil, fmt.Errorf("%d receives are asked for, and %d can be posted", l.receives, mcrdma.MaxReceives)
	}
	memory, err := s.client.Alloc(l.length())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A group that was granted and never created has left its memory here; it is freed with the
	// client.
	s.granted[r.Group.String()] = grant{l, memory}
	return &mcrdma.Grant{Regions: []mcrdma.Piece{memory.All()}, Receives: make([]mcrdma.Piece, l.receives)}, nil
}

// member serves a membership until the group has ended.
func (s *server) member(ctx context.Context, m *mcrdma.Member) {
	id := m.Info().ID.String()
	s.mu.Lock()
	g := s.granted[id]
	delete(s.granted, id)
	s.mu.Unlock()
	verified, err := receive(ctx, m, g.layout)
	_ = m.Close()        // the group has ended
	_ = g.memory.Close() // it would be freed with the client
	var wrong contentError
	switch {
	case errors.As(err, &wrong):
		s.mu.Lock()
		s.bad++
		s.mu.Unlock()
		s.say("group %s: WRONG CONTENT: %v", id, wrong)
	case ctx.Err() == nil && !errors.Is(err, mcrdma.ErrClosed):
		s.say("group %s: %v", id, err)
	case g.layout.check:
		s.say("group %s: %s of %d bytes verified", id, cli.Plural(verified, "write"), g.layout.size)
	}
}

// A contentError reports bytes that differ from the sent ones.
type contentError struct{ error }

// receive verifies writes until the group has ended, and returns why. Without checks it only waits.
func receive(ctx context.Context, m *mcrdma.Member, l layout) (verified int, err error) {
	var want []byte
	if l.check {
		want = pattern(l.size)
	}
	for {
		r, err := m.Recv(ctx)
		if err != nil {
			return verified, err
		}
		if r.Imm != last {
			region := m.Region(0)
			if region == nil {
				continue // the group has ended, as the next Recv reports
			}
			if err := l.verify(region, want, r.Imm); err != nil {
				return verified, contentError{err}
			}
			verified++
		}
		// If a write was sent again after it had been received, the receive is still posted.
		if err := m.PostRecv(mcrdma.Piece{}); err != nil && !errors.Is(err, mcrdma.ErrLimit) {
			return verified, err
		}
	}
}
