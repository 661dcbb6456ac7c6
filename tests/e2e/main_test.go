package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// base is the directory of the labs. It is removed with the tests, also when they are interrupted.
var base string

func TestMain(m *testing.M) {
	err := chooseSwitch()
	if err == nil {
		base, err = os.MkdirTemp("", "mcrdma-e2e-")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	go func() {
		<-interrupted
		_ = os.RemoveAll(base) // processes and namespaces end with this one
		os.Exit(130)
	}()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(base)
		os.Exit(code)
	}))
}

// launcher is bmv2's launcher, where labs have bmv2 instead of the embedded switch.
var launcher string

// chooseSwitch selects the kind of switch that MCRDMA_SWITCH names.
func chooseSwitch() (err error) {
	switch kind := os.Getenv("MCRDMA_SWITCH"); kind {
	case "", "softswitch":
	case "bmv2":
		launcher, err = lab.FindBMv2()
	default:
		err = fmt.Errorf("MCRDMA_SWITCH=%s: there are softswitch and bmv2", kind)
	}
	return err
}

// embeddedOnly skips tests of features that bmv2 does not have.
func embeddedOnly(t *testing.T, why string) {
	t.Helper()
	if launcher != "" {
		t.Skip("optional: for the embedded switch only: " + why)
	}
}

// programs are built when a test first needs them.
var programs = sync.OnceValues(func() (lab.Programs, error) {
	p, err := lab.Build(filepath.Join(base, "bin"))
	p.BMv2 = launcher
	return p, err
})

// wholeLabs skips tests that are not for "make test", which runs with the race detector and in
// parallel with all other packages.
func wholeLabs(t *testing.T) {
	t.Helper()
	if os.Getenv("MCRDMA_E2E") != "1" {
		t.Skip("optional: whole labs belong to \"make e2e\"")
	}
}

// startLab makes a lab that ends with the test.
func startLab(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	wholeLabs(t)
	return startSample(t, spec)
}

// startSample is startLab for tests that are short enough for "make test".
func startSample(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	p, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(base, "lab-")
	if err != nil {
		t.Fatal(err)
	}
	spec.BMv2 = launcher != ""
	start := time.Now()
	l, err := lab.Start(t.Context(), p, dir, spec)
	if errors.Is(err, lab.ErrUnable) {
		testenv.Skip(t, "%v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Logf("the lab is up after %v", time.Since(start).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			showLogs(t, l)
		}
	})
	return l
}

// showLogs keeps the output of the processes of a failed test.
func showLogs(t *testing.T, l *lab.Lab) {
	dir := os.Getenv("MCRDMA_E2E_LOGS")
	if dir == "" {
		t.Log(l.Logs())
		return
	}
	name := filepath.Join(dir, filepath.Base(t.Name())+".log")
	if err := os.WriteFile(name, []byte(l.Logs()), 0o600); err != nil {
		t.Error(err)
	}
	t.Logf("logs: %s", name)
}

// ask gives an order to an application and fails the test on an error.
func ask[T any](t *testing.T, h *lab.HostNode, order string, args any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	res, err := lab.Ask[T](ctx, h.Member, order, args)
	if err != nil {
		t.Fatal(err)
	}
	return res
}
