//go:build interop

package multicast

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

// base is where files are. It goes with the tests, also when they are interrupted.
var base string

func TestMain(m *testing.M) {
	log.SetFlags(log.Ltime)
	var err error
	if base, err = os.MkdirTemp("", "mcrdma-multicast-"); err != nil {
		log.Fatal(err)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	go func() {
		log.Print(<-interrupted)
		_ = os.RemoveAll(base) // processes, guests and namespaces end with this one
		os.Exit(130)
	}()
	code := vm.Tests(m.Run, theBed.hung, theBed.close)
	if err := os.RemoveAll(base); err != nil {
		log.Print(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

const module = "github.com/mcrdma/mcrdma/"

var image = sync.OnceValues(func() (*vm.Image, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return vm.BuildImage(ctx, base, log.Printf, vm.Program{Package: module + "cmd/cmd-daemon"}, vm.Program{Package: module + "tests/e2e/member", Verbs: true})
})

// A bed is the lab, with guests in the places of some hosts. The tests share it:
// booting takes longer than most of them.
type bed struct {
	*lab.Lab
	guests map[string]*guest // by the host's name
}

var theBed bed

// patient daemons bear with guests, whose time other guests may have. A receiver that
// acknowledges nothing is taken out after a quarter of it.
const patient = "beat: {dead_after: 12s}\n"

// getBed returns the lab, in which those hosts are guests, and the others are not.
func getBed(t *testing.T, guests ...string) *bed {
	t.Helper()
	b := &theBed
	img, err := image()
	if err == nil && b.Lab == nil {
		err = b.start(t)
	}
	if errors.Is(err, vm.ErrUnavailable) || errors.Is(err, lab.ErrUnable) {
		testenv.Skip(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if said := b.Switches[0].Switch.Log(); strings.Contains(said, "there is no fast path") {
		testenv.Skip(t, "%s", said)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	start := time.Now()
	if err := b.setGuests(ctx, img, guests); err != nil {
		t.Fatal(err)
	}
	t.Logf("guests are %q after %v", guests, time.Since(start).Round(10*time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			for _, g := range b.guests {
				g.logs(t)
			}
			t.Log(b.Logs())
		}
	})
	return b
}

func (b *bed) start(t *testing.T) error {
	p, err := lab.Build(base)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(base, "lab-")
	if err != nil {
		return err
	}
	b.guests = map[string]*guest{}
	// Groups that would need ICRCs computed anew are refused.
	neutral := lab.Switch{Agent: "icrc: neutral\n"}
	b.Lab, err = lab.Start(t.Context(), p, dir, lab.Spec{MTU: mtu, FastPath: true, Daemon: patient,
		Switches: map[string]lab.Switch{"torA": neutral, "spine": neutral, "torB": neutral}})
	return err
}

func (b *bed) hung() bool {
	for _, g := range b.guests {
		if g.vm != nil && g.vm.Hung() {
			return true
		}
	}
	return false
}

func (b *bed) close() error {
	if b.Lab == nil {
		return nil
	}
	var errs []error
	for _, g := range b.guests {
		errs = append(errs, g.close())
	}
	errs = append(errs, b.Lab.Close())
	*b = bed{}
	return errors.Join(errs...)
}
