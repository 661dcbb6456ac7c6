//go:build interop

package volume

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/volumes"
)

// serverEnv names the server that this program, as nbdkit, connects its standard input to.
const serverEnv = "MCRDMA_LIBNBD_SERVER"

// bridge is what libnbd's tests start in place of nbdkit: the server is the volume.
func bridge() int {
	if !slices.Contains(os.Args, "-s") {
		return 0 // it is asked whether it can do something
	}
	c, err := net.Dial("tcp", os.Getenv(serverEnv))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		_, _ = io.Copy(c, os.Stdin)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, c)
	return 0
}

// A program is one of libnbd's tests. Its server is the only volume that clients may open.
type program struct {
	name    string // in the sources
	defines []string
}

// libnbdPrograms are those of libnbd's tests whose server may be another one than that which they name, by the volume
// that they want. Not run are those
//   - of servers that fail, or wait, on purpose: server-death, shutdown-flags, errors-multiple-disconnects, errors-*-unadvertised-cmd, oldstyle, newstyle-limited;
//   - of servers whose size or allocation no volume has: get-size, meta-base-allocation, structured-read, dirty-bitmap, opt-info, opt-list, eflags;
//   - for which blocks have one byte (errors-server-invalid-offset), or a read of nothing has to fail, which the protocol leaves open (errors-server-zerosize);
//   - that look into the server's file (410-pwrite.py, 510-aio-pwrite.py), want it to start in a certain way (connect-*, aio-connect*, socket-activation), or have none.
var libnbdPrograms = []struct {
	size    int
	pattern bool // each 8 bytes have their offset, big endian
	list    []program
}{
	{1 << 20, false, []program{
		{"interop/interop.c", []string{"SERVER=\"nbdkit\"", "SERVER_PARAMS=\"-s\""}},
		{"interop/interop.c", []string{"SERVER=\"nbdkit\"", "SERVER_PARAMS=\"-s\"", "EXPORT_NAME=\"libnbd\""}},
		{"tests/errors-bad-cookie.c", nil}, {"tests/errors-client-unaligned.c", nil}, {"tests/errors-client-unknown-flags.c", nil},
		{"tests/errors-client-zerosize.c", nil}, {"tests/errors-connect-twice.c", nil}, {"tests/errors-not-negotiating.c", nil},
		{"tests/errors-notify-not-blocked.c", nil}, {"tests/errors-pread-structured.c", nil},
		{"tests/errors-server-unaligned.c", nil}, {"tests/errors-server-unknown-flags.c", nil},
		{"tests/opt-abort.c", nil}, {"tests/opt-list-meta.c", nil}, {"tests/pread-initialize.c", nil},
		{"tests/read-write-flag.c", nil}, {"tests/closure-lifetimes.c", nil},
		{"python/t/200-connect-command.py", nil}, {"python/t/210-opt-abort.py", nil}, {"python/t/240-opt-list-meta.py", nil},
		{"python/t/300-get-size.py", nil}, {"python/t/600-debug-callback.py", nil},
	}},
	{1 << 20, true, []program{
		{"python/t/400-pread.py", nil}, {"python/t/405-pread-structured.py", nil}, {"python/t/500-aio-pread.py", nil}, {"python/t/505-aio-pread-callback.py", nil},
	}},
	{65 << 20, false, []program{{"tests/errors-client-oversize.c", nil}}},
}

// libnbd are the sources of libnbd's tests, of the version that this machine has the library of.
func libnbd(t *testing.T) string {
	t.Helper()
	tool(t, "gcc", "gcc")
	if _, err := os.Stat("/usr/include/libnbd.h"); err != nil {
		testenv.Skip(t, "libnbd.h is not there: apt-get install libnbd-dev")
	}
	apt := tool(t, "apt-get", "apt")
	dir := t.TempDir()
	sources, err := filepath.Glob("/etc/apt/sources.list.d/*.sources")
	list, _ := os.ReadFile("/etc/apt/sources.list")
	text := strings.ReplaceAll("\n"+string(list), "\ndeb ", "\ndeb-src ")
	if err := os.WriteFile(filepath.Join(dir, "source.list"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, file := range sources {
		b, _ := os.ReadFile(file)
		b = bytes.ReplaceAll(b, []byte("Types: deb\n"), []byte("Types: deb-src\n"))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".sources")), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"update"}, {"source", "--download-only", "libnbd"}} {
		cmd := exec.Command(apt, append([]string{"-q", "-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=" + dir, "-o", "Dir::State::lists=" + filepath.Join(dir, "lists"),
			"-o", "APT::Sandbox::User=root"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			testenv.Skip(t, "the sources of libnbd cannot be had: %v: %s", err, out)
		}
	}
	archives, _ := filepath.Glob(filepath.Join(dir, "libnbd_*.orig.tar.gz"))
	if len(archives) != 1 {
		t.Fatalf("%d archives of libnbd", len(archives))
	}
	if out, err := exec.Command("tar", "-xzf", archives[0], "-C", dir, "--one-top-level=libnbd", "--strip-components=1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir = filepath.Join(dir, "libnbd")
	if err := os.WriteFile(filepath.Join(dir, "common", "include", "config.h"), nil, 0o600); err != nil { // its tests need nothing of it
		t.Fatal(err)
	}
	return dir
}

// build makes a program of libnbd's tests, and returns how it is started.
func (p program) build(t *testing.T, sources string) []string {
	t.Helper()
	file := filepath.Join(sources, p.name)
	if strings.HasSuffix(file, ".py") {
		return []string{"/usr/bin/python3", file}
	}
	out := filepath.Join(t.TempDir(), "program")
	args := []string{"-w", "-I" + filepath.Join(sources, "common/include"), "-I" + filepath.Join(sources, "tests"), "-o", out, file, filepath.Join(sources, "tests/requires.c"), "-lnbd", "-lpthread"}
	for _, d := range p.defines {
		args = append(args, "-D"+d)
	}
	if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %q: %v\n%s", args, err, text)
	}
	return []string{out}
}

// A served is the volume that a program finds at its server.
type served struct {
	*volumes.Volume
	at netip.AddrPort
}

// create makes a volume, the only one that clients may open, which is deleted at the end of the test.
func (s served) create(t *testing.T, name string, size int, pattern bool) (said string) {
	t.Helper()
	said = s.mcblock(t, "volume", "create", name, "--size", fmt.Sprint(size), "--block-size", "512")
	t.Cleanup(func() { s.mcblock(t, "volume", "delete", name, "--yes") })
	if !pattern {
		return said
	}
	data := make([]byte, size)
	for i := 0; i < size; i += 8 {
		binary.BigEndian.PutUint64(data[i:], uint64(i))
	}
	file := filepath.Join(t.TempDir(), "pattern")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, nil, tool(t, "nbdcopy", "libnbd-bin"), "--flush", file, s.uri(name))
	return said
}

