package powerloss

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Disk is a directory of programs that can lose power.
type Disk struct {
	root  string
	keeps string // directory of what is on disk

	mu    sync.Mutex
	files map[uint64]*os.File          // by inode: open, so that the inode is not reused
	names map[string]map[string]uint64 // of directories that were synced, by path below root
}

// New makes a disk of an existing directory, and keeps the durable data in another one.
func New(root, keeps string) (*Disk, error) {
	return &Disk{root: root, keeps: keeps, files: map[uint64]*os.File{}, names: map[string]map[string]uint64{}}, os.MkdirAll(keeps, 0o700)
}

// Synced records the file or directory of a process's descriptor as durable. It is called before
// the fsync returns.
func (d *Disk) Synced(pid, fd int) error {
	link := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
	path, err := os.Readlink(link)
	mine := path == d.root || strings.HasPrefix(path, d.root+"/")
	if err != nil || !mine && filepath.Dir(path) != filepath.Clean(os.TempDir()) { // it may be moved here from there
		return nil //nolint:nilerr // it has ended, or the file is elsewhere
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := os.Stat(link)
	switch {
	case err != nil:
		return err
	case info.IsDir() && !mine: // it contains the disk, and is not on it
		return nil
	case info.IsDir():
		return d.listed(strings.TrimPrefix(path, d.root))
	}
	return d.keep(link, info)
}

// keep records the current content of the file at a path as durable.
func (d *Disk) keep(path string, info fs.FileInfo) error {
	f, err := d.track(path, info)
	if err != nil {
		return err
	}
	to, err := os.Create(d.copyOf(inode(info)))
	if err != nil {
		return err
	}
	defer to.Close()
	return copyData(to, f)
}

// listed records the names in a directory.
func (d *Disk) listed(dir string) error {
	entries, err := os.ReadDir(d.root + dir)
	if err != nil {
		return err
	}
	names := map[string]uint64{}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is being removed
		}
		if err != nil {
			return err
		}
		names[e.Name()] = inode(info)
		if info.IsDir() {
			names[e.Name()] = 0
		} else if _, err := d.track(filepath.Join(d.root+dir, e.Name()), info); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	d.names[dir] = names
	return nil
}

func inode(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

func (d *Disk) copyOf(ino uint64) string { return filepath.Join(d.keeps, fmt.Sprint(ino)) }

func (d *Disk) track(path string, info fs.FileInfo) (*os.File, error) {
	if f := d.files[inode(info)]; f != nil {
		return f, nil
	}
	f, err := os.Open(path)
	if err == nil {
		d.files[inode(info)] = f
	}
	return f, err
}

// copyData copies a file, and keeps its holes.
func copyData(to, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	for at := int64(0); ; {
		begin, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		} else if err != nil {
			return err
		}
		if at, err = unix.Seek(int(from.Fd()), begin, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(to, begin), io.NewSectionReader(from, begin, at-begin)); err != nil {
			return err
		}
	}
	return to.Truncate(info.Size())
}

// Lose puts the directory into its state after a power loss; its programs have ended. Unsynced data
// of a file survives if lucky returns true for its name.
func (d *Disk) Lose(lucky func(name string) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh := d.root + ".lost"
	if err := d.restore("", fresh, lucky); err != nil {
		return err
	}
	for _, f := range d.files {
		_ = f.Close()
	}
	d.files = map[uint64]*os.File{}
	if err := errors.Join(os.RemoveAll(d.root), os.Rename(fresh, d.root), os.RemoveAll(d.keeps), os.MkdirAll(d.keeps, 0o700)); err != nil {
		return err
	}
	// The present content is durable from now on.
	return filepath.WalkDir(d.root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return d.listed(strings.TrimPrefix(path, d.root))
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return d.keep(path, info)
	})
}

// restore writes the durable content of a directory.
func (d *Disk) restore(dir, to string, lucky func(name string) bool) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for name, ino := range d.names[dir] {
		target := filepath.Join(to, name)
		if ino == 0 {
			if err := d.restore(dir+"/"+name, target, lucky); err != nil {
				return err
			}
			continue
		}
		f, err := os.Create(target)
		if err != nil {
			return err
		}
		from := d.files[ino]
		if from == nil || !lucky(dir+"/"+name) {
			from, err = os.Open(d.copyOf(ino))
			if errors.Is(err, fs.ErrNotExist) { // never synced
				_ = f.Close()
				continue
			} else if err != nil {
				return err
			}
			defer from.Close()
		}
		if err := errors.Join(copyData(f, from), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the files.
func (d *Disk) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		_ = f.Close()
	}
	d.files = nil
}
