// Package powerloss keeps what of a directory is on disk, by the fsyncs of the programs that write there: so that a power
// loss can be made, after which the directory has that and, of each file, perhaps what was not synced.
//
// A file has what it had at its last fsync or fdatasync, a directory the names that it had then: what POSIX promises,
// and no more.
package powerloss
