package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	patience = 30 * time.Second // until a program is ready
	farewell = 10 * time.Second // until it ends on request
)

// A Process is a program in a namespace. It can be stopped and started again.
type Process struct {
	Name  string
	Space *Space
	Args  []string // the program first
	Env   []string // added to this process's
	// Talks: the caller uses standard input and output, and there is no ready message.
	Talks bool
	// Ready is a part of the line that says that the process is ready; "": the line begins with
	// "ready".
	Ready string

	In  io.WriteCloser // if Talks
	Out *bufio.Reader

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has ended
	err   error
	log   logBuffer
}

// Start starts the process and waits until it is ready, which it reports by a line that begins with
// "ready" (or see Ready).
func (p *Process) Start(ctx context.Context) error {
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stderr = &p.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.Talks {
		if p.In, err = cmd.StdinPipe(); err != nil {
			return err
		}
		p.Out = bufio.NewReaderSize(out, 1<<16)
	}
	fmt.Fprintf(&p.log, "— %s starts: %s\n", p.Name, strings.Join(p.Args, " "))
	if err := p.Space.start(cmd); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	ended := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.ended, p.err = cmd, ended, nil
	p.mu.Unlock()
	ready := make(chan bool, 1)
	go func() {
		if !p.Talks { // Wait closes the pipe, so read all of it before
			p.listen(out, ready)
		}
		err := p.wait(cmd)
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(ended)
	}()
	if p.Talks {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case ok := <-ready:
		if !ok {
			<-ended
			return fmt.Errorf("%s ended: %w\n%s", p.Name, errors.Join(p.err, errors.New("it was not ready")), p.Log())
		}
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("%s does not become ready: %w\n%s", p.Name, context.Cause(ctx), p.Log())
	}
}

// wait is cmd.Wait, except that a process that talks keeps its pipe: its last output may not have
// been read yet.
func (p *Process) wait(cmd *exec.Cmd) error {
	if !p.Talks {
		return cmd.Wait()
	}
	state, err := cmd.Process.Wait()
	if err == nil && !state.Success() {
		err = errors.New(state.String())
	}
	return err
}

func (p *Process) listen(out io.Reader, ready chan<- bool) {
	said := false
	for s := bufio.NewScanner(out); s.Scan(); {
		fmt.Fprintln(&p.log, s.Text())
		if !said && p.saysReady(s.Text()) {
			said = true
			ready <- true
		}
	}
	if !said {
		ready <- false
	}
}

func (p *Process) saysReady(line string) bool {
	if p.Ready != "" {
		return strings.Contains(line, p.Ready)
	}
	return strings.HasPrefix(line, "ready")
}

// Running reports whether the process has been started and has not ended.
func (p *Process) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// PID returns the process ID of the last start.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Signal sends a signal, or does nothing if the process does not run.
func (p *Process) Signal(sig unix.Signal) {
	if p.Running() {
		_ = p.cmd.Process.Signal(sig)
	}
}

// Kill sends SIGKILL.
func (p *Process) Kill() {
	p.Signal(unix.SIGKILL)
	_ = p.waitEnd(farewell)
}

// Stop asks the process to end, and kills it if it does not. That, and an exit code other than 0,
// is an error.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	if p.Talks {
		_ = p.In.Close()
	} else {
		p.Signal(unix.SIGTERM)
	}
	if err := p.waitEnd(farewell); err != nil {
		p.Signal(unix.SIGQUIT) // for the stacks
		if p.waitEnd(time.Second) != nil {
			p.Kill()
		}
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.Name, p.err)
	}
	return nil
}

func (p *Process) waitEnd(d time.Duration) error {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-time.After(d):
		return fmt.Errorf("%s does not end", p.Name)
	}
}

// Log returns the output of all its runs.
func (p *Process) Log() string { return p.log.String() }

// A logBuffer is a buffer for concurrent use that keeps the beginning and the end of long output.
type logBuffer struct {
	mu   sync.Mutex
	head bytes.Buffer
	tail []byte
	cut  int
}

const keepLog = 64 << 10

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.head.Len() < keepLog {
		return b.head.Write(p)
	}
	b.tail = append(b.tail, p...)
	if over := len(b.tail) - 2*keepLog; over > 0 {
		b.cut += over
		b.tail = append(b.tail[:0], b.tail[over:]...)
	}
	return len(p), nil
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut > 0 {
		return fmt.Sprintf("%s\n… %d bytes …\n%s", b.head.String(), b.cut, b.tail)
	}
	return b.head.String() + string(b.tail)
}
