// Package core implements a rank's part in collective operations as pure state machines: events in,
// actions out.
//
// An Op is one operation at one rank: it determines which messages arrive from which rank in which
// order, how their bytes are combined, and what is sent. A Node is a rank: the operations in
// flight, the rings of static buffers for messages, and the set of remaining ranks.
//
// # Rings
//
// As in the paper's static buffers, each rank has a ring of slots at each other rank, for each lane
// and path (multicast and unicast). A message occupies the end of a slot, followed by a trailer
// whose last byte counts the rounds of the ring. A slot is reused when every receiver has reported
// that it has consumed the message (the paper's notification). A message of a later operation
// reports that, too, because ranks do operations one after another; and so does the end of a later
// barrier or small allreduce, which no rank ends before all have begun it. So a late rank delays
// others, and loses nothing.
//
// # Order of combination
//
// Operands are combined in rank order, pairwise: ((0 1) (2 3)) ((4 5) 6). The degrees of trees are
// 2^j-1, so each step of a tree does a part of exactly this combination; a rank that gets all
// operands itself does all of it. So the result has the same bits whatever the degree, the
// algorithm or the root, in every run.
//
// # Failures
//
// A rank's knowledge of lost ranks, and of operations that were given up and by whom, only grows,
// and each change is sent to all others. Any change ends all operations. Ranks go on, without the
// lost ones, as soon as all remaining ranks have reported the same knowledge. The size of the
// knowledge numbers epochs; messages carry their epoch, and those of a later epoch wait.
//
// Ranks that wait tell all others what they know, and in which calls they wait. So a rank learns
// that another one's call differs even if neither gets a message of the other.
package core
