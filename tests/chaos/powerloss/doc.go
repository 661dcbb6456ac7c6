// Package powerloss simulates the loss of power. It tracks, by the fsyncs of the programs that
// write to a directory, what of it is on disk; after the loss the directory has that and, in each
// file, perhaps unsynced data.
//
// A file has its content as of its last fsync or fdatasync, and a directory its names as of then:
// what POSIX guarantees, and no more.
package powerloss
