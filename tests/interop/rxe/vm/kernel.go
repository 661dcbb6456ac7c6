package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// errKernel is wrapped by the errors about kernel images and modules.
var errKernel = errors.New("vm: kernel")

// payload returns the compressed vmlinux inside a bzImage: the x86 boot
// protocol (2.08 and later) gives its offset and length in the setup header.
func payload(bz []byte) ([]byte, error) {
	const (
		magicAt, setupSectsAt, versionAt = 0x202, 0x1f1, 0x206
		offsetAt, lengthAt               = 0x248, 0x24c
	)
	if len(bz) < 0x250 || string(bz[magicAt:magicAt+4]) != "HdrS" {
		return nil, fmt.Errorf("%w: not a bzImage", errKernel)
	}
	if v := binary.LittleEndian.Uint16(bz[versionAt:]); v < 0x208 {
		return nil, fmt.Errorf("%w: boot protocol %#x has no payload field, 2.08 is needed", errKernel, v)
	}
	sects := int(bz[setupSectsAt])
	if sects == 0 {
		sects = 4
	}
	from := uint64(sects+1)*512 + uint64(binary.LittleEndian.Uint32(bz[offsetAt:]))
	to := from + uint64(binary.LittleEndian.Uint32(bz[lengthAt:]))
	if from >= to || to > uint64(len(bz)) {
		return nil, fmt.Errorf("%w: payload %d..%d is outside of the image's %d bytes", errKernel, from, to, len(bz))
	}
	return bz[from:to], nil
}

// decompressors are the programs for the formats that kernels and modules come
// in, by magic number.
var decompressors = []struct {
	magic string
	argv  []string
}{
	{"\x1f\x8b", []string{"gzip", "-dc"}},
	{"\xfd7zXZ\x00", []string{"xz", "-dc", "--single-stream"}},
	{"\x28\xb5\x2f\xfd", []string{"zstd", "-dc"}},
}

// decompress unpacks data in one of the known formats and returns ELF files as
// they are. What follows the compressed stream (the kernel build appends the
// uncompressed size) is ignored.
func decompress(ctx context.Context, data []byte) ([]byte, error) {
	if bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
		return data, nil
	}
	for _, d := range decompressors {
		if !bytes.HasPrefix(data, []byte(d.magic)) {
			continue
		}
		cmd := exec.CommandContext(ctx, d.argv[0], d.argv[1:]...)
		cmd.Stdin = bytes.NewReader(data)
		var out, msg bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &msg
		// Trailing bytes make some of the programs complain after all is out.
		if err := cmd.Run(); err != nil && !bytes.HasPrefix(out.Bytes(), []byte(elf.ELFMAG)) {
			return nil, fmt.Errorf("%w: %s: %w: %s", errKernel, d.argv[0], err, bytes.TrimSpace(msg.Bytes()))
		}
		return out.Bytes(), nil
	}
	return nil, fmt.Errorf("%w: unknown compression, first bytes % x", errKernel, data[:min(8, len(data))])
}

// extractVmlinux writes the uncompressed kernel of the bzImage at src to dst.
// QEMU boots it directly through its PVH entry, which saves the guest the
// decompression, the slowest step under emulation.
func extractVmlinux(ctx context.Context, src, dst string) error {
	bz, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	p, err := payload(bz)
	if err != nil {
		return fmt.Errorf("%s: %w", src, err)
	}
	out, err := decompress(ctx, p)
	if err != nil {
		return fmt.Errorf("%s: %w", src, err)
	}
	f, err := elf.NewFile(bytes.NewReader(out))
	if err != nil {
		return fmt.Errorf("%w: %s: what was unpacked is no ELF file: %w", errKernel, src, err)
	}
	// A truncated file has its section headers, at the end, missing.
	if f.Section(".shstrtab") == nil {
		return fmt.Errorf("%w: %s: unpacked kernel is truncated", errKernel, src)
	}
	return writeFile(dst, out)
}

// writeFile writes atomically, so that a cache entry is whole or not there.
func writeFile(name string, data []byte) error {
	tmp := name + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// A module is a kernel module, uncompressed.
type module struct {
	name string
	data []byte
}

// loadModules reads the modules called names and all that they depend on from
// the tree at dir, in an order in which they can be inserted. A name that is
// not there is taken to be built in if optional says so, else an error.
func loadModules(ctx context.Context, dir string, names []string, optional func(string) bool) ([]module, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base, _, ok := strings.Cut(d.Name(), ".ko"); ok && !d.IsDir() {
			files[moduleName(base)] = p
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []module
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		name = moduleName(name)
		if seen[name] {
			return nil
		}
		seen[name] = true
		file, ok := files[name]
		if !ok {
			if optional(name) {
				return nil
			}
			return fmt.Errorf("%w: no module %s in %s", errKernel, name, dir)
		}
		data, err := os.ReadFile(file)
		if err == nil {
			data, err = decompress(ctx, data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		deps, err := moduleDeps(data)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, d := range deps {
			if err := visit(d); err != nil {
				return err
			}
		}
		out = append(out, module{name, data})
		return nil
	}
	for _, n := range names {
		if err := visit(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// moduleDeps returns the modules that the ELF file ko says it depends on. The
// packages have no modules.dep; depmod would make it after installation.
func moduleDeps(ko []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return nil, fmt.Errorf("%w: module: %w", errKernel, err)
	}
	sec := f.Section(".modinfo")
	if sec == nil {
		return nil, fmt.Errorf("%w: module has no .modinfo section", errKernel)
	}
	info, err := sec.Data()
	if err != nil {
		return nil, fmt.Errorf("%w: module: %w", errKernel, err)
	}
	for kv := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(kv, "depends="); ok {
			return slices.DeleteFunc(strings.Split(list, ","), func(s string) bool { return s == "" }), nil
		}
	}
	return nil, nil
}
