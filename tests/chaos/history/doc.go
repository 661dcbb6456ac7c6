// Package history records a group while faults are injected, and checks the record: [Check]
// compares what each member has with the completions at its sender. It is pure: no files, no
// clocks.
//
// A journal has the entries of one process's part in one group, as lines of JSON, each written
// before the next step of the process. Journals, and the memory of members, are files, so they
// survive a killed process.
//
// A completion at the sender is a promise: each member of the view of the completion has the
// operation. The sender learned that view before, and recorded it; a member that was removed before
// the operation is not in it. So a member's memory must be the result of the promised operations,
// in order, from its first one on if it joined later. A byte may differ only if a later operation
// whose outcome is open would have written the value found. The messages that a member received
// must be a prefix of those sent, each once and in order, and include all that were promised,
// unless the member was killed.
package history
