package volumes

import (
	"fmt"
	"os"
	"os/signal"
	"testing"

	"golang.org/x/sys/unix"
)

// base is the directory of all files. It is removed with the tests, also when they are interrupted.
var base string

func TestMain(m *testing.M) {
	var err error
	if base, err = os.MkdirTemp("", "mcrdma-volumes-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	go func() {
		<-interrupted
		_ = os.RemoveAll(base) // processes end with this one
		os.Exit(130)
	}()
	code := m.Run()
	_ = os.RemoveAll(base)
	os.Exit(code)
}
