package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/tests/interop/rxe/guestexec"
)

// guestPort is where the guest's init takes commands.
const guestPort = 7

// A Guest is a running QEMU with a soft-RoCE device rxe0.
type Guest struct {
	addr    netip.Addr
	connect func(context.Context) (net.Conn, error) // to its init
	cmd     *exec.Cmd
	console console
	exited  chan struct{} // closed after QEMU has ended
	exitErr error
	machine *machine // nil: the Lab has its network
}

// A nic is a guest's network card, and the socket by which QEMU has its frames.
type nic struct {
	frames *os.File
	mac    net.HardwareAddr
}

// oneCPU has room for a second one, which is never there: for a machine that can have one
// only, QEMU leaves the guest's memory barriers out, and the card, which another of its
// threads emulates, may never notice that there is something to send.
const oneCPU = "1,maxcpus=2"

// start starts QEMU. The card that is given first is eth0. The idle card is notified of
// each packet (event_idx=off), so that one which it has missed goes with the next. The kernel takes a
// timer that is late, because QEMU had no processor, for a broken one, unless told (no_timer_check).
func (g *Guest) start(ns *netns, img *Image, memory int, params string, nics ...nic) error {
	args := []string{"-nodefaults", "-no-user-config", "-no-reboot",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", oneCPU, "-m", fmt.Sprint(memory),
		"-display", "none", "-monitor", "none", "-serial", "stdio",
		"-kernel", img.kernel, "-initrd", img.initramfs,
		"-append", "console=ttyS0 loglevel=4 panic=-1 tsc=reliable no_timer_check mitigations=off " + params}
	var files []*os.File
	for i, n := range nics {
		args = append(args, "-netdev", fmt.Sprintf("dgram,id=net%d,local.type=fd,local.str=%d", i, 3+i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,romfile=,event_idx=off,mac=%v", i, n.mac))
		files = append(files, n.frames)
	}
	g.cmd = exec.Command(qemuBin, args...)
	g.cmd.ExtraFiles = files
	g.cmd.Stdout, g.cmd.Stderr = &g.console, &g.console
	if err := ns.start(g.cmd); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	go func() {
		g.exitErr = g.cmd.Wait()
		close(g.exited)
	}()
	return nil
}

// waitReady waits until the guest takes commands.
func (g *Guest) waitReady(ctx context.Context) error {
	if err := g.wait(ctx); err != nil {
		return fmt.Errorf("vm: guest %v: %w\n%s", g.addr, err, g.Console())
	}
	return nil
}

func (g *Guest) wait(ctx context.Context) error {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		conn, err := g.connect(try)
		cancel()
		if err == nil {
			return conn.Close()
		}
		select {
		case <-g.exited:
			return fmt.Errorf("QEMU ended while booting: %w", g.exitErr)
		case <-ctx.Done():
			return fmt.Errorf("booting: %w", context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Addr returns the guest's address.
func (g *Guest) Addr() netip.Addr { return g.addr }

// Console returns the end of what the guest's kernel and init have printed.
func (g *Guest) Console() string { return g.console.String() }

// Hung reports whether the guest's kernel has found that a network card sends nothing any
// more of what it was given. The card is QEMU's.
func (g *Guest) Hung() bool { return strings.Contains(g.Console(), "NETDEV WATCHDOG") }

// A Process is a program running in a guest.
type Process struct {
	conn net.Conn
	once sync.Once
}

// Write writes to the program's standard input.
func (p *Process) Write(b []byte) (int, error) { return p.conn.Write(b) }

// CloseWrite ends the program's standard input.
func (p *Process) CloseWrite() error { return p.conn.(*net.TCPConn).CloseWrite() }

// Copy copies the program's output until it ends; a failure of the program is
// a *guestexec.ExitError.
func (p *Process) Copy(stdout, stderr io.Writer) error {
	return guestexec.Copy(p.conn, stdout, stderr)
}

// Close drops the program; the guest kills it.
func (p *Process) Close() error {
	err := net.ErrClosed
	p.once.Do(func() { err = p.conn.Close() })
	return err
}

// Start starts a program in the guest.
func (g *Guest) Start(ctx context.Context, req guestexec.Request) (*Process, error) {
	conn, err := g.connect(ctx)
	if err == nil {
		if err = guestexec.Start(conn, req); err != nil {
			conn.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("vm: guest %v: %v: %w", g.addr, req.Argv, err)
	}
	return &Process{conn: conn}, nil
}

// Run runs a program in the guest to its end and returns its output.
func (g *Guest) Run(ctx context.Context, req guestexec.Request) (string, error) {
	p, err := g.Start(ctx, req)
	if err != nil {
		return "", err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	var out bytes.Buffer
	if err := p.Copy(&out, &out); err != nil {
		return out.String(), fmt.Errorf("vm: guest %v: %v: %w", g.addr, req.Argv, errors.Join(err, ctx.Err()))
	}
	return out.String(), nil
}

// close ends the guest, by force if it does not react.
func (g *Guest) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	p, err := g.Start(ctx, guestexec.Request{Argv: []string{"/init", "poweroff"}})
	if err == nil {
		defer p.Close()
	}
	select {
	case <-g.exited:
		return g.exitErr
	case <-ctx.Done():
		_ = g.cmd.Process.Kill() // an error means that it has ended meanwhile
		<-g.exited
		return fmt.Errorf("vm: guest %v did not end by itself", g.addr)
	}
}

// A console keeps the end of what is written to it.
type console struct {
	mu  sync.Mutex
	buf []byte
}

const consoleSize = 16 << 10

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = append(c.buf, b...)
	if over := len(c.buf) - consoleSize; over > 0 {
		c.buf = append(c.buf[:0], c.buf[over:]...)
	}
	return len(b), nil
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.buf)
}
