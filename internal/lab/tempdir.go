package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// tempPattern is the name of labs' directories, which no other program gives to its own.
const tempPattern = "mcrdma-lab-*"

// TempDir makes a directory for a lab, which remove removes. Directories of labs whose
// processes have ended without that, as by SIGKILL, are removed first: a process holds its
// directory's lock, which the kernel takes away with the process.
func TempDir() (dir string, remove func(), err error) {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), tempPattern))
	if err != nil {
		return "", nil, err
	}
	for _, old := range left {
		if f, err := hold(old); err == nil { // else it is in use, or another user's
			_ = os.RemoveAll(old)
			_ = f.Close()
		}
	}
	for range 10 { // another lab that starts now may have removed the directory before it was held
		if dir, err = os.MkdirTemp("", tempPattern); err != nil {
			return "", nil, err
		}
		f, err := hold(dir)
		if err != nil {
			continue
		}
		if _, err := os.Stat(dir); err == nil {
			return dir, func() { _ = os.RemoveAll(dir); _ = f.Close() }, nil
		}
		_ = f.Close()
	}
	return "", nil, fmt.Errorf("lab: no directory in %s stays", os.TempDir())
}

// hold locks a directory until the file is closed.
func hold(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil { //nolint:gosec // a file descriptor
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
