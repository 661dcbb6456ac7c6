// Package collective implements collective operations of the ranks of a parallel program:
// broadcast, reduce, reduce-scatter, allgather, allreduce and barrier, on the groups of package
// mcrdma. A rank sends data that all others need only once; switches copy it.
//
//	comm, err := collective.Join(ctx, client, collective.Config{Service: "train", Hosts: []string{"h1", "h2", "h3"}, Rank: 0})
//	err = collective.Allreduce(ctx, comm, gradients, collective.Sum)
//	err = comm.Close(ctx)
//
// # Calls
//
// All ranks make the same calls, in the same order, with the same number and type of elements, and
// the same Op. The library does not compare Ops. It detects any other difference when a message of
// one call reaches a rank that makes another, or when one has waited for half a second for what the
// other does not send. A call returns when its result is complete and the caller may use its buffers
// again; other ranks may still be busy with it. A Comm does one operation at a time. Lane returns
// further Comms, on the same connections, for concurrent operations; calls match within a lane.
//
// # Algorithms
//
// A broadcast is one multicast, and an allgather one multicast by each rank, of its part. Allreduce
// of more than Config.Small bytes is a reduce-scatter, in which each rank sends each other rank its
// part, and an allgather of the results; the blocks of both overlap. So a rank sends (N-1)/N + 1/N
// times the bytes, that is once; without multicast it would be 2(N-1)/N. Up to Config.Small bytes,
// operands go up a tree of degree 1, 3, 7 or 15, which package model chooses by what Join has
// measured (Explain), and the result is multicast.
//
// Data goes through static buffers, Config.Slots messages of Config.Block bytes for each rank, path
// and lane, and is copied once at each end. A rank sends on as others report free buffers. These
// copies cannot be avoided: the memory that a group may write to is fixed when it is created.
//
// # Order
//
// Operands are combined in rank order, pairwise, ((0 1) (2 3)) ((4 5) 6), whatever the algorithm:
// floating-point results have the same bits at all ranks and in every run.
//
// # Failures
//
// If a rank is lost, operations in flight and later ones fail at all others with an *Error that
// names it. Shrink then returns a Comm of the remaining ranks, in their order. The same happens if
// the context of an operation ends before the operation does, or had ended before it began: it is
// given up at all ranks, because they would wait for this one. A rank that the others have gone on
// without, for example after its links were cut for long, gets ErrExcluded, and must Join again.
// Messages in flight on a lost unicast connection are sent again.
//
// # Limits
//
// 17 ranks, because groups have 16 receivers; one rank per host and service; all ranks have the
// same byte order. Operations can be given up 120 times; after that, the ranks must Join again.
package collective
