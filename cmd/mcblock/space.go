package main

import "golang.org/x/sys/unix"

// space returns the size of a directory's file system, and the bytes that are free for this
// program; 0, 0: not known.
func space(dir string) (size, free uint64) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0, 0
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize) //nolint:gosec // a block's size is not negative
}
