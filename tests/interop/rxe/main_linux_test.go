//go:build interop

package rxe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/tests/interop/rxe/guestexec"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/peerproto"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

// The labs are shared by the tests: booting takes longer than most of them.
var (
	labDir string
	labs   = map[int]*testLab{}
)

func TestMain(m *testing.M) {
	log.SetFlags(log.Ltime)
	var err error
	if labDir, err = os.MkdirTemp("", "mcrdma-interop-"); err != nil {
		log.Fatal(err)
	}
	// The kernel ends the guests with this process; files it leaves alone.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		log.Print(<-interrupted)
		os.RemoveAll(labDir)
		os.Exit(1)
	}()
	code := vm.Tests(m.Run, hung, closeLabs)
	if err := os.RemoveAll(labDir); err != nil {
		log.Print(err)
	}
	os.Exit(code)
}

func hung() bool {
	for _, l := range labs {
		if slices.ContainsFunc(l.guests, (*vm.Guest).Hung) {
			return true
		}
	}
	return false
}

func closeLabs() error {
	var errs []error
	for _, l := range labs {
		errs = append(errs, l.lab.Close())
	}
	clear(labs)
	return errors.Join(errs...)
}

var image = sync.OnceValues(func() (*vm.Image, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	const module = "github.com/mcrdma/mcrdma/"
	return vm.BuildImage(ctx, labDir, log.Printf, vm.Program{Package: module + "bpf", Tests: true, Modules: []string{"veth"}},
		vm.Program{Package: module + "tests/dataplane", Tests: true}, vm.Program{Package: module + "internal/softswitch/fastpath", Tests: true})
})

// A testLab is a network with guests.
type testLab struct {
	lab    *vm.Lab
	guests []*vm.Guest
}

// guestAddrs are the addresses of a lab's guests.
var guestAddrs = []netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("10.77.0.3")}

// getLab returns the lab with the given MTU of its links, with so many guests.
func getLab(t *testing.T, mtu, guests int) *testLab {
	t.Helper()
	l := labs[mtu]
	if l == nil {
		img, err := image()
		if err == nil {
			l = &testLab{}
			l.lab, err = vm.NewLab(img, mtu)
		}
		if errors.Is(err, vm.ErrUnavailable) && os.Getenv("MCRDMA_MUST_RUN") != "1" {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		labs[mtu] = l
	}
	if len(l.guests) < guests {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		began := time.Now()
		var wg sync.WaitGroup
		first := len(l.guests)
		l.guests = append(l.guests, make([]*vm.Guest, guests-first)...)
		errs := make([]error, guests)
		for i := first; i < guests; i++ {
			wg.Go(func() { l.guests[i], errs[i] = l.lab.StartGuest(ctx, guestAddrs[i]) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			l.guests = l.guests[:first]
			t.Fatal(err)
		}
		t.Logf("booted %d guests in %v", guests-first, time.Since(began).Round(10*time.Millisecond))
	}
	t.Cleanup(func() {
		l.lab.Impair(vm.Impairment{})
		if t.Failed() {
			for _, g := range l.guests {
				t.Logf("console of %v:\n%s", g.Addr(), g.Console())
			}
		}
	})
	return l
}

// A peer is a running endpoint program.
type peer struct {
	name   string
	kernel bool // its transport is the kernel's
	enc    *json.Encoder
	dec    *json.Decoder
	stderr lockedBuffer
}

// guestPeer starts the endpoint on guest i's kernel device.
func (l *testLab) guestPeer(t *testing.T, i int) *peer {
	t.Helper()
	g := l.guests[i]
	proc, err := g.Start(t.Context(), guestexec.Request{Argv: []string{"/bin/peer", "ibverbs:rxe0"}})
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	p := &peer{name: fmt.Sprintf("rxe %v", g.Addr()), kernel: true, enc: json.NewEncoder(proc), dec: json.NewDecoder(r)}
	exited := make(chan error, 1)
	go func() {
		err := proc.Copy(w, &p.stderr)
		w.Close()
		exited <- err
	}()
	t.Cleanup(func() {
		err := proc.CloseWrite()
		p.ended(t, errors.Join(err, wait(exited)))
		proc.Close()
	})
	return p
}

// hostPeer starts the endpoint on softroce on the host, with its defaults.
func (l *testLab) hostPeer(t *testing.T) *peer {
	t.Helper()
	return l.startHostPeer(t, "softroce:"+vm.HostAddr.Addr().String())
}

func (l *testLab) startHostPeer(t *testing.T, device string) *peer {
	t.Helper()
	img, err := image()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(img.HostPeer, device)
	p := &peer{name: device}
	cmd.Stderr = &p.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.enc, p.dec = json.NewEncoder(in), json.NewDecoder(out)
	if err := l.lab.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		exited := make(chan error, 1)
		go func() { exited <- cmd.Wait() }()
		err := wait(exited)
		if errors.Is(err, errStuck) {
			_ = cmd.Process.Kill() // the error that matters is err
		}
		p.ended(t, err)
	})
	return p
}

var errStuck = errors.New("the program does not end")

func wait(exited <-chan error) error {
	select {
	case err := <-exited:
		return err
	case <-time.After(20 * time.Second):
		return errStuck
	}
}

// ended reports how the program came to its end.
func (p *peer) ended(t *testing.T, err error) {
	if err != nil {
		t.Errorf("%s: %v", p.name, err)
	}
	if s := strings.TrimSpace(p.stderr.String()); s != "" {
		t.Logf("%s says:\n%s", p.name, s)
	}
}

// try makes a request.
func (p *peer) try(req peerproto.Request) (peerproto.Response, error) {
	var resp peerproto.Response
	if err := p.enc.Encode(req); err != nil {
		return resp, fmt.Errorf("%s: %w", p.name, err)
	}
	if err := p.dec.Decode(&resp); err != nil {
		return resp, fmt.Errorf("%s: the program ended: %w: %s", p.name, err, p.stderr.String())
	}
	if resp.Err != "" {
		return resp, fmt.Errorf("%s: %s", p.name, resp.Err)
	}
	return resp, nil
}

// ask makes a request that must succeed.
func (p *peer) ask(t *testing.T, req peerproto.Request) peerproto.Response {
	t.Helper()
	resp, err := p.try(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
