// Package child starts benchmarks' own programs as child processes with pipes for standard input
// and output, in named network namespaces.
package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// A Process is a child as its parent sees it.
type Process struct {
	cmd *exec.Cmd
	In  io.WriteCloser
	Out *bufio.Reader
}

// Start starts this program with other arguments in a named network namespace, or in the current
// one if the name is empty. The child ends with ctx.
func Start(ctx context.Context, ns string, args ...string) (*Process, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := InNamespace(ns, cmd.Start); err != nil {
		return nil, err
	}
	return &Process{cmd, in, bufio.NewReader(out)}, nil
}

// CPU is the processor time of a child that calls Answer.
func (p *Process) CPU() (time.Duration, error) {
	if _, err := io.WriteString(p.In, "cpu\n"); err != nil {
		return 0, err
	}
	line, err := p.Out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(strings.TrimSpace(line))
}

// Answer reports the processor time whenever the parent asks, until the parent closes standard
// input.
func Answer(cpu func() (time.Duration, error)) error {
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		d, err := cpu()
		if err != nil {
			return err
		}
		fmt.Println(d)
	}
	return nil
}

// Stop ends the child and returns its last output.
func (p *Process) Stop() (string, error) {
	p.In.Close()
	said, err := io.ReadAll(p.Out)
	return strings.TrimSpace(string(said)), errors.Join(err, p.cmd.Wait())
}

// End closes the child's input, and kills it if it does not end soon.
func (p *Process) End() {
	_ = p.In.Close()
	late := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait()
	late.Stop()
}
