//go:build interop

package volume

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/volumes"
)

// TestDebian does what docs/volumes.md says: makes a Debian, copies it to a volume, and boots a virtual machine
// from there by QEMU's NBD client. The primary and then a replica are killed while it boots. It comes up, has all
// its files as they were packaged, ends, and leaves a file system that is clean.
func TestDebian(t *testing.T) {
	if os.Getenv("MCRDMA_LONG") != "1" {
		t.Skip("a whole Debian takes minutes: MCRDMA_LONG=1, or \"make nightly\"")
	}
	for program, debian := range map[string]string{"mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs", "nbdcopy": "libnbd-bin", "qemu-system-x86_64": "qemu-system-x86"} {
		tool(t, program, debian)
	}
	blocks, err := volumes.Commands("../../../docs/volumes.md", "tests/interop/volume", "TestDebian")
	must(t, err)
	if len(blocks) != 4 {
		t.Fatalf("the page has %d blocks of this test, want: the image, its copy, the virtual machine, the check", len(blocks))
	}
	blocks[2] = strings.Replace(blocks[2], "-accel kvm ", "", 1) // in a virtual machine KVM may be there, and its guests stand still
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	b, dir := start(t, nil, "1G"), t.TempDir()
	if b.host != "h2" {
		t.Fatalf("the page takes it that h2 is not the primary: %+v", b.volume.State())
	}
	begin := func(i int) (*exec.Cmd, *testenv.SyncBuffer, io.Writer) {
		t.Helper()
		cmd, out := exec.Command("sh", "-ec", blocks[i]), &testenv.SyncBuffer{}
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
		cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
		in, err := cmd.StdinPipe()
		must(t, err)
		if i == 0 { // packages come from outside
			must(t, cmd.Start())
		} else {
			must(t, b.net.Start(cmd))
		}
		return cmd, out, in
	}
	run := func(i int) string {
		t.Helper()
		begun := time.Now()
		cmd, out, _ := begin(i)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v\n%s\n%s", err, blocks[i], out)
		}
		t.Logf("%s\n%v\n%s", blocks[i], time.Since(begun).Round(100*time.Millisecond), out)
		return out.String()
	}
	run(0)
	run(1)
	begun := time.Now()
	machine, console, keys := begin(2)
	ended := make(chan error, 1)
	go func() { ended <- machine.Wait() }()
	says := func(after int, want string) int {
		t.Helper()
		for {
			if i := strings.Index(console.String()[after:], want); i >= 0 {
				t.Logf("%v: %q", time.Since(begun).Round(100*time.Millisecond), want)
				return after + i + len(want)
			}
			select {
			case err := <-ended:
				t.Fatalf("ended before %q: %v\n%s", want, err, console)
			case <-ctx.Done():
				t.Fatalf("no %q: %v\n%s", want, context.Cause(ctx), console)
			case <-time.After(20 * time.Millisecond): // it comes from a process
			}
		}
	}
	if err := b.volume.KillTwo(ctx, b.host, t.Logf, func() { says(0, "Run /init") }); err != nil {
		t.Fatal(err)
	}
	at := says(0, "login: ")
	fmt.Fprintln(keys, "root")
	at = says(at, "# ")
	fmt.Fprintln(keys, `dpkg --verify && cp -a /usr/share /var/copy && sync && echo 3 > /proc/sys/vm/drop_caches && diff -r /usr/share /var/copy && echo "all is" right`)
	at = says(at, "all is right")
	fmt.Fprintln(keys, "poweroff")
	says(at, "reboot: Power down")
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("QEMU: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("QEMU does not end")
	}
	t.Logf("the virtual machine has run for %v", time.Since(begun).Round(time.Second))
	for _, bad := range []string{"I/O error", "EXT4-fs error", "Remounting filesystem read-only"} {
		if strings.Contains(console.String(), bad) {
			t.Errorf("the guest says %q\n%s", bad, console)
		}
	}
	run(3) // e2fsck, which fails if anything is wrong
}
