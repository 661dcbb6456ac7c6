package rdmcfallback_test

import (
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/internal/grouptest"
)

func pipes(_ testing.TB, n int) []rdmcfallback.Transport { return rdmcfallback.Pipe(n) }

func TestGroups(t *testing.T) { grouptest.Run(t, pipes) }

func TestGroupMemory(t *testing.T) {
	if testenv.Race {
		t.Skip("optional: the race detector takes memory itself; \"make test\" runs it without as well")
	}
	grouptest.Memory(t, pipes)
}
