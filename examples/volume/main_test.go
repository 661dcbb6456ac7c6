package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/tests/osdmaptest"
)

// until waits until the program's output has a text.
func until(t *testing.T, out *testenv.SyncBuffer, ended <-chan int, text string) string {
	t.Helper()
	late := time.After(2 * time.Minute)
	for !strings.Contains(out.String(), text) {
		select {
		case code := <-ended:
			t.Fatalf("ended with %d before %q: %s", code, text, out.String())
		case <-late:
			t.Fatalf("no %q in %s", text, out.String())
		case <-time.After(10 * time.Millisecond): // it comes from processes
		}
	}
	return out.String()
}

// TestVolume: data is copied to the volume by one host and read by another, and again when a
// replica was killed, and when it is back and the primary was killed; in the end nothing is left.
func TestVolume(t *testing.T) {
	nbdcopy, err := exec.LookPath("nbdcopy")
	if err != nil {
		testenv.Skip(t, "no nbdcopy (Debian: libnbd-bin)")
	}
	bin, tmp := filepath.Join(t.TempDir(), "mcblock"), t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/mcblock").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("TMPDIR", tmp)
	at := testenv.Loopback()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, ended := new(testenv.SyncBuffer), make(chan int, 1)
	go func() {
		ended <- command(ctx, []string{"--mcblock", bin, "--nbd", at.String() + ":10809", "--size", "64M", "--verbose"}, out, out)
	}()
	text := until(t, out, ended, "Until Ctrl-C")
	pids := map[string]int{}
	for _, m := range regexp.MustCompile(`kill -9 (\d+)    # (h\d)`).FindAllStringSubmatch(text, -1) {
		pids[m[2]], _ = strconv.Atoi(m[1])
	}
	file, want := filepath.Join(t.TempDir(), "data"), make([]byte, 8<<20)
	r := rand.NewChaCha8([32]byte{21})
	copyTo := func(host int) {
		t.Helper()
		if _, err := r.Read(want); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(ctx, nbdcopy, "--flush", file, fmt.Sprintf("nbd://%v:%d/vol", at, 10809+host)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	check := func(host int) {
		t.Helper()
		got, err := exec.CommandContext(ctx, nbdcopy, fmt.Sprintf("nbd://%v:%d/vol", at, 10809+host), "-").Output()
		if err != nil || len(got) != 64<<20 || !bytes.Equal(got[:len(want)], want) {
			t.Fatalf("%d bytes from h%d, which differ: %v", len(got), host+1, err)
		}
	}
	copyTo(0)
	check(1)
	if err := syscall.Kill(pids["h3"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	copyTo(1)
	check(0)
	until(t, out, ended, "primary h1, acting h1, h2\n")
	until(t, out, ended, "epoch 4: primary h1, acting h1, h2, h3\n") // it is back
	if err := syscall.Kill(pids["h1"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	check(1)
	copyTo(2)
	check(1)
	cancel()
	select {
	case code := <-ended:
		if code != 0 {
			t.Errorf("exit code %d: %s", code, out.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	if !strings.Contains(out.String(), "\nstopping…") {
		t.Error("it does not say that it stops")
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for host, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the mcblock of %s is still there: %v", host, err)
		}
	}
}

// TestUsage: what is wrong with a command line is said, with exit code 2.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"x":                         `unexpected argument "x"`,
		"--nbd 10.1.0.1:10809":      "want a loopback address",
		"--nbd 127.0.0.1:65534":     "want a loopback address",
		"--nbd 127.0.0.1":           "want a loopback address",
		"--size 10X --mcblock true": "--size",
		"--mcblock /nope":           "--mcblock /nope: stat /nope: no such file or directory: name the program",
		"--mcblock nope":            "--mcblock nope: executable file not found in $PATH: name the program",
	} {
		var out, errs testenv.SyncBuffer
		if code := command(t.Context(), strings.Fields(args), &out, &errs); code != 2 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %d, %s; want %q", args, code, errs.String(), want)
		}
	}
}

// TestPorts: that an address for clients is taken is said before anything is started, with what to do.
func TestPorts(t *testing.T) {
	at := testenv.Loopback()
	l, err := net.Listen("tcp", netip.AddrPortFrom(at, 10811).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var out, errs testenv.SyncBuffer
	code := command(t.Context(), []string{"--mcblock", "true", "--nbd", at.String() + ":10809"}, &out, &errs)
	if want := fmt.Sprintf("%v:10811, for clients of h3, is in use by another program", at); code != 1 || out.String() != "" || !strings.Contains(errs.String(), want) || !strings.Contains(errs.String(), "--nbd") {
		t.Errorf("%d, %s, %s; want %s", code, out.String(), errs.String(), want)
	}
}

// TestShow: each change is told once: of etcd, of the map, also how many were over at once, and that the volume was deleted.
func TestShow(t *testing.T) {
	v := osdmaptest.Volume(7, name)
	first := osdmap.FirstMap(v, 2)
	second := osdmaptest.Next(first, 1, 1, 2, 3)
	fifth := osdmaptest.Next(osdmaptest.Next(osdmaptest.Next(second, 2, 2, 3), 2, 2), 2, 2, 3)
	is := func(m core.Map, away error) osdmap.State {
		return osdmap.State{Volumes: []osdmap.VolumeState{{Volume: v, Map: m}}, Away: away}
	}
	var out strings.Builder
	d, shown := &demo{out: &out}, core.Map{}
	for i, c := range []struct {
		s    osdmap.State
		want string
	}{
		{osdmap.State{}, ""},
		{is(first, nil), "epoch 1: primary none, acting h1, h2, h3\n"},
		{is(second, nil), "epoch 2: primary h1, acting h1, h2, h3\n"},
		{is(second, nil), ""},
		{is(second, errors.New("frozen")), "etcd does not answer: frozen\n"},
		{is(second, errors.New("down")), ""},
		{is(fifth, nil), "etcd answers again\n"},
		{osdmap.State{Away: osdmap.ErrAway}, "etcd does not answer: the configuration store is away\n"},
		{osdmap.State{}, "the volume was deleted; Ctrl-C ends this\n"},
		{osdmap.State{}, ""},
	} {
		out.Reset()
		d.show(&c.s, &shown)
		if got := out.String(); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
		if i == 6 && !strings.Contains(out.String(), "epoch 5 (2 before it were over at once): primary h2, acting h2, h3\n") {
			t.Errorf("epochs that were missed: %s", &out)
		}
	}
}
