package plan

import "time"

// Rows are fixed plans, for events that random plans seldom have. Their numbers, from FirstRow on,
// are used like seeds.
func Rows() []*Plan {
	var rows []*Plan
	add := func(g Group, faults ...Fault) {
		g.Name, g.Sender, g.Receivers = "g1", "h1", []string{"h2", "h3", "h4"}
		g.MinSize, g.Regions, g.Depth = 2, []int{64 << 10}, 4
		p := &Plan{Seed: FirstRow + uint64(len(rows)), Racks: []int{5}, Work: 2200 * ms, Groups: []Group{g}, Faults: faults}
		p.Groups[0].Key = p.Seed
		rows = append(rows, p)
	}
	switches := Group{Mode: "require", Kinds: []string{"write"}, Largest: 4096}
	hosts := Group{Mode: "off", Kinds: []string{"write", "send"}, Largest: 4096}
	dies := Fault{What: KillApp, Node: "h3", At: 1000 * ms}

	// The sender's clock is set back while a member is removed: after its departure was recorded,
	// and before the sender knows. The others continue meanwhile.
	add(switches, Fault{What: StopAgent, Node: "torA", At: 900 * ms, For: 450 * ms}, dies,
		Fault{What: StopDaemon, Node: "h1", At: 1250 * ms, For: 450 * ms},
		Fault{What: SetClock, Node: "h1", At: 1300 * ms, By: -10 * time.Second, N: 1})
	// A group ends; the agent forgets it and groups with larger numbers, and forms those again. One
	// of their members gets no packets for a while.
	for range 3 {
		add(switches, Fault{What: KillApp, Node: "h1", At: 400 * ms},
			Fault{What: OldState, Node: "torA", At: 700 * ms, For: 50 * ms, Copied: BeforeGroups},
			Fault{What: Cut, Node: "h3", Other: "torA", At: 1500 * ms, For: 450 * ms})
		p := rows[len(rows)-1]
		small, g := &p.Groups[0], p.Groups[0]
		small.Receivers = []string{"h5"}
		g.Name, g.Key, g.Sender, g.Receivers = "g2", g.Key+1, "h2", []string{"h3", "h5"}
		p.Groups = append(p.Groups, g)
		g.Name, g.Key, g.Sender, g.Receivers = "g3", g.Key+1, "h4", []string{"h2", "h3", "h5"}
		p.Groups = append(p.Groups, g)
	}
	// The sender's daemon dies between any two writes of a re-formation, and of a removal.
	for n := range 4 {
		w := Fault{What: KillAtWrite, Node: "h1", At: 950 * ms, For: 200 * ms, N: 1 + n, Hold: 200 * ms}
		add(hosts, w, dies)
		add(switches, w, dies)
	}
	// The sender's daemon has no space to record a departure, and dies before the sender knows.
	add(switches, Fault{What: StopAgent, Node: "torA", At: 900 * ms, For: 450 * ms},
		Fault{What: FullDisk, Node: "h1", At: 900 * ms, For: 900 * ms}, dies,
		Fault{What: StopDaemon, Node: "h1", At: 1250 * ms, For: 800 * ms})
	// The sender's daemon, a member's daemon and the agent have no space for a re-formation.
	for _, node := range []string{"h1", "h2", "torA"} {
		g := hosts
		if node == "torA" {
			g = switches
		}
		add(g, Fault{What: FullDisk, Node: node, At: 900 * ms, For: 900 * ms}, dies)
	}
	// One of two members dies, and the other's daemon dies while the group is re-formed: only a
	// spare is left, and gets the operations in flight.
	add(Group{Mode: "auto", Kinds: []string{"send"}, Largest: 4096, Pause: 2 * ms, Spare: "h4"},
		Fault{What: KillAtWrite, Node: "h3", At: 800 * ms, For: 90 * ms, N: 2}, Fault{What: KillApp, Node: "h2", At: 1000 * ms})
	rows[len(rows)-1].Groups[0].Receivers = []string{"h2", "h3"}
	return rows
}

// Of returns the plan of a row, or of a seed.
func Of(number uint64) *Plan {
	if rows := Rows(); number >= FirstRow && number < FirstRow+uint64(len(rows)) {
		return rows[number-FirstRow]
	}
	return Make(number)
}
