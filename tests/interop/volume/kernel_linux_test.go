//go:build interop

package volume

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/guestexec"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/vm"
)

// connections are how many the kernel's client has to each volume (NBD_FLAG_CAN_MULTI_CONN).
const connections = 4

// A disk is a volume with a file system, as the guest has it.
type disk struct {
	volume, device, kind string
	make, check          []string
	load                 *vm.Process
	lines                <-chan string
	says                 testenv.SyncBuffer
	ended                chan error
}

// TestKernelClient: a guest's kernel has ext4 and xfs on volumes, by its own NBD client with several
// connections. Files are written and read back while a replica is killed, comes back, and the primary
// is killed; all are as they were written, and both file systems are found to be clean.
func TestKernelClient(t *testing.T) {
	programs := []vm.Program{{Package: "github.com/mcrdma/mcrdma/tests/interop/volume/fsload", Modules: []string{"nbd", "ext4", "xfs"}}}
	for _, p := range [][2]string{{"nbd-client", "nbd-client"}, {"mkfs.ext4", "e2fsprogs"}, {"e2fsck", "e2fsprogs"}, {"mkfs.xfs", "xfsprogs"}, {"xfs_repair", "xfsprogs"}} {
		programs = append(programs, vm.Program{File: tool(t, p[0], p[1])})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	img, err := vm.BuildImage(ctx, base, log.Printf, programs...)
	must(t, err)
	b := start(t, img, "512M")
	if _, err := b.volume.Mcblock(ctx, "volume", "create", "second", "--size", "512M"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	g, err := b.net.StartGuest(ctx, netip.MustParseAddr("10.77.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the guest is there after %v", time.Since(begun).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("console:\n%s", g.Console())
		}
	})
	guest := func(argv ...string) string {
		t.Helper()
		begun := time.Now()
		out, err := g.Run(ctx, guestexec.Request{Argv: argv, Timeout: 3 * time.Minute})
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Logf("%s: %v", strings.Join(argv, " "), time.Since(begun).Round(time.Millisecond))
		return out
	}
	disks := []*disk{
		{volume: "vol", device: "/dev/nbd0", kind: "ext4", make: []string{"/bin/mkfs.ext4", "-q"}, check: []string{"/bin/e2fsck", "-fn"}},
		{volume: "second", device: "/dev/nbd1", kind: "xfs", make: []string{"/bin/mkfs.xfs", "-q"}, check: []string{"/bin/xfs_repair", "-n"}},
	}
	for i, d := range disks {
		guest("/bin/nbd-client", b.served.Addr().String(), fmt.Sprint(b.served.Port()), d.device, "-N", d.volume, "-C", fmt.Sprint(connections), "-b", "4096", "-t", "60")
		if n := b.conns.opened(); n < (i+1)*connections {
			t.Errorf("%d connections for %d disks", n, i+1)
		}
		guest(append(d.make, d.device)...)
		if err := d.start(ctx, g); err != nil {
			t.Fatal(err)
		}
	}
	opened := b.conns.opened()
	if err := b.volume.KillTwo(ctx, b.host, t.Logf, func() {
		for _, d := range disks {
			d.progress(ctx, t)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, d := range disks {
		t.Logf("%s: %s", d.kind, d.end(t))
		t.Log(guest(append(d.check, d.device)...))
		guest("/bin/nbd-client", "-d", d.device)
	}
	if n := b.conns.opened(); n != opened {
		t.Errorf("the kernel has connected anew: %d connections instead of %d", n, opened)
	}
	for _, bad := range []string{"I/O error", "Connection timed out", "EXT4-fs error", "XFS (nbd1): Corruption"} {
		if strings.Contains(g.Console(), bad) {
			t.Errorf("the kernel says %q", bad)
		}
	}
}

// start starts the work on a disk.
func (d *disk) start(ctx context.Context, g *vm.Guest) (err error) {
	if d.load, err = g.Start(ctx, guestexec.Request{Argv: []string{"/bin/fsload", d.device, d.kind, "/mnt/" + d.kind}}); err != nil {
		return err
	}
	r, w := io.Pipe()
	lines := make(chan string)
	d.lines, d.ended = lines, make(chan error, 1)
	go func() {
		d.ended <- d.load.Copy(w, &d.says)
		w.Close()
	}()
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			_, _ = fmt.Fprintln(&d.says, s.Text())
			select {
			case lines <- s.Text():
			default: // no caller waits for it
			}
		}
	}()
	return nil
}

// progress waits until a file has been written and another begun and written.
func (d *disk) progress(ctx context.Context, t *testing.T) {
	t.Helper()
	for range 2 {
		select {
		case _, ok := <-d.lines:
			if !ok {
				t.Fatalf("%s: the work has ended: %v\n%s", d.kind, <-d.ended, d.says.String())
			}
		case <-ctx.Done():
			t.Fatalf("%s: no progress: %v\n%s", d.kind, context.Cause(ctx), d.says.String())
		}
	}
}

// end ends the work, and returns its last line.
func (d *disk) end(t *testing.T) string {
	t.Helper()
	if err := d.load.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for range d.lines { // until there are no more
	}
	said := strings.TrimSpace(d.says.String())
	last := said[strings.LastIndex(said, "\n")+1:]
	if err := <-d.ended; err != nil || !strings.Contains(last, "as they were written") {
		t.Fatalf("%s: %v, %q\n%s", d.kind, err, last, said)
	}
	return last
}
