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

// stampede are those of RDMC's Table 1: 40 Gb/s InfiniBand, which does not mark packets, and
// pauses by credits: PFC stands for that. The delay, of a switch and two links, is not named.
func stampede() simnet.Params {
	p := simnet.Defaults()
	p.HostRate, p.FabricRate = 40e9, 40e9
	p.HostDelay, p.FabricDelay = 500*time.Nanosecond, 500*time.Nanosecond
	p.KMax = 0
	return p
}
