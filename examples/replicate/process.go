package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// A process is a receiver that runs, as the demonstration sees it.
type process struct {
	host    string
	cmd     *exec.Cmd
	stdin   io.Closer
	reports chan report
	done    chan struct{} // closed when the process is gone
	err     error         // of the process, once done is closed
}

const (
	patience = 30 * time.Second // for what takes a moment
	parting  = 3 * time.Second  // for a process to end on request
)

// startReceiver starts this program as a receiver of a host, and waits until it
// listens.
func startReceiver(ctx context.Context, host, socket string, stderr io.Writer) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{host: host, cmd: exec.Command(exe), reports: make(chan report, 16), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), receiverEnv+"="+socket)
	p.cmd.Stderr = stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("receiver at %s: %w", host, err)
	}
	go p.follow(out)
	if _, err := p.expect(ctx, "to listen", func(r report) bool { return r.Listening }); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// follow reads what the process reports, until it is gone.
func (p *process) follow(out io.Reader) {
	defer close(p.done)
	d := json.NewDecoder(out)
	for {
		var r report
		if err := d.Decode(&r); err != nil {
			break
		}
		select {
		case p.reports <- r:
		default: // more than any caller waits for
		}
	}
	p.err = p.cmd.Wait()
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
		case <-p.done:
			return report{}, fmt.Errorf("the receiver at %s, which was %s, has ended: %w", p.host, what, orNothing(p.err))
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

// kill ends the process as SIGKILL does, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.done
}

// close tells the process to end, and makes sure that it does.
func (p *process) close() error {
	_ = p.stdin.Close()
	select {
	case <-p.done:
		return p.err
	case <-time.After(parting):
		p.kill()
		return fmt.Errorf("the receiver at %s did not end within %v, and was killed", p.host, parting)
	}
}
