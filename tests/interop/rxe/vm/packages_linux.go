package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// ErrUnavailable is wrapped if this machine cannot run the guests; the error
// says what is missing.
var ErrUnavailable = errors.New("vm: cannot run guests here")

// qemu is the emulator's program and package name.
const (
	qemuBin = "qemu-system-x86_64"
	qemuPkg = "qemu-system-x86"
)

// tools are the packages whose programs, drivers and headers the guests and
// the build of their endpoint need.
var tools = []string{"ibverbs-providers", "ibverbs-utils", "libibverbs-dev"}

func run(ctx context.Context, dir string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(msg.Bytes()))
	}
	return out.String(), nil
}

// need checks what cannot be downloaded, and installs QEMU if it may.
func need(ctx context.Context, logf func(string, ...any)) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: the guests are amd64, this is %s", ErrUnavailable, runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: root is needed for a network namespace", ErrUnavailable)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("%w: no tap devices: %w", ErrUnavailable, err)
	}
	for _, p := range []string{"apt-get", "apt-cache", "dpkg-deb", "gcc", "go"} {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	if _, err := exec.LookPath(qemuBin); err == nil {
		return nil
	}
	logf("installing %s", qemuPkg)
	if _, err := run(ctx, "", "apt-get", "update", "-q"); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if _, err := run(ctx, "", "apt-get", "install", "-qy", "--no-install-recommends", qemuPkg); err != nil {
		return fmt.Errorf("%w: no %s: %w", ErrUnavailable, qemuBin, err)
	}
	return nil
}

var kernelPkg = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-\d\S*-amd64)$`)

// sysroot returns a directory into which the kernel and the tools with the
// libraries that they need are unpacked, and the name of the kernel package.
// It downloads them if they are not in the cache yet.
func sysroot(ctx context.Context, cache string, logf func(string, ...any)) (root, kernel string, err error) {
	if root, kernel, ok := cached(cache); ok {
		return root, kernel, nil
	}
	logf("apt-get update")
	if _, err := run(ctx, "", "apt-get", "update", "-q"); err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	meta, err := run(ctx, "", "apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return "", "", fmt.Errorf("%w: no Debian kernel package: %w", ErrUnavailable, err)
	}
	m := kernelPkg.FindStringSubmatch(meta)
	if m == nil {
		return "", "", fmt.Errorf("%w: linux-image-amd64 names no kernel package: %q", ErrUnavailable, meta)
	}
	pkgs, err := closure(ctx, tools)
	if err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	pkgs = append(pkgs, m[1])
	root = filepath.Join(cache, m[1])
	if err := unpack(ctx, root, pkgs, logf); err != nil {
		return "", "", err
	}
	return root, m[1], nil
}

// done marks a sysroot that is whole.
const done = ".complete"

// cached finds the newest whole sysroot in the cache.
func cached(cache string) (root, kernel string, ok bool) {
	marks, _ := filepath.Glob(filepath.Join(cache, "linux-image-*", done))
	if len(marks) == 0 {
		return "", "", false
	}
	slices.SortFunc(marks, func(a, b string) int {
		sa, errA := os.Stat(a)
		sb, errB := os.Stat(b)
		if errA != nil || errB != nil {
			return 0
		}
		return sb.ModTime().Compare(sa.ModTime())
	})
	root = filepath.Dir(marks[0])
	return root, filepath.Base(root), true
}

// closure returns the packages and the library packages that they depend on.
func closure(ctx context.Context, pkgs []string) ([]string, error) {
	argv := []string{"apt-cache", "depends", "--recurse"}
	for _, kind := range []string{"recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"} {
		argv = append(argv, "--no-"+kind)
	}
	out, err := run(ctx, "", append(argv, pkgs...)...)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(pkgs)
	for line := range strings.Lines(out) {
		name := strings.TrimSpace(line)
		if !strings.HasPrefix(line, " ") && strings.HasPrefix(name, "lib") && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all, nil
}

// unpack downloads the packages and unpacks them into root.
func unpack(ctx context.Context, root string, pkgs []string, logf func(string, ...any)) error {
	dir := root + ".download"
	for _, d := range []string{dir, root} {
		if err := errors.Join(os.RemoveAll(d), os.MkdirAll(d, 0o755)); err != nil {
			return err
		}
	}
	defer os.RemoveAll(dir)
	logf("downloading %d packages", len(pkgs))
	if _, err := run(ctx, dir, append([]string{"apt-get", "download", "-q"}, pkgs...)...); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	logf("unpacking into %s", root)
	for _, deb := range debs {
		if _, err := run(ctx, dir, "dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(root, done), nil, 0o644)
}
