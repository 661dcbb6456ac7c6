package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mcrdma/mcrdma/internal/lab"
)

// A process is the mcblock of a host.
type process struct {
	*lab.Child
	host  string
	ready chan struct{}
	log   lastLine
}

// A lastLine keeps the last line that is written to it, which of a process that fails says why.
type lastLine struct {
	to   io.Writer // what gets all of it
	line []byte
}

func (l *lastLine) Write(b []byte) (int, error) {
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	l.line = append(l.line[:0], lines[len(lines)-1]...)
	return l.to.Write(b)
}

// startHost starts a host's mcblock.
func (d *demo) startHost(i int) error {
	p := &process{Child: &lab.Child{Cmd: exec.Command(d.settings.mcblock, "serve", "--child", "--config", d.config(i)), Done: make(chan struct{})},
		host: hosts[i], ready: make(chan struct{})}
	var err error
	if p.Input, err = p.StdinPipe(); err != nil {
		return err
	}
	if p.log.to = io.Discard; d.settings.verbose {
		p.log.to = d.stderr
	}
	p.Stderr = &p.log
	if err := p.Start(p.follow); err != nil {
		return fmt.Errorf("%s: %w", p.host, err)
	}
	d.ran[p.host] = p
	go func() {
		<-p.Done
		d.ended <- p
	}()
	return nil
}

func (d *demo) config(i int) string { return filepath.Join(d.dir, hosts[i]+".yaml") }

func (d *demo) configText(i int) []byte {
	h := d.lab.Host(hosts[i])
	var b bytes.Buffer
	fmt.Fprintf(&b, "name: %s\nid: %d\naddress: %s\ndata: %s\nlisten: %v:9570\nnbd: %s\nsocket: %s\ntls: {cert: %s, key: %s, ca: %s}\netcd:\n  members:\n",
		h.Name, i+1, h.Address, filepath.Join(d.dir, h.Name), h.Local, d.settings.address(i), h.Socket, h.Files.Cert, h.Files.Key, h.Files.CA)
	for _, name := range hosts {
		fmt.Fprintf(&b, "    - {name: %s, address: %v}\n", name, d.lab.Host(name).Local)
	}
	if d.settings.election > 0 {
		fmt.Fprintf(&b, "  election: %v\n", d.settings.election)
	}
	return b.Bytes()
}

// follow reads what the process prints, until it is gone.
func (p *process) follow(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "ready") {
			close(p.ready)
		}
	}
}

// wait waits until it serves.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.Done:
		return p.died()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *process) died() error {
	return fmt.Errorf("the mcblock of %s has ended (%w): %s", p.host, cmp.Or(p.Err, errors.New("exit status 0")), p.log.line)
}

// expected says whether the process is gone because a user has killed it.
func (p *process) expected() bool { return !p.ProcessState.Exited() }

// mcblock runs a command of it that ends by itself.
func (d *demo) mcblock(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, d.settings.mcblock, args...)
	cmd.Stdout, cmd.Stderr = d.out, d.stderr
	return cmd.Run()
}
