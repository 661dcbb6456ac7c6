package tcp_test

import (
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/internal/grouptest"
)

func transports(t testing.TB, n int) (all []rdmcfallback.Transport) {
	for _, x := range connect(t, n) {
		all = append(all, x)
	}
	return all
}

func TestGroups(t *testing.T) { grouptest.Run(t, transports) }

func BenchmarkSmall(b *testing.B) { grouptest.BenchmarkSmall(b, transports) }

func TestGroupMemory(t *testing.T) {
	if testenv.Race {
		t.Skip("optional: the race detector takes memory itself; \"make test\" runs it without as well")
	}
	grouptest.Memory(t, transports)
}
