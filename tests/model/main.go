// Command model explores, exhaustively up to a bound, everything that can happen between a sender,
// the merging switch, and the receivers of a group: the real requester and responder of pkg/qp/rc;
// the merging of pkg/ackmerge, of the compiled P4 program, or of the kernel's bytecode; a network
// that loses, duplicates and reorders packets; members that die, are removed, are not ready or lie;
// and a switch that loses its state. In every state S1 must hold, and from every state all work
// must complete once nothing goes wrong any more (L1). See pkg/ackmerge for both.
//
//	go run ./tests/model [-p4|-kernel] [-only NAME]
//
// A violation is printed with the shortest path to it, in lines that form a script for testdata.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	only := flag.String("only", "", "explore only the bound of this name, also one that is not explored by default")
	p4 := flag.Bool("p4", false, "merge by the compiled program in place of pkg/ackmerge; with smaller bounds")
	kernel := flag.Bool("kernel", false, "merge by the bytecode in the kernel, which takes root; with smaller bounds")
	flag.Parse()
	ok := true
	for _, b := range chosen(*only, *p4, *kernel) {
		start := time.Now()
		r := explore(&b)
		fmt.Printf("%-36s %9d states %10d transitions, at most %2d steps, %7d complete, %v\n", b.name, r.States, r.Transitions,
			r.Depth, r.Completed, time.Since(start).Round(10*time.Millisecond))
		if r.Violation != nil {
			ok = false
			fmt.Printf("%s\n%s", r.Violation.What, r.Violation.Trace(&b))
		}
	}
	if !ok {
		os.Exit(1)
	}
}

func chosen(only string, p4, kernel bool) (bs []bound) {
	from := bounds
	if p4 || kernel {
		from = small
	}
	for _, b := range from {
		if only == "" && b.optional || only != "" && b.name != only {
			continue
		}
		if p4 {
			b.name += ", P4"
			b.merger = newP4Merger
		} else if kernel {
			b.name += ", kernel"
			b.merger = newKernelMerger
		}
		bs = append(bs, b)
	}
	return bs
}

// bounds are the bounds of "make model": three members and four PSNs across the wrap throughout,
// with every pair of kinds of faults.
var bounds = []bound{
	{name: "no faults"},
	{name: "2 losses", faults: faults{losses: 2}},
	{name: "2 losses, early timer", faults: faults{losses: 2, earlyTimeouts: 1}},
	{name: "2 losses, death", faults: faults{losses: 2, deaths: 1}},
	{name: "everything but reordering", relearn: true,
		faults: faults{losses: 2, duplicates: 1, unready: 1, removals: 1, restarts: 1}},
	{name: "everything but a second loss", relearn: true,
		faults: faults{losses: 1, duplicates: 1, reorderings: 1, unready: 1, removals: 1, restarts: 1}},
	{name: "everything but a removal", relearn: true,
		faults: faults{losses: 2, duplicates: 1, reorderings: 1, unready: 1, restarts: 1}},
	{name: "everything but a restart", optional: true,
		faults: faults{losses: 2, duplicates: 1, reorderings: 1, unready: 1, removals: 1}},
	{name: "liar, losses", faults: faults{losses: 2, lies: 2}},
	{name: "liar, duplicate and reordering", faults: faults{duplicates: 1, reorderings: 1, lies: 1}},
	{name: "liar, restart", relearn: true, faults: faults{losses: 1, restarts: 1, lies: 2}},
	{name: "liar, initial PSN known after restart", faults: faults{losses: 1, restarts: 1, lies: 2}},
	{name: "initial PSN known after restart", faults: faults{losses: 2, duplicates: 1, restarts: 1, removals: 1}},
}

// small are the bounds of the long tests, and of the program in the loop.
var small = []bound{
	{name: "small: losses", faults: faults{losses: 2}},
	{name: "small: restart", relearn: true, faults: faults{losses: 1, restarts: 1, removals: 1, unready: 1}},
	{name: "small: restart, initial PSN known", faults: faults{losses: 1, duplicates: 1, restarts: 1}},
	{name: "small: reordering", faults: faults{losses: 1, duplicates: 1, reorderings: 1}},
	{name: "small: liar", faults: faults{losses: 1, lies: 2}},
	{name: "small: liar and restart", relearn: true, faults: faults{restarts: 1, lies: 2}},
	{name: "small: death", faults: faults{losses: 1, deaths: 1, earlyTimeouts: 1}},
}

// tiny are the bounds of the quick tests, which run under the race detector.
var tiny = []bound{
	{name: "tiny: loss", faults: faults{losses: 1}},
	{name: "tiny: restart", relearn: true, faults: faults{losses: 1, restarts: 1}},
	{name: "tiny: restart, initial PSN known", faults: faults{restarts: 1, removals: 1}},
	{name: "tiny: liar", faults: faults{losses: 1, lies: 1}},
	{name: "tiny: liar and restart", relearn: true, faults: faults{restarts: 1, lies: 2}},
	{name: "tiny: duplicate and reordering", faults: faults{duplicates: 1, reorderings: 1}},
	{name: "tiny: death and removal", faults: faults{losses: 1, deaths: 1}},
	{name: "tiny: not ready", faults: faults{losses: 1, unready: 1}},
}
