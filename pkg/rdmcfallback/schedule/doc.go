// Package schedule computes which host relays which block of a message to which host, and when: the
// algorithms of RDMC, for one node and one step at a time. The sources are "RDMC: A Reliable RDMA
// Multicast for Large Objects" (DSN 2018), below DSN, and the technical report of the same name,
// below TR.
//
// # Model
//
// A message is cut into k blocks, numbered from 0. The group has n nodes,
// numbered from 0, and node 0 is the root, which alone has the message at the
// beginning. Time is counted in steps. In one step a node sends at most one
// block and receives at most one, and it sends only what it held when the step
// began. Every other node receives every block exactly once.
//
// No node waits for a step to end (DSN §4.2, §4.3): steps only order each node's sends and its
// receives. A node performs its sends in order, each as soon as it has the block and the peer has
// announced a buffer for it. Independently, it announces buffers for its receives in order. This
// cannot deadlock: of the remaining transfers, one in the lowest step can always be performed.
//
// A node should have one send in flight at a time, and one receive announced. Two that share a wire
// both finish late, and so does everything that depends on them: the pipeline then takes up to
// twice as long. Otherwise, on equal links, it takes exactly its number of steps.
//
// # Algorithms
//
// L is the logarithm of n to base 2, rounded up.
//
//   - [Sequential] (DSN §4.3 "Sequential Send"): the root sends the whole
//     message to one node after another. k(n-1) steps.
//   - [Chain] (DSN §4.3 "Chain Send"): node i passes each block on to node i+1
//     in the step after it came. n+k-2 steps.
//   - [BinomialTree] (DSN §4.3 "Binomial Tree"): each node that has the whole message
//     sends it on, so that their number doubles every k steps. In round t, of k
//     steps, node i < 2^t sends to node i+2^t. kL steps.
//   - [BinomialPipeline] (DSN §4.3, §4.4; TR §3): binomial trees of all blocks,
//     interleaved on a hypercube so that nearly every node sends and receives
//     in every step. L+k-1 steps, the fewest possible, for any n.
//   - [Hybrid] (DSN §4.3 "Hybrid Algorithms"): a binomial pipeline among one
//     leader of each rack, and one in each rack, from its leader.
//
// # Binomial pipeline
//
// Let l be the logarithm of n to base 2, rounded down, so the hypercube has 2^l
// vertices, and let the root be vertex 0. In step j, vertices exchange blocks
// along direction d = j mod l: v with v XOR 2^d. The root sends block j, or the
// last block once j has passed it; any other vertex v sends the highest block
// that it has, which is j-l+r (at most k-1), where r is the distance from bit d
// of v upwards, cyclically, to the next bit that is set. If that number is
// negative it has nothing yet. Nothing is sent to the root (DSN §4.4). Each
// vertex receives each block once, and has all after step l+k-2.
//
// If n is not a power of two, node 2^l+t shares vertex t+1 with node t+1 (TR §3). The vertex
// receives and sends as with a single node. Of the two nodes, the one that has the block sends it;
// the other receives, and also sends its partner the block that only it has. That determines the
// schedule. With m = j-l, between two set bits p < q of v, repeated with period l, there are the
// steps m = p+1...q. In all of them the vertex sends block q, which one of the two received at m =
// p, so this one sends in all of them. The other one receives block m while m < q, and at m = q the
// block of the next set bit; then the two exchange roles. The other one always sends its partner
// block m-1. So the parity of the number of set bits passed before step j, a population count,
// determines which of the two sends, and everything else follows in constant time. In one more
// step, at the end, the two exchange blocks k-1 and k-2.
//
// # Use
//
// [New] returns a [Schedule], [Schedule.Node] one node's part of it, and [Node.NextSend] and
// [Node.NextRecv] iterate over that node's sends and receives. [Choose] selects the algorithm and
// the block size. There are no tables: a Schedule and a Node are small values whose size does not
// depend on n or k, and their methods do not allocate. Only the memory of [Racks] is proportional
// to the group.
//
// The node from which a node receives first is the same for all messages of two blocks and
// more, and, if n is a power of two or the algorithm is no pipeline, also for messages of
// one. So a node can expect the first block of a message whose size it doesn't know yet.
//
// The package is pure: no input and output, no clock, no goroutines. Values may
// be used from several goroutines at once.
package schedule
