// Package volumes runs the program of "make volume", examples/volume, under the control of a test:
// clients that are not part of this project use its volume, while the test kills hosts. Its tests
// use clients from distributions' packages; those in tests/interop/volume use virtual machines.
//
// Only tests import it.
package volumes

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Build builds the programs into a directory.
func Build(ctx context.Context, dir string) error {
	out, err := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "github.com/mcrdma/mcrdma/cmd/mcblock", "github.com/mcrdma/mcrdma/examples/volume").CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// Commands returns the code blocks of docs/volumes.md that a test runs, by the line above them. The
// page's path is relative to the test's directory.
func Commands(page, place, test string) ([]string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, m := range regexp.MustCompile("(?ms)^<!-- run by "+place+" "+test+" -->\n```sh\n(.*?)^```$").FindAllSubmatch(text, -1) {
		list = append(list, string(m[1]))
	}
	return list, nil
}

// A Config says how to start a Volume.
type Config struct {
	Bin  string         // directory of the programs
	Dir  string         // for its files
	NBD  netip.AddrPort // of h1; the others have the next ports
	Size string
	// Start starts the program; nil: it starts in this process's network namespace.
	Start func(*exec.Cmd) error
}

// A Volume is a running examples/volume: three hosts, and the volume "vol" with a copy on each.
type Volume struct {
	c     Config
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	err   error         // the error then

	mu      sync.Mutex
	changed chan struct{} // closed with the next line
	lines   []string
	pids    map[string]int
	config  string // of h1
	epochs  []State
}

// Hosts are the volume's.
var Hosts = []string{"h1", "h2", "h3"}

// A State is the volume's map as the program has shown it.
type State struct {
	Epoch   int
	Primary string // "none" if there is none
	Acting  []string
}

// Start starts the program, and returns when the volume exists.
func Start(ctx context.Context, c Config) (*Volume, error) {
	v := &Volume{c: c, ended: make(chan struct{}), changed: make(chan struct{}), pids: map[string]int{}}
	// Foreign clients and guests use all processors, so etcd gets its recommended timeouts.
	v.cmd = exec.Command(filepath.Join(c.Bin, "volume"), "--nbd", c.NBD.String(), "--size", c.Size, "--election", "1s")
	v.cmd.Env = append(os.Environ(), "TMPDIR="+c.Dir)
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	v.cmd.Stderr = v.cmd.Stdout
	if c.Start == nil {
		v.c.Start = v.start
	}
	if err := v.c.Start(v.cmd); err != nil {
		return nil, err
	}
	go func() {
		v.follow(out)
		v.err = v.cmd.Wait()
		close(v.ended)
	}()
	if err := v.until(ctx, "the volume is there", func() bool { return len(v.pids) == 3 }); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// start starts a program that ends with this process.
func (v *Volume) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel treats the end of the thread that started it as the end of the process
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-v.ended
	}()
	return <-started
}

var (
	mapLine     = regexp.MustCompile(`epoch (\d+): primary (\S+), acting (.*)$`)
	killLine    = regexp.MustCompile(`^  kill -9 (\d+)    # (h\d)$`)
	startedLine = regexp.MustCompile(`  (h\d) is started again, as process (\d+)$`)
	configLine  = regexp.MustCompile(` volume show vol --config (\S+)$`)
)

// follow reads the output of the program.
func (v *Volume) follow(out io.Reader) {
	for s := bufio.NewScanner(out); s.Scan(); {
		line := s.Text()
		v.mu.Lock()
		v.lines = append(v.lines, line)
		if m := mapLine.FindStringSubmatch(line); m != nil {
			epoch, _ := strconv.Atoi(m[1])
			v.epochs = append(v.epochs, State{epoch, m[2], strings.Split(m[3], ", ")})
		} else if m := killLine.FindStringSubmatch(line); m != nil {
			v.pids[m[2]], _ = strconv.Atoi(m[1])
		} else if m := startedLine.FindStringSubmatch(line); m != nil {
			v.pids[m[1]], _ = strconv.Atoi(m[2])
		} else if m := configLine.FindStringSubmatch(line); m != nil {
			v.config = m[1]
		}
		close(v.changed)
		v.changed = make(chan struct{})
		v.mu.Unlock()
	}
}

