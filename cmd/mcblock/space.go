package main

import "golang.org/x/sys/unix"

// space is the size of the file system that a directory is on, and what of it is free for this program, in bytes; 0, 0: it
// cannot be found out.
func space(dir string) (size, free uint64) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0, 0
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize) //nolint:gosec // a block's size is not negative
}
