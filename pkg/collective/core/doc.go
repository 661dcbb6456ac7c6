// Package core is what a rank does in collective operations, as pure state machines: events in, actions out.
//
// An Op is one operation at one rank: which messages come from which rank in which order, what becomes of their bytes, and
// what is sent then. A Node is a rank: the operations under way, the rings of static buffers through which messages come
// and go, and which ranks are left.
//
// # Rings
//
// As in the paper's static buffers, each rank has a ring of slots at each other rank, for each lane and path (multicast, and
// unicast). A message takes a slot; it lies at its end, followed by a trailer whose last byte counts the rounds of the
// ring. A slot is used again when every receiver has said that it has taken the message: the paper's notification, for which
// a message of a later operation does as well, since ranks do one after the other. So a rank that is late holds others up, and loses nothing.
//
// # Order of combination
//
// Operands are combined in the order of ranks, in pairs of pairs: ((0 1) (2 3)) ((4 5) 6). The degrees of trees are
// 2^j-1, hence each of their steps does a part of just that, and so does a rank that gets all operands itself. So
// the result has the same bits whatever the degree, the algorithm or the root, in each run.
//
// # Failures
//
// What a rank knows of ranks that are lost, and of operations that were given up and by whom, only grows, and each change is
// told to all others. Any change ends all operations. Ranks go on, without the lost ones, as soon as all that are left
// have said the same. The sum of what is known numbers epochs; messages carry theirs, and those of a later epoch wait.
package core
