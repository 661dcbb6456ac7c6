package schedule_test

import (
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// What node 5 of six does to spread three blocks: it shares a vertex with node 2.
func Example() {
	s, err := schedule.New(schedule.BinomialPipeline, 6, 3, nil)
	if err != nil {
		panic(err)
	}
	n, err := s.Node(5)
	if err != nil {
		panic(err)
	}
	fmt.Println("of", s.Steps(), "steps")
	for t, ok := n.NextRecv(-1); ok; t, ok = n.NextRecv(t.Step) {
		fmt.Printf("step %d: block %d from node %d\n", t.Step, t.Block, t.Peer)
	}
	for t, ok := n.NextSend(-1); ok; t, ok = n.NextSend(t.Step) {
		fmt.Printf("step %d: block %d to node %d\n", t.Step, t.Block, t.Peer)
	}
	// Output:
	// of 5 steps
	// step 1: block 1 from node 0
	// step 3: block 0 from node 2
	// step 4: block 2 from node 2
	// step 2: block 1 to node 3
	// step 4: block 1 to node 2
}

func ExampleChoose() {
	rack := make([]int, 64)
	for node := range rack {
		rack[node] = node / 16
	}
	racks, err := schedule.RacksOf(rack)
	if err != nil {
		panic(err)
	}
	p, err := schedule.Choose(8<<20, 64, schedule.Hints{Racks: racks, Uplink: 25e9})
	if err != nil {
		panic(err)
	}
	fmt.Println(p)
	// Output:
	// hybrid: blocks of 512 KiB, 16 of them, 36 steps, about 1.821948ms
	// 8 MiB to 63 receivers, by links of 100 Gb/s; 2µs for each block besides, and 10µs to relay one; 4 racks of up to 16 nodes share uplinks of 200 Gb/s
	// hybrid: each block enters a rack only once
	// not chain, about 1.99598ms: the last node waits until all before it have relayed
	// not binomial-pipeline, about 2.834409ms: many of its blocks go from rack to rack, or wait for a relay
	// not binomial-tree, about 13.56776ms: half of the nodes only receive, and each relays only when it has all
	// not sequential, about 43.286544ms: the root alone sends, one copy after another
}
