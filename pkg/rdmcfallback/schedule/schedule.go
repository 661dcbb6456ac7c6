package schedule

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of arguments. The errors of this package wrap one of these and say which value was given
// and which are valid.
var (
	// ErrAlgorithm: there is no such algorithm.
	ErrAlgorithm = errors.New("schedule: unknown algorithm")
	// ErrNodes: the number of nodes is below 2 or above MaxNodes.
	ErrNodes = errors.New("schedule: impossible number of nodes")
	// ErrBlocks: the number of blocks is below 1 or above MaxBlocks.
	ErrBlocks = errors.New("schedule: impossible number of blocks")
	// ErrNode: the group has no such node.
	ErrNode = errors.New("schedule: no such node")
	// ErrRacks: racks are missing, do not match the group, or are not used by the algorithm.
	ErrRacks = errors.New("schedule: wrong racks")
)

// The maximum sizes of a schedule. With these, step numbers fit in an int64 for every algorithm.
const (
	MaxNodes  = 1 << 20
	MaxBlocks = 1 << 31
)

// An Algorithm is a way to distribute blocks. The zero value is BinomialPipeline.
type Algorithm uint8

// The algorithms; the package's comment describes them.
const (
	BinomialPipeline Algorithm = iota
	Sequential
	Chain
	BinomialTree
	Hybrid
)

var names = [...]string{
	BinomialPipeline: "binomial-pipeline",
	Sequential:       "sequential",
	Chain:            "chain",
	BinomialTree:     "binomial-tree",
	Hybrid:           "hybrid",
}

// String returns the name that UnmarshalText reads.
func (a Algorithm) String() string {
	if int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// MarshalText returns the algorithm's name, or an error that wraps ErrAlgorithm.
func (a Algorithm) MarshalText() ([]byte, error) {
	if int(a) >= len(names) {
		return nil, fmt.Errorf("%w: number %d", ErrAlgorithm, uint8(a))
	}
	return []byte(names[a]), nil
}

// UnmarshalText parses a name as String returns it. The error wraps ErrAlgorithm.
func (a *Algorithm) UnmarshalText(text []byte) error {
	i := slices.Index(names[:], string(text))
	if i < 0 {
		return fmt.Errorf("%w: %q; there are %q", ErrAlgorithm, text, names)
	}
	*a = Algorithm(i)
	return nil
}

// A Transfer is the transfer of one block between a node and its peer, from the point of view of
// either.
type Transfer struct {
	// Step is the step, from 0 to Steps()-1.
	Step int64
	// Block is the number of the block, from 0 to k-1.
	Block int64
	// Peer is the node at the other end.
	Peer int
}

// A Schedule distributes the blocks of one message in a group. Members that create it with the same
// arguments have the same schedule. Use New.
type Schedule struct {
	algorithm Algorithm
	nodes     int
	blocks    int64
	racks     *Racks
}

// New returns the schedule by which a distributes blocks blocks from node 0 to a group of nodes
// nodes. Hybrid needs racks with that number of nodes; for any other algorithm racks is nil. Errors
// wrap ErrAlgorithm, ErrNodes, ErrBlocks or ErrRacks. New is cheap and does not allocate, so a
// group may call it for each message.
func New(a Algorithm, nodes int, blocks int64, racks *Racks) (Schedule, error) {
	switch {
	case int(a) >= len(names):
		return Schedule{}, fmt.Errorf("%w: number %d", ErrAlgorithm, uint8(a))
	case nodes < 2 || nodes > MaxNodes:
		return Schedule{}, fmt.Errorf("%w: %d; a group has 2 to %d", ErrNodes, nodes, MaxNodes)
	case blocks < 1 || blocks > MaxBlocks:
		return Schedule{}, fmt.Errorf("%w: %d; a message has 1 to %d, so choose blocks of another size", ErrBlocks, blocks, int64(MaxBlocks))
	case a == Hybrid && racks == nil:
		return Schedule{}, fmt.Errorf("%w: the hybrid algorithm has to know each node's rack", ErrRacks)
	case a == Hybrid && racks.Nodes() != nodes:
		return Schedule{}, fmt.Errorf("%w: they hold %d nodes, and the group has %d", ErrRacks, racks.Nodes(), nodes)
	case a != Hybrid && racks != nil:
		return Schedule{}, fmt.Errorf("%w: given to the %v algorithm, and only the hybrid one uses them", ErrRacks, a)
	}
	return Schedule{algorithm: a, nodes: nodes, blocks: blocks, racks: racks}, nil
}

// Algorithm returns the algorithm.
func (s Schedule) Algorithm() Algorithm { return s.algorithm }

// Nodes returns n, the number of nodes.
func (s Schedule) Nodes() int { return s.nodes }

// Blocks returns k, the number of blocks.
func (s Schedule) Blocks() int64 { return s.blocks }

// Steps returns the number of steps. In the last one at least one node receives a block.
func (s Schedule) Steps() int64 {
	switch s.algorithm {
	case Sequential:
		return s.blocks * int64(s.nodes-1)
	case Chain:
		return s.blocks + int64(s.nodes) - 2
	case BinomialTree:
		return s.blocks * int64(log2Up(s.nodes))
	case Hybrid:
		return s.racks.steps(s.blocks)
	default:
		return pipelineSteps(s.nodes, s.blocks)
	}
}

// Node returns node i's part of the schedule. The error wraps ErrNode.
func (s Schedule) Node(i int) (Node, error) {
	if i < 0 || i >= s.nodes {
		return Node{}, fmt.Errorf("%w: %d; the group's are 0 to %d", ErrNode, i, s.nodes-1)
	}
	n := Node{schedule: s, id: i}
	switch s.algorithm {
	case BinomialPipeline:
		n.pipe = newVertex(s.nodes, i, s.blocks)
	case Hybrid:
		n.hybrid = s.racks.hybridNode(i, s.blocks)
	}
	return n, nil
}
