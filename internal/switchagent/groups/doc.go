// Package groups is an agent's table of what its switch takes part in: the groups that were
// installed at it, its steps of groups, and the numbers and merging slots that they use.
//
// # Locks
//
// A [Table] has one lock, which only its methods take. It guards all that [Step], [Group] and
// [Merging] hold; what other packages see of them are copies ([State], [View], [StepView]). With the
// lock nothing is called but the state file, when numbers of uses are reserved or groups are given
// up, and Options.Clear.
//
// A step also has a turn, which [Table.Enter] waits for and [Table.Leave] ends. Only who has the
// turn changes the step, its group and its holders; so between two calls it may rely on what it has
// seen. Without the turn, leases are renewed, a branch is found to be lacking, and a group is given
// up.
//
// # What is stored
//
// The state file has a record of each step, from which [New] restores it. The switch's entries are
// not stored but read back: [Table.Adopt] finds those of the steps.
//
// Merging needs special care: an epoch must not be used again while a switch's registers have it. So
// uses of slots are numbered (merging.go), and the switch's settings say which state file the numbers
// belong to, and up to which number (ownership). The state file reserves numbers first, then the
// settings are written, and then the numbers are used. If the state file is another one than the
// switch's settings name, or is older, the switch must be cleared, and its groups are given up
// ([Table.Judge]).
package groups
