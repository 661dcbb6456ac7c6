package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/rates"
	"github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/topology"
)

// A lab runs in the first process. Receivers and the sender are separate processes, so that each
// has a device, and the sender's processor time is separate.

// innerEnv is set in these processes, whose standard input ends when the first does.
const innerEnv = "MCBENCH_INNER"

const starting = 30 * time.Second

func labHost(i int) string { return fmt.Sprint("h", i+1) }

// labTopology returns a lab with that many hosts, in two racks, with a spine.
func labTopology(hosts int) (*topology.Topology, error) {
	var nodes, links []string
	for i := range hosts {
		rack, seat := 1, i
		if i >= (hosts+1)/2 {
			rack, seat = 2, i-(hosts+1)/2
		}
		nodes = append(nodes, fmt.Sprintf("{name: %s, address: 10.%d.0.%d}", labHost(i), rack, 11+seat))
		links = append(links, fmt.Sprintf("{a: {node: %s}, b: {node: %s, port: %d}}", labHost(i), []string{"torA", "torB"}[rack-1], 1+seat))
	}
	return topology.Parse(fmt.Appendf(nil, `switches:
  - {name: torA, address: 10.255.0.1, prefixes: [10.1.0.0/24]}
  - {name: torB, address: 10.255.0.2, prefixes: [10.2.0.0/24]}
  - {name: spine, address: 10.255.0.3}
hosts: [%s]
links:
  - {a: {node: torA, port: 100}, b: {node: spine, port: 1}}
  - {a: {node: torB, port: 100}, b: {node: spine, port: 2}}
  - %s
`, strings.Join(nodes, ", "), strings.Join(links, "\n  - ")), "lab")
}

// longPath is the cable between the racks that loses packets, in this direction.
var longPath = [2]string{"spine", "torB"}

// withParent returns a context that ends when the parent process has ended. It is for processes of
// labs; for others it changes nothing.
func withParent(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if os.Getenv(innerEnv) != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	return ctx, cancel
}

// wires are the lab's cables, by the options.
type wires struct {
	loss atomic.Uint64       // of 2^32 packets on the long path
	rate func(string) uint64 // at which a host sends, bits per second; 0: unlimited
}

func (w *wires) port(at, to string, p ports.Port) (ports.Port, error) {
	switch {
	case [2]string{at, to} == longPath:
		return &lossy{Port: p, loss: &w.loss, random: rand.New(rand.NewPCG(seed, 1))}, nil //nolint:gosec // not for secrets
	case w.rate(to) > 0:
		return &paced{Port: p, rate: w.rate(to)}, nil
	}
	return p, nil
}

// A lossy port loses frames that it sends.
type lossy struct {
	ports.Port
	loss   *atomic.Uint64
	random *rand.Rand
	left   [][]byte
}

// Send implements ports.Port.
func (l *lossy) Send(frames [][]byte) int {
	loss := l.loss.Load()
	if loss == 0 {
		return l.Port.Send(frames)
	}
	l.left = l.left[:0]
	for _, f := range frames {
		if uint64(l.random.Uint32()) >= loss {
			l.left = append(l.left, f)
		}
	}
	if len(l.left) == 0 {
		return 0
	}
	return l.Port.Send(l.left)
}

// A paced port receives at a rate: frames arrive as late as from a cable of that rate.
type paced struct {
	ports.Port
	rate uint64 // bits per second
	free time.Time
}

const (
	grain = 200 * time.Microsecond // the shortest sleep: shorter ones are added up
	late  = 10 * time.Millisecond  // maximum delay of a sleep that is made up for
)

// Recv implements ports.Port.
func (p *paced) Recv(bufs [][]byte) (int, error) {
	n, err := p.Port.Recv(bufs[:min(len(bufs), 4)]) // a few at a time, as they would arrive
	now := time.Now()
	if least := now.Add(-late); p.free.Before(least) {
		p.free = least
	}
	for _, b := range bufs[:n] {
		p.free = p.free.Add(time.Duration(float64(len(b)*8) * 1e9 / float64(p.rate)))
	}
	if wait := p.free.Sub(now); wait > grain {
		time.Sleep(wait)
	}
	return n, err
}

// A labPlan is a lab for inLab: a fabric, whose first host measures, and what begin starts on each
// host. measured, if not nil, is called when it has measured.
type labPlan struct {
	rate      uint64 // at which hosts send, bits per second; 0: unlimited
	rates     rates.Rates
	deadAfter time.Duration
	topology  *topology.Topology
	hosts     []string
	begin     func(ctx context.Context, socket string) (*lab.Child, error)
	measured  func()
}

// sends returns the rate at which a host sends; 0 for a switch.
func (p *labPlan) sends(host string) uint64 {
	n := p.topology.Node(host)
	if n.Switch != nil {
		return 0
	}
	return cmp.Or(uint64(p.rates.Link(host, n.Ports[0].To.Name)), p.rate)
}

// forwards returns the rate at which a switch sends to a node.
func (p *labPlan) forwards(at, to string) uint64 {
	r := p.rates.Link(at, to)
	if p.topology.Node(to).Switch != nil {
		r = cmp.Or(r, p.rates.Fabric)
	}
	return uint64(r)
}

