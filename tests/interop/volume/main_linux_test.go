//go:build interop

package volume

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/volumes"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

// base is where files are. It goes with the tests, also when they are interrupted.
var base string

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "nbdkit" {
		os.Exit(bridge())
	}
	log.SetFlags(log.Ltime)
	var err error
	if base, err = os.MkdirTemp("", "mcrdma-volume-"); err != nil {
		log.Fatal(err)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	go func() {
		log.Print(<-interrupted)
		_ = os.RemoveAll(base) // processes, guests and namespaces end with this one
		os.Exit(130)
	}()
	code := m.Run()
	if err := os.RemoveAll(base); err != nil {
		log.Print(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// tool is a program of this machine.
func tool(t *testing.T, name, debian string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path
		}
	}
	testenv.Skip(t, "%s is not installed: apt-get install %s", name, debian)
	return ""
}

// A bed is a network with a volume on it.
type bed struct {
	net    *vm.Lab
	volume *volumes.Volume
	host   string         // of the volume, not its primary
	served netip.AddrPort // where guests find it
	conns  *relay
}

// must ends the test with an error, or skips it if this machine cannot run guests.
func must(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, vm.ErrUnavailable) {
		testenv.Skip(t, "%v", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// start starts a bed that ends with the test.
func start(t *testing.T, img *vm.Image, size string) *bed {
	t.Helper()
	begun := time.Now()
	l, err := vm.NewLab(img, 1500)
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, volumes.Build(t.Context(), base))
	dir, err := os.MkdirTemp(base, "")
	must(t, err)
	b := &bed{net: l, served: netip.AddrPortFrom(vm.HostAddr.Addr(), 10809)}
	b.volume, err = volumes.Start(t.Context(), volumes.Config{Bin: base, Dir: dir, NBD: netip.MustParseAddrPort("127.0.0.1:10809"), Size: size, Start: l.Start})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() || testing.Verbose() {
			t.Log(b.volume.Log())
		}
		if err := b.volume.Close(); err != nil {
			t.Error(err)
		}
	})
	b.host = b.volume.Other(b.volume.State().Primary)
	port, err := l.Listen(b.served)
	must(t, err)
	b.conns = &relay{Listener: port, dial: func(ctx context.Context) (net.Conn, error) { return l.Dial(ctx, b.volume.Address(b.host)) }}
	go b.conns.run(t.Context())
	t.Cleanup(func() { b.conns.Close() })
	t.Logf("the volume is there after %v", time.Since(begun).Round(time.Millisecond))
	return b
}

// A relay takes guests' connections to the loopback address at which the volume is served.
type relay struct {
	net.Listener
	dial func(context.Context) (net.Conn, error)

	mu    sync.Mutex
	count int // of connections that there were
}

func (r *relay) run(ctx context.Context) {
	for {
		near, err := r.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		r.count++
		r.mu.Unlock()
		go func() {
			defer near.Close()
			far, err := r.dial(ctx)
			if err != nil {
				return
			}
			defer far.Close()
			go func() {
				_, _ = io.Copy(far, near)
				_ = far.Close()
			}()
			_, _ = io.Copy(near, far)
		}()
	}
}

// opened says how many connections there were.
func (r *relay) opened() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}
