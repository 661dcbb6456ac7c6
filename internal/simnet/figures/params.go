package figures

import (
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
)

// testbed are the parameters of MC-RDMA, figures 5 to 7: 100 Gb/s (§VII-A); marks from 50 to 500 KB with
// a probability of 0.01 (§VII-C). The paper does not name delays for the testbed; those of §VII-E are
// taken. Unnamed: MTU, which is the largest of InfiniBand, buffer and PFC, whose headroom is what
// the links' delay takes, and DCQCN, which is that of its paper (Zhu et al., §5) and pkg/qp/rc's default.
func testbed() simnet.Params { return simnet.Defaults() }

// fatTree are those of figures 8 and 9 (§VII-E): 100 Gb/s and 500 ns for each link; over six links and
// back, these make the round trip of 6 µs, so nothing else takes time.
func fatTree() simnet.Params { return simnet.Defaults() }

// fractus are those of RDMC's figures 4, 6, 9 and 10: 16 hosts at one switch of 100 Gb/s (§5.1), otherwise as stampede.
func fractus() simnet.Params { return infiniband(100e9, 100e9) }

// sierra are those of RDMC's figure 8: 40 Gb/s, and a fat tree in which no link is a bottleneck: racks of 32 hosts, each
// with one link that is as fast as all of them.
func sierra() simnet.Params { return infiniband(40e9, 32*40e9) }

// apt are those of RDMC's figure 10, to the right: 56 Gb/s, and 16 Gb/s "per link when heavily loaded": racks of four hosts
// with one link of 64 Gb/s. How many hosts a rack has is not named.
func apt() simnet.Params { return infiniband(56e9, 4*16e9) }

// infiniband does not mark packets, and has credits, for which PFC stands.
func infiniband(host, fabric float64) simnet.Params {
	p := stampede()
	p.HostRate, p.FabricRate = host, fabric
	return p
}

// stampede are those of RDMC's Table 1: 40 Gb/s InfiniBand, which does not mark packets, and
// pauses by credits: PFC stands for that. The delay, of a switch and two links, is not named.
func stampede() simnet.Params {
	p := simnet.Defaults()
	p.HostRate, p.FabricRate = 40e9, 40e9
	p.HostDelay, p.FabricDelay = 500*time.Nanosecond, 500*time.Nanosecond
	p.KMax = 0
	return p
}
