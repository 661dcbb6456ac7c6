package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // the driver of the lab's devices
)

const (
	// receiverEnv has the program be a receiver: it is the socket of its daemon.
	receiverEnv = "REPLICATE_RECEIVER"
	service     = "replicas"
)

// A report is what a receiver tells the process that has started it: a line of JSON on
// its standard output.
type report struct {
	Listening bool   `json:",omitempty"` // it has begun to
	Group     string `json:",omitempty"` // what follows is about
	Bytes     int    `json:",omitempty"` // of the replica
	SHA256    []byte `json:",omitempty"` // of the replica, when the sender has said that it is whole
	Ended     string `json:",omitempty"` // why the group has ended
}

// receiverMain receives replicas until its standard input ends, which it does
// when the process that has started it does, however that happens.
func receiverMain(socket string, stdin io.Reader, stdout, stderr io.Writer) int {
	signal.Ignore(os.Interrupt) // Ctrl-C is for the whole terminal, but the end is the other process's decision
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	r := &replicas{ctx: ctx, reports: json.NewEncoder(stdout)}
	if err := r.receive(socket); err != nil && ctx.Err() == nil {
		fmt.Fprintln(stderr, "replicate: receiver:", err)
		return 1
	}
	return 0
}

// Replicas are what a receiver has. Its memory is used by one group at a time.
type replicas struct {
	ctx    context.Context
	client *mcrdma.Client
	memory *mcrdma.Memory

	mu      sync.Mutex
	busy    bool
	reports *json.Encoder
}

func (r *replicas) report(x report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.reports.Encode(x) // if the reader is gone, this process ends
}

func (r *replicas) receive(socket string) (err error) {
	if r.client, err = mcrdma.Dial(r.ctx, mcrdma.Options{Socket: socket}); err != nil {
		return err
	}
	defer r.client.Close()
	l, err := r.client.Listen(r.ctx, mcrdma.ListenConfig{Service: service, Accept: r.grant})
	if err != nil {
		return err
	}
	defer l.Close()
	r.report(report{Listening: true})
	var members sync.WaitGroup
	defer members.Wait()
	for {
		m, err := l.Accept(r.ctx)
		if err != nil {
			return err
		}
		members.Go(func() { r.serve(m) })
	}
}

// grant decides whether a sender gets memory, and which.
func (r *replicas) grant(q *mcrdma.Request) (*mcrdma.Grant, error) {
	if len(q.Regions) != 1 || q.Regions[0].Length > maxFile {
		return nil, fmt.Errorf("a replica is one region of at most %d bytes", maxFile)
	}
	n := int(q.Regions[0].Length)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy {
		return nil, errors.New("another replica is being received")
	}
	if r.memory == nil || len(r.memory.Bytes()) < n {
		memory, err := r.client.Alloc(n)
		if err != nil {
			return nil, err
		}
		r.memory = memory
	}
	clear(r.memory.Bytes()) // of the replica before, which may be of the same file
	r.busy = true
	// The last write comes with an immediate, which takes a receive without room.
	return &mcrdma.Grant{Regions: []mcrdma.Piece{r.memory.Slice(0, n)}, Receives: make([]mcrdma.Piece, 4)}, nil
}

// serve reports when a replica is whole, and when its group has ended.
func (r *replicas) serve(m *mcrdma.Member) {
	group := m.Info().ID.String()
	for {
		_, err := m.Recv(r.ctx)
		if err != nil {
			_ = m.Close()
			r.mu.Lock()
			r.busy = false
			r.mu.Unlock()
			r.report(report{Group: group, Ended: err.Error()})
			return
		}
		sum := sha256.Sum256(m.Region(0))
		r.report(report{Group: group, Bytes: len(m.Region(0)), SHA256: sum[:]})
		_ = m.PostRecv(mcrdma.Piece{}) // an error comes from Recv, too
	}
}
