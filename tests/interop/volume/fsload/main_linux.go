// Command fsload uses a file system in a test's guest: it mounts a device, and writes, overwrites,
// renames and removes files in it until its standard input ends. Each file is synced, and read back
// from the device. Then it mounts the file system anew, and compares all files with what they should
// be. It prints a line for each round.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	files   = 24      // that there are at most
	maxSize = 1 << 20 // bytes of a file
)

// A load is the files that there should be, by their names: what is in them comes from a seed.
type load struct {
	dir   string
	r     *rand.Rand
	names []string // of slots; "": there is none
	seeds []uint64
	sizes []int
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("fsload: ")
	if len(os.Args) != 4 {
		log.Fatal("want: fsload DEVICE TYPE DIRECTORY")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(device, kind, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, dir, kind, 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ended.Store(true)
	}()
	l := &load{dir: dir, r: rand.New(rand.NewPCG(uint64(len(kind)), 21)), names: make([]string, files), seeds: make([]uint64, files), sizes: make([]int, files)}
	rounds := 0
	for ; !ended.Load(); rounds++ {
		if err := l.step(rounds); err != nil {
			return fmt.Errorf("round %d: %w", rounds, err)
		}
		fmt.Println("round", rounds)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	if err := unix.Mount(device, dir, kind, 0, ""); err != nil {
		return fmt.Errorf("mount %s again: %w", device, err)
	}
	n, err := l.verify()
	if err != nil {
		return err
	}
	fmt.Printf("%d rounds; %d bytes are as they were written\n", rounds, n)
	return unix.Unmount(dir, 0)
}

// content is that of a file.
func content(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), 1})
	_, _ = r.Read(b)
	return b
}

// step changes one file.
func (l *load) step(round int) error {
	i := l.r.IntN(files)
	switch old := l.names[i]; {
	case old != "" && l.r.IntN(4) == 0:
		l.names[i] = ""
		return os.Remove(old)
	case old != "" && l.r.IntN(4) == 0:
		l.names[i] = filepath.Join(l.dir, fmt.Sprintf("renamed-%d-%d", i, round))
		return os.Rename(old, l.names[i])
	case old == "":
		l.names[i] = filepath.Join(l.dir, fmt.Sprintf("file-%d-%d", i, round))
	}
	l.seeds[i], l.sizes[i] = uint64(round+1), 1+l.r.IntN(maxSize)
	if err := write(l.names[i], content(l.seeds[i], l.sizes[i])); err != nil {
		return err
	}
	return l.check(i)
}

// write writes a file, syncs it, and has the kernel forget it.
func write(name string, data []byte) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

func (l *load) check(i int) error {
	got, err := os.ReadFile(l.names[i])
	if err == nil && !bytes.Equal(got, content(l.seeds[i], l.sizes[i])) {
		err = fmt.Errorf("%s, of %d bytes, is not as it was written, with %d", l.names[i], len(got), l.sizes[i])
	}
	return err
}

// verify compares all files, and says how much is in them.
func (l *load) verify() (n int, err error) {
	there := 0
	for i, name := range l.names {
		if name == "" {
			continue
		}
		if err := l.check(i); err != nil {
			return n, err
		}
		n += l.sizes[i]
		there++
	}
	list, err := filepath.Glob(filepath.Join(l.dir, "*-*"))
	if err == nil && len(list) != there {
		err = fmt.Errorf("there are %q, and should be %q", list, l.names)
	}
	return n, err
}
