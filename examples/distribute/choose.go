package main

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// What a block costs over TCP besides the time of its bytes: the orders of magnitude
// of what package tcp's benchmarks show.
const (
	perBlock = 20 * time.Microsecond
	relay    = 50 * time.Microsecond
)

// auto is the name of no algorithm: one is chosen.
const auto = "auto"

// choose sets the algorithm and the size of blocks, if they aren't given. Receivers that were
// started by themselves don't know the file's size: what is best for a whole piece is chosen,
// so all members come to the same result if their flags are the same. Those that are started
// here are told, so a file that is smaller than a piece counts as what it is.
func (s *settings) choose(algorithm string) error {
	if algorithm != auto {
		s.blockSize = cmp.Or(s.blockSize, tcp.BlockSize)
		return s.algorithm.UnmarshalText([]byte(algorithm))
	}
	nodes := max(len(s.members), s.receivers+1)
	if nodes < 2 {
		return fmt.Errorf("a group has 2 members at least, not %d", nodes)
	}
	size := int64(piece)
	if info, err := os.Stat(s.file); s.receivers > 0 && err == nil { // send reports the error
		size = max(min(size, info.Size()), 1)
	}
	plan, err := schedule.Choose(size, nodes, schedule.Hints{Bandwidth: int64(s.gbps * 1e9 / 8), PerBlock: perBlock, Relay: relay})
	if err != nil {
		return err
	}
	s.algorithm, s.plan = plan.Algorithm, plan.String()
	s.blockSize = cmp.Or(s.blockSize, int(plan.BlockSize))
	return nil
}