// until waits until the output of the program satisfies ok.
func (v *Volume) until(ctx context.Context, what string, ok func() bool) error {
	for {
		v.mu.Lock()
		yes, changed := ok(), v.changed
		v.mu.Unlock()
		if yes {
			return nil
		}
		select {
		case <-changed:
		case <-v.ended:
			return fmt.Errorf("the volume has ended before %s: %w\n%s", what, v.err, v.Log())
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w\n%s", what, context.Cause(ctx), v.Log())
		}
	}
}

// Until waits until the volume's newest map satisfies ok.
func (v *Volume) Until(ctx context.Context, what string, ok func(State) bool) error {
	return v.until(ctx, what, func() bool { return ok(v.last()) })
}

func (v *Volume) last() State {
	if len(v.epochs) == 0 {
		return State{}
	}
	return v.epochs[len(v.epochs)-1]
}

// State returns the volume's newest map.
func (v *Volume) State() State {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last()
}

// Kill kills a host's mcblock, and returns when the volume continues without it. It is restarted
// after some seconds.
func (v *Volume) Kill(ctx context.Context, host string) (time.Duration, error) {
	v.mu.Lock()
	pid, begun := v.pids[host], time.Now()
	err := syscall.Kill(pid, syscall.SIGKILL)
	v.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("kill %s, process %d: %w", host, pid, err)
	}
	err = v.Until(ctx, host+" is out", func(s State) bool {
		return s.Primary != "none" && s.Primary != host && !slices.Contains(s.Acting, host)
	})
	return time.Since(begun), err
}

// Other returns a host other than these.
func (v *Volume) Other(hosts ...string) string {
	return Hosts[slices.IndexFunc(Hosts, func(h string) bool { return !slices.Contains(hosts, h) })]
}

// KillTwo kills the primary and, when that is back, a replica: never the host that serves clients,
// which must not be the primary at first. Before and after each kill, ready waits until the clients
// work. The primary is first, because it is known then: under load another host may become the
// primary at any time.
func (v *Volume) KillTwo(ctx context.Context, serving string, logf func(string, ...any), ready func()) error {
	begun := time.Now()
	for _, what := range []string{"the primary", "a replica"} {
		victim := v.State().Primary
		if what == "a replica" {
			victim = v.Other(serving, victim)
		}
		ready()
		took, err := v.Kill(ctx, victim)
		if err != nil {
			return err
		}
		logf("%s, %s, is out after %v", what, victim, took.Round(time.Millisecond))
		ready()
		if err := v.Whole(ctx); err != nil {
			return err
		}
		logf("it has everything again %v after the beginning", time.Since(begun).Round(time.Millisecond))
	}
	return nil
}

// Whole waits until all three hosts have all data of the volume.
func (v *Volume) Whole(ctx context.Context) error {
	return v.Until(ctx, "all hosts are acting", func(s State) bool { return s.Primary != "none" && len(s.Acting) == len(v.pids) })
}

// Address returns a host's address for clients.
func (v *Volume) Address(host string) netip.AddrPort {
	return netip.AddrPortFrom(v.c.NBD.Addr(), v.c.NBD.Port()+uint16(slices.Index(Hosts, host))) //nolint:gosec // 0 to 2
}

// URI returns the URI of a volume of this name at a host.
func (v *Volume) URI(host, name string) string {
	return fmt.Sprintf("nbd://%v/%s", v.Address(host), name)
}

// Mcblock runs a command of mcblock, with h1's configuration, and returns its output.
func (v *Volume) Mcblock(ctx context.Context, args ...string) (string, error) {
	v.mu.Lock()
	config := v.config
	v.mu.Unlock()
	cmd := exec.CommandContext(ctx, filepath.Join(v.c.Bin, "mcblock"), append(args, "--config", config)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := v.c.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("mcblock %s: %w\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// Log returns the output of the program.
func (v *Volume) Log() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.lines, "\n")
}

// Close ends the program, which leaves nothing behind.
func (v *Volume) Close() error {
	_ = v.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-v.ended:
		return v.err
	case <-time.After(30 * time.Second):
		_ = v.cmd.Process.Kill()
		<-v.ended
		return fmt.Errorf("the volume did not end\n%s", v.Log())
	}
}