// inLab starts a lab and measures in it. The exit code is that of the measuring process, which
// reports errors itself.
func inLab(ctx context.Context, p labPlan, args []string, stdout, stderr io.Writer) (code int, err error) {
	dir, remove, err := lab.TempDir()
	if err != nil {
		return 0, err
	}
	defer remove()
	defer func(ctx context.Context) {
		if err != nil && ctx.Err() != nil {
			err = errors.New("interrupted")
		}
	}(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &wires{rate: p.sends}
	l, err := lab.Start(ctx, lab.Options{Dir: dir, Topology: p.topology, Port: w.port, Rate: p.forwards, DeadAfter: p.deadAfter, Failed: func(err error) { cancel(err) },
		Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := l.Close(); e != nil && err == nil && ctx.Err() == nil {
			err = e
		}
	}()
	for _, name := range p.hosts {
		c, err := p.begin(ctx, l.Host(name).Socket)
		if err != nil {
			return 0, fmt.Errorf("starting host %s: %w", name, err)
		}
		defer func() { _ = c.End() }() // it has reported its errors
	}
	code, err = measure(ctx, args, l, p.topology.Hosts[0].Name, w, stdout, stderr)
	if p.measured != nil {
		p.measured()
	}
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause // the error of the lab
	}
	return code, err
}

// startChild starts this program with a daemon's socket. Its output goes to stdout, or to follow.
func startChild(args []string, socket string, extra []*os.File, stdout, stderr io.Writer, follow func(io.Reader)) (*lab.Child, error) {
	c, err := lab.NewChild(args...)
	if err != nil {
		return nil, err
	}
	c.Env = append(c.Env, innerEnv+"=1", cli.SocketEnv+"="+socket)
	c.Stdout, c.Stderr, c.ExtraFiles = stdout, stderr, extra
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the first process, which ends the others
	return c, c.Start(follow)
}

// startReceiver starts a receiver, and waits until it listens. Its later output goes to standard
// error if it reports an error.
func startReceiver(ctx context.Context, socket, service string, stderr io.Writer) (*lab.Child, error) {
	ready := make(chan struct{})
	c, err := startChild([]string{"serve", "--service", service}, socket, nil, nil, stderr, func(out io.Reader) {
		lines, told := bufio.NewScanner(out), false
		for lines.Scan() {
			switch text := lines.Text(); {
			case !told && strings.HasPrefix(text, "ready"):
				told = true
				close(ready)
			case strings.Contains(text, "WRONG"):
				fmt.Fprintln(stderr, text)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
		return c, nil
	case <-c.Done:
		return nil, fmt.Errorf("it has ended: %w", c.Err)
	case <-time.After(starting):
		err = fmt.Errorf("it did not listen within %v", starting)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, c.End())
}

// measure runs the sender, and answers its requests to the lab.
func measure(ctx context.Context, args []string, l *lab.Lab, sender string, w *wires, stdout, stderr io.Writer) (int, error) {
	asked, ask, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer asked.Close()
	answers, answer, err := os.Pipe()
	if err != nil {
		return 0, errors.Join(err, ask.Close())
	}
	defer answer.Close()
	c, err := startChild(args, l.Host(sender).Socket, []*os.File{ask, answers}, stdout, stderr, nil)
	_, _ = ask.Close(), answers.Close() // they belong to the child
	if err != nil {
		return 0, err
	}
	go func() {
		d, e := json.NewDecoder(asked), json.NewEncoder(answer)
		for {
			var q labRequest
			if d.Decode(&q) != nil {
				return // it has ended
			}
			if q.Loss != nil {
				w.loss.Store(uint64(math.Round(*q.Loss * (1 << 32))))
			}
			if e.Encode(labAnswer{Uplink: l.Uplink(sender)}) != nil {
				return
			}
		}
	}()
	select {
	case <-c.Done:
	case <-ctx.Done():
		_ = c.End() // its exit code says whether it failed
	}
	if exit, ok := errors.AsType[*exec.ExitError](c.Err); ok && exit.ExitCode() > 0 {
		return exit.ExitCode(), nil
	}
	if c.Err != nil {
		err = fmt.Errorf("the process of host %s has ended: %w", sender, c.Err)
	}
	return 0, err
}

// The sender asks for the lab's state, and may change it: one line of JSON each.
type (
	labRequest struct{ Loss *float64 }
	labAnswer  struct{ Uplink uint64 }
)

// A labLink is the sender's connection to the lab; nil: there is no lab.
type labLink struct {
	out, in *os.File
	answers *json.Decoder
}

func openLab() *labLink {
	l := &labLink{out: os.NewFile(3, "lab's requests"), in: os.NewFile(4, "lab's answers")}
	l.answers = json.NewDecoder(l.in)
	return l
}

func (l *labLink) close() { _, _ = l.out.Close(), l.in.Close() }

func (l *labLink) ask(q labRequest) (a labAnswer, err error) {
	if err = json.NewEncoder(l.out).Encode(q); err == nil {
		err = l.answers.Decode(&a)
	}
	if err != nil {
		err = fmt.Errorf("the lab does not answer: %w", err)
	}
	return a, err
}

// lose sets the share of packets that are lost on the long path.
func (l *labLink) lose(share float64) error {
	if l == nil {
		return nil
	}
	_, err := l.ask(labRequest{Loss: &share})
	return err
}

// uplink returns how many bytes the sender's cable has carried so far.
func (l *labLink) uplink() (uint64, error) {
	if l == nil {
		return 0, nil
	}
	a, err := l.ask(labRequest{})
	return a.Uplink, err
}
