package vm

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// An Image is what all guests boot: a kernel and an initramfs.
type Image struct {
	// HostPeer is the endpoint program built for running on the host, without
	// ibverbs; the guests have theirs as /bin/peer.
	HostPeer string
	Kernel   string // its version

	kernel, initramfs string
}

const libDir = "usr/lib/x86_64-linux-gnu"

// Programs of the tools packages that the guests get, in /bin.
var guestPrograms = []string{"ibv_rc_pingpong", "ibv_devinfo"}

// Modules that the guests load. The network card's, the checksums that rxe
// asks the kernel's crypto layer for by name, rxe, and the interfaces to user
// space.
var guestModules = []string{"virtio_pci", "virtio_net", "crc32_generic", "crc32c_generic", "crc32-pclmul",
	"crc32c-intel", "rdma_rxe", "ib_uverbs", "rdma_ucm"}

// A Program is one more for the guests, which have it in /bin.
type Program struct {
	Package string   // its import path
	Verbs   bool     // it uses pkg/qp/ibverbs
	Tests   bool     // the package's tests, as NAME.test
	File    string   // instead of Package: this machine's
	Modules []string // that it needs of the kernel
}

// BuildImage prepares everything that guests need and puts what is not worth
// caching into dir: it downloads and unpacks packages on first use, builds the
// guest's programs from the module that the working directory is in, and more if
// so told, and packs an initramfs. Errors wrap ErrUnavailable if the machine lacks
// something.
func BuildImage(ctx context.Context, dir string, logf func(string, ...any), more ...Program) (*Image, error) {
	if err := need(ctx, logf); err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("%w: %w (set XDG_CACHE_HOME)", ErrUnavailable, err)
	}
	root, kernelPkg, err := sysroot(ctx, filepath.Join(cache, "mcrdma", "interop"), logf)
	if err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(kernelPkg, "linux-image-")
	img := &Image{
		HostPeer:  filepath.Join(dir, "peer-host"),
		Kernel:    version,
		kernel:    filepath.Join(root, "vmlinux"),
		initramfs: filepath.Join(dir, "initramfs"),
	}
	if _, err := os.Stat(img.kernel); err != nil {
		logf("unpacking the kernel")
		if err := extractVmlinux(ctx, filepath.Join(root, "boot", "vmlinuz-"+version), img.kernel); err != nil {
			return nil, err
		}
	}
	logf("building the guest's programs")
	programs, err := buildPrograms(ctx, dir, root, img.HostPeer, more)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(guestModules)
	for _, m := range more {
		names = append(names, m.Modules...)
	}
	mods, err := loadModules(ctx, filepath.Join(root, "lib/modules", version), names, builtin(root, version))
	if err != nil {
		return nil, err
	}
	return img, writeInitramfs(img.initramfs, root, programs, mods)
}

// builtin reports which modules are part of the kernel itself.
func builtin(root, version string) func(string) bool {
	list, _ := os.ReadFile(filepath.Join(root, "lib/modules", version, "modules.builtin"))
	names := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		names[moduleName(strings.TrimSuffix(filepath.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return func(name string) bool { return names[name] }
}

// buildPrograms builds init, the guest's peer and the host's, and the ibverbs
// device's own tests, and returns the files that go into the guest by their
// names there.
func buildPrograms(ctx context.Context, dir, root, hostPeer string, more []Program) (map[string]string, error) {
	const pkg = "github.com/mcrdma/mcrdma/tests/interop/rxe/"
	const device = "github.com/mcrdma/mcrdma/pkg/qp/ibverbs"
	initBin, peerBin, testBin := filepath.Join(dir, "init"), filepath.Join(dir, "peer"), filepath.Join(dir, "ibverbs.test")
	lib := filepath.Join(root, libDir)
	cgo := []string{"CGO_ENABLED=1", "CGO_CFLAGS=-O2 -I" + filepath.Join(root, "usr/include"),
		"CGO_LDFLAGS=-L" + lib + " -Wl,-rpath-link," + lib}
	// Without the C library's resolver only what needs cgo is built with these flags, and
	// the rest is as any other build leaves it in the cache.
	const tags = "ibverbs,netgo,osusergo"
	type build struct {
		env  []string
		args []string
	}
	builds := []build{
		{[]string{"CGO_ENABLED=0"}, []string{"build", "-o", initBin, pkg + "guest"}},
		{[]string{"CGO_ENABLED=0"}, []string{"build", "-o", hostPeer, pkg + "peer"}},
		{cgo, []string{"build", "-tags", tags, "-o", peerBin, pkg + "peer"}},
		{cgo, []string{"test", "-c", "-tags", tags, "-o", testBin, device}},
	}
	programs := map[string]string{"init": initBin, "bin/peer": peerBin, "bin/ibverbs.test": testBin}
	for _, m := range more {
		if m.File != "" {
			programs["bin/"+path.Base(m.File)] = m.File
			continue
		}
		base := path.Base(m.Package)
		how := []string{"build"}
		if m.Tests {
			base += ".test"
			how = []string{"test", "-c"}
		}
		bin := filepath.Join(dir, base)
		b := build{[]string{"CGO_ENABLED=0"}, append(how, "-ldflags=-s -w", "-o", bin, m.Package)}
		if m.Verbs {
			b = build{cgo, []string{"build", "-tags", tags, "-ldflags=-s -w", "-o", bin, m.Package}}
		}
		builds = append(builds, b)
		programs["bin/"+base] = bin
	}
	for _, b := range builds {
		cmd := exec.CommandContext(ctx, "go", b.args...)
		cmd.Env = append(os.Environ(), b.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, bytes.TrimSpace(out))
		}
	}
	for _, p := range guestPrograms {
		programs["bin/"+p] = filepath.Join(root, "usr/bin", p)
	}
	return programs, nil
}

func writeInitramfs(name, root string, programs map[string]string, mods []module) error {
	files := map[string]string{}
	var elfs []string
	for at, p := range programs {
		files[at] = p
		elfs = append(elfs, p)
	}
	providers, err := filepath.Glob(filepath.Join(root, libDir, "libibverbs", "librxe-*.so"))
	if err != nil || len(providers) != 1 {
		return fmt.Errorf("vm: %d libibverbs drivers for rxe in %s, want 1", len(providers), root)
	}
	files[libDir+"/libibverbs/"+filepath.Base(providers[0])] = providers[0]
	files["etc/libibverbs.d/rxe.driver"] = filepath.Join(root, "etc/libibverbs.d/rxe.driver")
	libs, err := libraries(append(elfs, providers...), []string{
		filepath.Join(root, libDir), filepath.Join(root, "lib/x86_64-linux-gnu"),
		"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
	})
	if err != nil {
		return err
	}
	for name, p := range libs {
		files["lib/x86_64-linux-gnu/"+name] = p
	}
	const loader = "ld-linux-x86-64.so.2"
	if p := libs[loader]; p != "" {
		files["lib64/"+loader] = p
	}

	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	c := newCPIO(f)
	for _, d := range []string{"dev", "proc", "sys", "tmp"} {
		c.Dir(d)
	}
	for _, at := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[at])
		if err != nil {
			return err
		}
		c.File(at, data)
	}
	for i, m := range mods {
		c.File(fmt.Sprintf("modules/%03d-%s.ko", i, m.name), m.data)
	}
	if err := c.Close(); err != nil {
		return err
	}
	return f.Close()
}
