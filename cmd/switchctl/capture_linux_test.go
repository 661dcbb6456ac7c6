package main

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestCaptureVeth: packets of an interface are captured in both directions, with the kernel's
// timestamps.
func TestCaptureVeth(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error("unshare: ", err)
			return
		}
		captureVeth(t)
	}()
	<-done
}

func captureVeth(t *testing.T) {
	// It runs in parallel with the test's goroutine, which only waits.
	check := func(err error) bool {
		if err != nil {
			t.Error(err)
		}
		return err == nil
	}
	if out, err := exec.Command("sh", "-ec", "ip link add va type veth peer name vb; ip link set va up; ip link set vb up").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
		return
	}
	if _, _, _, err := openTaps([]tapSpec{{sw: "s", port: 1, name: "nothere"}}); err == nil || !strings.Contains(err.Error(), "port 1 of switch s: interface nothere") {
		t.Errorf("an interface that is not there: %v", err)
	}
	packets, failed, stop, err := openTaps([]tapSpec{{sw: "s", port: 1, name: "va"}})
	if !check(err) {
		return
	}
	defer stop()
	begun := time.Now()
	var sent [2][]byte
	for i, name := range []string{"vb", "va"} {
		p, err := ports.OpenInterface(name, ports.Options{})
		if !check(err) {
			return
		}
		defer p.Close()
		sent[i] = append(bytes.Repeat([]byte{byte(2 + 2*i)}, 12), append([]byte{0x88, 0xb5}, bytes.Repeat([]byte{9}, 100)...)...)
		for patience := time.Now().Add(10 * time.Second); p.Send([][]byte{sent[i]}) != 1; {
			if time.Now().After(patience) {
				t.Errorf("%s sends nothing", name)
				return
			}
		}
	}
	for found := [2]bool{}; !found[0] || !found[1]; {
		select {
		case p := <-packets: // packets of the kernel itself are among them
			for i := range sent {
				if !bytes.Equal(p.Data, sent[i]) {
					continue
				}
				found[i] = true
				if p.Out != (i == 1) || p.Switch != "s" || p.Port != 1 || p.Time.Before(begun.Add(-time.Second)) || time.Since(p.Time) > time.Minute {
					t.Errorf("packet %d: %+v", i, p)
				}
			}
		case err := <-failed:
			t.Error(err)
			return
		case <-time.After(10 * time.Second):
			t.Errorf("seen: %v", found)
			return
		}
	}
}
