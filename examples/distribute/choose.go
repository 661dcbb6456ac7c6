package main

import (
	"fmt"
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

// choose sets the algorithm and the size of blocks, if they aren't given, by what is
// best for a whole piece: receivers don't know the file's size, but all members come
// to the same result if their flags are the same.
func (s *settings) choose(algorithm string) error {
	if algorithm != auto {
		if s.blockSize == 0 {
			s.blockSize = tcp.BlockSize
		}
		return s.algorithm.UnmarshalText([]byte(algorithm))
	}
	nodes := max(len(s.members), s.receivers+1)
	if nodes < 2 {
		return fmt.Errorf("a group has 2 members at least, not %d", nodes)
	}
	plan, err := schedule.Choose(piece, nodes, schedule.Hints{Bandwidth: int64(s.gbps * 1e9 / 8), PerBlock: perBlock, Relay: relay})
	if err != nil {
		return err
	}
	s.algorithm, s.plan = plan.Algorithm, plan.String()
	if s.blockSize == 0 {
		s.blockSize = int(plan.BlockSize)
	}
	return nil
}
