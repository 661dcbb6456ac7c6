// Package powerloss simulates the loss of power. It tracks, by the fsyncs of the programs that
// write to a directory, which of its data is on disk. After the loss the directory has that data
// and, in each file, perhaps unsynced data.
//
// A file has its content as of its last fsync or fdatasync, and a directory its names as of then:
// what POSIX guarantees, and no more.
package powerloss
