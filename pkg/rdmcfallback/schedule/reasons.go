package schedule

import "fmt"

// reasons explains a plan: the hints used, the reason for the chosen algorithm, and the reasons
// against the others.
func (h Hints) reasons(p Plan, size int64, nodes int) []string {
	known := fmt.Sprintf("%s to %d receivers, by links of %s; %v for each block besides, and %v to relay one", inBytes(size), nodes-1, inBits(h.Bandwidth), h.PerBlock, h.Relay)
	if h.Racks != nil && h.Uplink > 0 {
		known += fmt.Sprintf("; %d racks of up to %d nodes share uplinks of %s", h.Racks.Len(), h.Racks.most, inBits(h.Uplink))
	}
	r := []string{known, fmt.Sprintf("%v: %s", p.Algorithm, strengths[p.Algorithm])}
	for _, e := range p.Others {
		against := weaknesses[e.Algorithm]
		if e.Time < p.Time {
			against = "not enough faster to be worth it, as its slowest link slows down all"
		}
		r = append(r, fmt.Sprintf("not %v, about %v: %s", e.Algorithm, e.Time, against))
	}
	return r
}

var strengths = [...]string{
	BinomialPipeline: "every node sends and receives nearly all the time",
	Sequential:       "no member waits for a relay, and there is little to send",
	Chain:            "every node sends and receives nearly all the time, and racks are left and entered once",
	BinomialTree:     "a message this short has few blocks to relay, and the number of nodes that send doubles",
	Hybrid:           "each block enters a rack only once",
}

var weaknesses = [...]string{
	BinomialPipeline: "many of its blocks go from rack to rack, or wait for a relay",
	Sequential:       "the root alone sends, one copy after another",
	Chain:            "the last node waits until all before it have relayed",
	BinomialTree:     "half of the nodes only receive, and each relays only when it has all",
	Hybrid:           "leaders send the message twice",
}
