package volumes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// program returns the path of a program from a Debian package.
func program(t *testing.T, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		testenv.Skip(t, "%s is not installed: apt-get install %s", name, debian)
	}
	return path
}

// run runs a program to its end.
func run(ctx context.Context, path string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", filepath.Base(path), strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func startVolume(t *testing.T, size string) *Volume {
	t.Helper()
	if os.Getenv("MCRDMA_E2E") != "1" {
		t.Skip("optional: whole labs belong to \"make e2e\"")
	}
	if err := Build(t.Context(), base); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	dir, err := os.MkdirTemp(base, "") // its name is short, as those of sockets must be
	if err != nil {
		t.Fatal(err)
	}
	v, err := Start(t.Context(), Config{Bin: base, Dir: dir, NBD: netip.AddrPortFrom(testenv.Loopback(), 10809), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the volume is there after %v", time.Since(begun).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() || testing.Verbose() {
			t.Log(v.Log())
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// A loop does work repeatedly, until it is stopped or the work fails.
type loop struct {
	name string
	once chan struct{} // closed after the first time
	stop chan struct{}
	done chan error
	runs int // when done
}

func startLoop(name string, work func() error) *loop {
	l := &loop{name: name, once: make(chan struct{}), stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		for {
			if err := work(); err != nil {
				l.done <- fmt.Errorf("%s: %w", name, err)
				return
			}
			if l.runs++; l.runs == 1 {
				close(l.once)
			}
			select {
			case <-l.stop:
				l.done <- nil
				return
			default:
			}
		}
	}()
	return l
}

// begun waits until it has been done once.
func (l *loop) begun(t *testing.T) {
	t.Helper()
	select {
	case <-l.once:
	case err := <-l.done:
		t.Fatal(err)
	}
}

// end waits for the end of the current work.
func (l *loop) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	if err := <-l.done; err != nil {
		t.Error(err)
	}
	t.Logf("%s: %d times", l.name, l.runs)
}

// TestForeignClients: clients from distributions use a volume through one host while a replica is
// killed and comes back, and the primary is killed. No request fails, fio finds every block as
// written, and copies equal their originals.
func TestForeignClients(t *testing.T) {
	program(t, "fio", "fio")
	nbdcopy, nbdinfo := program(t, "nbdcopy", "libnbd-bin"), program(t, "nbdinfo", "libnbd-bin")
	img, qemuIO := program(t, "qemu-img", "qemu-utils"), program(t, "qemu-io", "qemu-utils")
	v := startVolume(t, "96M")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	begun, client := time.Now(), v.Other(v.State().Primary)
	const size = 24 << 20
	for _, name := range []string{"nbdcopy", "qemu"} {
		if _, err := v.Mcblock(ctx, "volume", "create", name, "--size", fmt.Sprint(size)); err != nil {
			t.Fatal(err)
		}
	}
	for _, host := range Hosts {
		if out, err := run(ctx, nbdinfo, "--size", v.URI(host, "vol")); err != nil || strings.TrimSpace(out) != fmt.Sprint(96<<20) {
			t.Errorf("nbdinfo at %s: %s, %v", host, out, err)
		}
	}
	nbdshScript(ctx, t, v)

	checker := startFio(t, v.URI(client, "vol"))
	r, dir := rand.NewChaCha8([32]byte{21}), t.TempDir()
	data, back := filepath.Join(dir, "data"), filepath.Join(dir, "back")
	want := make([]byte, size)
	copies := startLoop("nbdcopy, both ways", func() error {
		_, _ = r.Read(want)
		if err := os.WriteFile(data, want, 0o600); err != nil {
			return err
		}
		if _, err := run(ctx, nbdcopy, "--flush", data, v.URI(client, "nbdcopy")); err != nil {
			return err
		}
		if _, err := run(ctx, nbdcopy, "--connections=4", v.URI(client, "nbdcopy"), back); err != nil {
			return err
		}
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("%d bytes came back, which differ: %w", len(got), err)
		}
		return nil
	})
	n, image := 0, filepath.Join(dir, "image.qcow2")
	if _, err := run(ctx, img, "create", "-f", "qcow2", image, fmt.Sprint(size)); err != nil {
		t.Fatal(err)
	}
	images := startLoop("qemu-io, qemu-img convert, compare", func() error {
		n++
		for _, args := range [][]string{
			{qemuIO, "-f", "qcow2", "-c", fmt.Sprintf("write -P %d %dM 6M", n%255+1, n%4*6), "-c", fmt.Sprintf("write -z %dM 2M", (n+1)%4*6), image},
			{img, "convert", "-n", "-O", "raw", image, v.URI(client, "qemu")},
			{img, "compare", image, v.URI(client, "qemu")},
			{qemuIO, "-f", "raw", "-c", "write -P 90 4k 64k", "-c", "write -f -P 91 1M 4k", "-c", "discard 2M 1M", "-c", "flush",
				"-c", "read -P 90 4k 64k", "-c", "read -P 91 1M 4k", "-c", "read -P 0 2M 1M", v.URI(client, "qemu")},
		} {
			if out, err := run(ctx, args[0], args[1:]...); err != nil {
				return err
			} else if strings.Contains(out, "failed") {
				return fmt.Errorf("%q: %s", args, out)
			}
		}
		return nil
	})
	copies.begun(t)
	images.begun(t)
	checker.begun(t)
	if err := v.KillTwo(ctx, client, t.Logf, func() {}); err != nil {
		t.Fatal(err)
	}
	copies.end(t)
	images.end(t)
	checker.end(t)
	if err := v.Whole(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("all hosts have everything %v after the beginning", time.Since(begun).Round(time.Millisecond))
	for _, host := range Hosts { // returned hosts have what they missed
		file := filepath.Join(dir, host)
		if _, err := run(ctx, nbdcopy, v.URI(host, "nbdcopy"), file); err != nil {
			t.Fatal(err)
		} else if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s has something else: %v", host, err)
		}
	}
}

// A checker is a fio process that writes and verifies until it is stopped.
type checker struct {
	cmd *exec.Cmd
	out testenv.SyncBuffer
}

// startFio starts the fio command of docs/volumes.md, for longer.
func startFio(t *testing.T, uri string) *checker {
	t.Helper()
	blocks, err := Commands("../../../docs/volumes.md", "tests/e2e/volumes", "TestForeignClients")
	if err != nil || len(blocks) != 1 {
		t.Fatalf("%d blocks of this test: %v", len(blocks), err)
	}
	text := strings.NewReplacer("nbd://127.0.0.1:10811/vol", uri, "--runtime=20", "--runtime=600 --output-format=json").Replace(blocks[0])
	if !strings.Contains(text, uri) || !strings.Contains(text, "json") {
		t.Fatal(text)
	}
	c := &checker{cmd: exec.CommandContext(t.Context(), "sh", "-c", "exec "+text)}
	c.cmd.Dir, c.cmd.Stdout, c.cmd.Stderr = t.TempDir(), &c.out, &c.out
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// begun waits until it has connected.
func (c *checker) begun(t *testing.T) {
	t.Helper()
	for late := time.Now().Add(time.Minute); !strings.Contains(c.out.String(), "connected"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("fio does not connect: %s", c.out.String())
		}
	}
}

// end stops fio, like Ctrl-C, and fails the test if a request has failed or a block was wrong.
func (c *checker) end(t *testing.T) {
	t.Helper()
	_ = c.cmd.Process.Signal(syscall.SIGINT)
	err := c.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 128 { // it was interrupted
		t.Fatalf("fio: %v\n%s", err, c.out.String())
	}
	type direction struct {
		Requests int64                 `json:"total_ios"`
		Latency  struct{ Max float64 } `json:"lat_ns"`
	}
	var report struct {
		Jobs []struct {
			Error       int
			Read, Write direction
		}
	}
	text := c.out.String()
	if err := json.Unmarshal([]byte(text[max(0, strings.Index(text, "\n{")):]), &report); err != nil || len(report.Jobs) != 1 {
		t.Fatalf("fio: %v\n%s", err, text)
	}
	j := report.Jobs[0]
	if j.Error != 0 || j.Read.Requests == 0 || j.Write.Requests == 0 || strings.Contains(text, "verify:") {
		t.Errorf("fio: error %d\n%s", j.Error, text)
	}
	t.Logf("fio: %d reads and %d writes, the longest %.1f s", j.Read.Requests, j.Write.Requests, max(j.Read.Latency.Max, j.Write.Latency.Max)/1e9)
}

// nbdshScript makes libnbd write at one host, flush at another and read at the third, which
// NBD_FLAG_CAN_MULTI_CONN allows.
func nbdshScript(ctx context.Context, t *testing.T, v *Volume) {
	t.Helper()
	const python = "/usr/bin/python3" // that of the package python3-libnbd; nbdsh takes the first in PATH
	if out, err := run(ctx, python, "-c", "import nbd"); err != nil {
		testenv.Skip(t, "%s has no module nbd: apt-get install python3-libnbd (%s)", python, out)
	}
	script := fmt.Sprintf(`
import nbd
handles = []
for uri in (%q, %q, %q):
    h = nbd.NBD()
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_uri(uri)
    assert h.can_multi_conn() and h.get_block_size(nbd.SIZE_MINIMUM) == 4096
    handles.append(h)
for i in range(30):
    a, b, c = (handles[(i + k) %% 3] for k in range(3))
    block = bytes([i + 1]) * 65536
    a.pwrite(block, i * 65536)
    assert c.pread(65536, i * 65536) == block # what is acknowledged is seen everywhere
    b.flush()
    if i %% 5 == 0:
        c.trim(65536, i * 65536)
        assert a.pread(65536, i * 65536) == bytes(65536)
extents = []
handles[1].block_status(30 * 65536, 0, lambda name, at, e, err: extents.extend(e))
assert len(extents) > 2, extents
for h in handles:
    h.shutdown()
`, v.URI("h1", "vol"), v.URI("h2", "vol"), v.URI("h3", "vol"))
	if _, err := run(ctx, python, "-c", script); err != nil {
		t.Fatal(err)
	}
}