func (s served) uri(name string) string { return fmt.Sprintf("nbd://%s/%s", s.at, name) }

func (s served) mcblock(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Mcblock(context.WithoutCancel(t.Context()), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// run runs a program to its end.
func (s served) run(t *testing.T, env []string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}

// TestLibnbd: what libnbd's own tests want of a server, a volume does, also by nbdkit, whose plugin nbd is
// another client, and by nbdfuse.
func TestLibnbd(t *testing.T) {
	sources := libnbd(t)
	nbdkit := tool(t, "nbdkit", "nbdkit")
	must(t, volumes.Build(t.Context(), base))
	dir, err := os.MkdirTemp(base, "")
	must(t, err)
	at := netip.AddrPortFrom(testenv.Loopback(), 10809)
	v, err := volumes.Start(t.Context(), volumes.Config{Bin: base, Dir: dir, NBD: at, Size: "8M"})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() || testing.Verbose() {
			t.Log(v.Log())
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	s := served{v, v.Address("h2")}
	s.mcblock(t, "volume", "allow", "vol", "another") // so that the volume without a name is another one
	own, err := os.Executable()
	must(t, err)
	bin := t.TempDir()
	must(t, os.Symlink(own, filepath.Join(bin, "nbdkit")))
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), serverEnv + "=" + s.at.String()}
	for i, set := range libnbdPrograms {
		t.Run(fmt.Sprint("volume", i), func(t *testing.T) {
			s.create(t, "libnbd", set.size, set.pattern)
			for _, p := range set.list {
				t.Run(filepath.Base(p.name), func(t *testing.T) { s.run(t, env, p.build(t, sources)...) })
			}
		})
	}
	t.Run("list-exports", func(t *testing.T) {
		about := make([]string, 2)
		for i, name := range []string{"disk1", "disk2"} {
			number := regexp.MustCompile(`number ([0-9a-f]+),`).FindStringSubmatch(s.create(t, name, 1<<20, false))
			about[i] = fmt.Sprintf("\"volume %s, 3 copies\"", number[1])
		}
		s.run(t, env, program{"interop/list-exports.c", []string{"SERVER=\"nbdkit\"", "SERVER_PARAMS=\"-s\"", "EXPORTS=\"disk1\",\"disk2\"", "DESCRIPTIONS=" + strings.Join(about, ",")}}.build(t, sources)...)
	})
	for name, size := range map[string]int{"aio-parallel": 64 << 20, "aio-parallel-load": 64 << 20, "synch-parallel": 8 << 20} { // each for 10 s, at offsets of all kinds
		t.Run(name, func(t *testing.T) {
			s.create(t, "libnbd", size, true)
			argv := program{"tests/" + name + ".c", nil}.build(t, sources)
			t.Log(s.run(t, nil, nbdkit, "-U", "-", "--filter=blocksize", "nbd", s.uri("libnbd"), "minblock=512", "--run", argv[0]+" $unixsocket"))
		})
	}
	t.Run("nbdfuse", func(t *testing.T) { s.fuse(t) })
}

// fuse has a volume as a file.
func (s served) fuse(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("optional: there is no FUSE: %v", err)
	}
	s.create(t, "libnbd", 8<<20, true)
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * 31)
	}
	file := filepath.Join(t.TempDir(), "want")
	must(t, os.WriteFile(file, want, 0o600))
	mnt := t.TempDir()
	fuse := exec.CommandContext(t.Context(), tool(t, "nbdfuse", "libnbd-bin"), mnt, s.uri("libnbd"))
	var out testenv.SyncBuffer
	fuse.Stdout, fuse.Stderr = &out, &out
	must(t, fuse.Start())
	defer func() {
		_ = exec.Command("umount", mnt).Run()
		if err := fuse.Wait(); err != nil {
			t.Errorf("nbdfuse: %v\n%s", err, out.String())
		}
	}()
	disk := filepath.Join(mnt, "nbd")
	for _, err := os.Stat(disk); err != nil; _, err = os.Stat(disk) {
		if time.Sleep(10 * time.Millisecond); t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	s.run(t, nil, "dd", "if="+file, "of="+disk, "bs=64k", "seek=16", "conv=notrunc,fsync")
	got := s.run(t, nil, "dd", "if="+disk, "bs=1M", "skip=1", "count=1", "status=none")
	if got != string(want) {
		t.Error("the file has something else")
	}
}
