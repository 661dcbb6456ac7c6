//go:build interop

package multicast

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/guestexec"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

const (
	mtu    = 1500 // of all links, for a path MTU of 1024
	memory = 512  // MiB of a guest
	device = "ibverbs:rxe0"
)

// A guest stands in a host's place: it has the addresses of the host's interfaces,
// whose far ends are the switch's and the management network's.
type guest struct {
	host   *lab.HostNode
	vm     *vm.Guest // nil: not booted, or dead
	nics   []*nic
	daemon *program
	member *program
}

// setGuests has those hosts be guests, and no others. Those that have died are booted
// anew.
func (b *bed) setGuests(ctx context.Context, img *vm.Image, names []string) error {
	for name, g := range maps.Clone(b.guests) {
		if g.vm == nil || !slices.Contains(names, name) {
			delete(b.guests, name)
			if err := g.leave(ctx); err != nil {
				return err
			}
		}
	}
	entered := make(chan error)
	n := 0
	for _, name := range names {
		if b.guests[name] == nil {
			g := &guest{host: b.Host(name)}
			b.guests[name] = g
			n++
			go func() { entered <- g.enter(ctx, img, b) }()
		}
	}
	var errs []error
	for range n {
		errs = append(errs, <-entered)
	}
	return errors.Join(errs...)
}

// enter takes the host's place.
func (g *guest) enter(ctx context.Context, img *vm.Image, b *bed) error {
	h := g.host
	if err := errors.Join(h.Member.Stop(), h.Daemon.Stop()); err != nil {
		return err
	}
	for _, name := range []string{"eth0", "mgmt"} {
		n, err := take(h.Space, name)
		if err != nil {
			return err
		}
		g.nics = append(g.nics, n)
	}
	fabric, control := g.nics[0], g.nics[1]
	var err error
	g.vm, err = vm.Boot(ctx, img, vm.Machine{
		Cables: []vm.Cable{{Far: fabric, Addr: fabric.addr, MAC: fabric.mac}, {Far: control, Addr: control.addr, MAC: control.mac}},
		MTU:    mtu, Gateway: fabric.gateway, Memory: memory,
		Dial: func(ctx context.Context, port uint16) (conn net.Conn, err error) {
			// A switch is on the management network, too.
			err = b.Switches[0].Space.Do(func() error {
				var d net.Dialer
				conn, err = d.DialContext(ctx, "tcp4", netip.AddrPortFrom(control.addr.Addr(), port).String())
				return err
			})
			return conn, err
		},
	})
	if err != nil {
		return err
	}
	return g.furnish(ctx, b.Dir)
}

// furnish starts the daemon.
func (g *guest) furnish(ctx context.Context, dir string) error {
	h := g.host
	tls := filepath.Join(dir, "tls")
	for _, name := range []string{h.Config, filepath.Join(tls, h.Name+".crt"), filepath.Join(tls, h.Name+".key"), filepath.Join(tls, "ca.crt")} {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if name == h.Config {
			data = append(data, "device: "+device+"\n"...)
		}
		if err := g.vm.Put(ctx, name, data); err != nil {
			return err
		}
	}
	var out *bufio.Reader
	var err error
	if g.daemon, out, err = g.start(ctx, "/bin/cmd-daemon", "run", "--config", h.Config); err != nil {
		return err
	}
	if err := g.daemon.ready(ctx, out); err != nil {
		return fmt.Errorf("daemon of %s: %w\n%s", h.Name, err, g.daemon.log.String())
	}
	return nil
}

// employ starts an application.
func (g *guest) employ(ctx context.Context) error {
	p, out, err := g.start(ctx, "/bin/member")
	if err != nil {
		return err
	}
	g.member = p
	g.host.Member = lab.Elsewhere("application of "+g.host.Name, p, out)
	return nil
}

