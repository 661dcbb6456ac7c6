// Package collective does what the ranks of a parallel program do together: broadcast, reduce, reduce-scatter, allgather,
// allreduce and barrier, on the groups of package mcrdma. A rank sends what all others need once; switches copy it.
//
//	comm, err := collective.Join(ctx, client, collective.Config{Service: "train", Hosts: []string{"h1", "h2", "h3"}, Rank: 0})
//	err = collective.Allreduce(ctx, comm, gradients, collective.Sum)
//	err = comm.Close(ctx)
//
// # Calls
//
// All ranks make the same calls, in the same order, with as many elements each, and of one type; the library sees it if they do not. A call
// returns when its result is there and its buffers are the caller's again; other ranks may still be at it. A Comm does
// one operation at a time. Lane returns others, on the same connections, that do theirs beside; calls match within a lane.
//
// # Algorithms
//
// A broadcast is one multicast, and an allgather one of each rank, of its part. Allreduce of more than Config.Small bytes is a
// reduce-scatter, in which each rank sends each other one its part, and the allgather of the results; blocks of both overlap. So
// a rank sends 2(N-1)/N of the bytes less what multicast spares: (N-1)/N + 1/N, once the bytes. Up to Config.Small, operands
// go over a tree of degree 1, 3, 7 or 15, by package model from what Join has measured (Explain), and the result by multicast.
//
// Data goes through static buffers, of Config.Slots messages of Config.Block bytes for each rank, path and lane, and is
// copied once at each end. A rank goes on sending as others report to have taken what they have. There is no way without
// these copies: what a group may write to is fixed when it is made.
//
// # Order
//
// Operands are combined in the order of ranks and in pairs of pairs, ((0 1) (2 3)) ((4 5) 6), whatever the algorithm: floating-point
// results are the same, bit by bit, at all ranks and in each run.
//
// # Failures
//
// If a rank is lost, operations under way and later ones end at all others with an *Error that names it. Shrink then
// returns a Comm of those that are left, in their order. The same happens if the context of an operation ends before the
// operation does, or had ended before it began: it is given up at all ranks, because they would wait for this one. A rank that finds the others gone on without
// it, as after its links were cut for long, gets ErrExcluded, and has to Join anew. What was under
// way on a unicast connection that is lost is sent again.
//
// # Limits
//
// 17 ranks, as groups have 16 receivers; one rank for a host and service; ranks with the same byte order.
//
// # Imports
package collective
