// Package history records a group while faults are injected, and judges the record:
// [Check] compares what each member has with the completions at its sender. It is
// pure: no files, no clocks.
//
// A journal is the entries of one process's part in one group, as lines of JSON,
// each written before the process goes on. A process that is killed leaves its
// journal, and so does the memory of a member: both are files.
//
// A completion at the sender is a promise: each member of the view in which it is completed has
// it. The sender was told that view before, and wrote it down; who was removed before that
// operation is not in it. So a member's memory must be what the promised
// operations make of it, in their order, for one that has joined later from its first
// on; a byte may differ only where a later
// operation, whose outcome is open, covers it with the value that is there. The messages
// that a member took must be the first of those that were sent, each once and in
// order, and all that were promised, unless the member was killed.
package history
