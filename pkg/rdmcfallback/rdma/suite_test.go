package rdma

import (
	"net"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/internal/grouptest"
)

func transports(t testing.TB, n int) (all []rdmcfallback.Transport) {
	ts, _ := connect(t, n)
	for _, x := range ts {
		all = append(all, x)
	}
	return all
}

func TestAllGroups(t *testing.T) { grouptest.Run(t, transports) }

func BenchmarkSmall(b *testing.B) { grouptest.BenchmarkSmall(b, transports) }

func TestGroupMemory(t *testing.T) {
	if testenv.Race {
		t.Skip("optional: the race detector takes memory itself; \"make test\" runs it without as well")
	}
	grouptest.Memory(t, transports)
}

func TestKilledProcesses(t *testing.T) {
	grouptest.Kill(t, func(n int) (members []string) {
		for range n {
			l, err := net.Listen("tcp", testenv.Loopback().String()+":0")
			check(t, err)
			members = append(members, l.Addr().String())
			check(t, l.Close()) // for the member to use
		}
		return members
	})
}