// dismiss ends the application. It is an error if that finds anything wrong.
func (g *guest) dismiss(ctx context.Context) error {
	if err := g.member.Close(); err != nil {
		return err
	}
	select {
	case <-g.member.done:
		if g.member.err != nil {
			return fmt.Errorf("application of %s: %w\n%s", g.host.Name, g.member.err, g.member.log.String())
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("application of %s: it does not end: %w", g.host.Name, context.Cause(ctx))
	}
}

// kill pulls the guest's plug.
func (g *guest) kill() error {
	err := g.vm.Kill()
	g.vm = nil
	return err
}

// close ends the guest.
func (g *guest) close() error {
	if g.vm == nil {
		return nil
	}
	err := g.vm.Close()
	g.vm = nil
	return err
}

// leave gives the host its place back.
func (g *guest) leave(ctx context.Context) error {
	errs := []error{g.close()}
	for _, n := range g.nics {
		errs = append(errs, n.giveBack())
	}
	return errors.Join(append(errs, g.host.Daemon.Start(ctx), g.host.NewMember(ctx))...)
}

// logs shows what was said in the guest.
func (g *guest) logs(t *testing.T) {
	if g.vm != nil {
		t.Logf("══ console of %s\n%s%s", g.host.Name, g.vm.Console(), g.vm.Cables())
	}
	if g.daemon != nil {
		t.Logf("══ daemon of %s\n%s", g.host.Name, g.daemon.log.String())
	}
	if g.member != nil {
		t.Logf("══ application of %s\n%s", g.host.Name, g.member.log.String())
	}
}

// nothingLeft checks that the daemon has nothing of any group, at the latest after some
// time.
func (g *guest) nothingLeft(ctx context.Context, after time.Duration) error {
	for deadline := time.Now().Add(after); ; time.Sleep(100 * time.Millisecond) {
		err := g.left(ctx)
		if err == nil || !time.Now().Before(deadline) {
			return err
		}
	}
}

func (g *guest) left(ctx context.Context) error {
	for _, what := range []string{"groups", "members"} {
		out, err := g.vm.Run(ctx, guestexec.Request{Argv: []string{"/bin/cmd-daemon", what, "-o", "json", "--socket", g.host.Socket}, Timeout: time.Minute})
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var l mcrdmav1.ListGroupsResponse
		if err := protojson.Unmarshal([]byte(out), &l); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if n := len(l.GetGroups()) + len(l.GetMemberships()); n > 0 {
			return fmt.Errorf("it has %d %s: %s", n, what, out)
		}
	}
	return nil
}

// A program runs in a guest. What is written to it is its standard input.
type program struct {
	proc *vm.Process
	log  testenv.SyncBuffer // its standard error
	done chan struct{}
	err  error // when done
}

// start starts a program, whose standard output has to be read.
func (g *guest) start(ctx context.Context, argv ...string) (*program, *bufio.Reader, error) {
	proc, err := g.vm.Start(ctx, guestexec.Request{Argv: argv})
	if err != nil {
		return nil, nil, err
	}
	p := &program{proc: proc, done: make(chan struct{})}
	r, w := io.Pipe()
	go func() {
		p.err = proc.Copy(w, &p.log)
		w.CloseWithError(io.EOF)
		proc.Close()
		close(p.done)
	}()
	return p, bufio.NewReader(r), nil
}

func (p *program) Write(b []byte) (int, error) { return p.proc.Write(b) }

// Close ends the standard input.
func (p *program) Close() error { return p.proc.CloseWrite() }

// ready waits for the line that begins with this word. What comes after it goes to
// the log.
func (p *program) ready(ctx context.Context, out *bufio.Reader) error {
	said := make(chan error, 1)
	go func() {
		for {
			line, err := out.ReadBytes('\n')
			_, _ = p.log.Write(line)
			if err != nil {
				said <- errors.New("it has ended")
				return
			}
			if bytes.HasPrefix(line, []byte("ready")) {
				said <- nil
				_, _ = io.Copy(&p.log, out)
				return
			}
		}
	}()
	select {
	case err := <-said:
		return err
	case <-ctx.Done():
		return fmt.Errorf("it does not become ready: %w", context.Cause(ctx))
	}
}
