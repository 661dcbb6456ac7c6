package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mcrdma/mcrdma/internal/lab"
)

// A process is a receiver that runs, as the demonstration sees it.
type process struct {
	*lab.Child
	host    string
	reports chan report
}

const (
	patience = 30 * time.Second // for what takes a moment
	parting  = 3 * time.Second  // for a group to be closed
)

// startReceiver starts this program as a receiver of a host, and waits until it
// listens.
func startReceiver(ctx context.Context, host, socket string, stderr io.Writer) (*process, error) {
	c, err := lab.NewChild()
	if err != nil {
		return nil, err
	}
	p := &process{c, host, make(chan report, 16)}
	p.Env, p.Stderr = append(p.Env, receiverEnv+"="+socket), stderr
	if err := p.Start(p.follow); err != nil {
		return nil, fmt.Errorf("receiver at %s: %w", host, err)
	}
	if _, err := p.expect(ctx, "to listen", func(r report) bool { return r.Listening }); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// follow reads what the process reports, until it is gone.
func (p *process) follow(out io.Reader) {
	d := json.NewDecoder(out)
	for {
		var r report
		if err := d.Decode(&r); err != nil {
			return
		}
		select {
		case p.reports <- r:
		default: // more than any caller waits for
		}
	}
}

// expect waits for a report. Those before it are skipped.
func (p *process) expect(ctx context.Context, what string, is func(report) bool) (report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	for {
		select {
		case r := <-p.reports:
			if is(r) {
				return r, nil
			}
		case <-p.Done:
			return report{}, fmt.Errorf("the receiver at %s, which was %s, has ended: %w", p.host, what, orNothing(p.Err))
		case <-ctx.Done():
			return report{}, fmt.Errorf("waiting for the receiver at %s %s: %w", p.host, what, context.Cause(ctx))
		}
	}
}

// orNothing is for a process that ended cleanly.
func orNothing(err error) error {
	if err == nil {
		return errors.New("it was not told to")
	}
	return err
}

// close tells the process to end, and makes sure that it does.
func (p *process) close() error {
	if err := p.End(); err != nil {
		return fmt.Errorf("the receiver at %s: %w", p.host, err)
	}
	return nil
}
