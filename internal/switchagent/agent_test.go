package switchagent

import (
	"testing"
)

func TestGroupsAcrossThreeSwitches(t *testing.T) {
	l := newLine(t, 3)
	l.startAll()
	g := aGroup(hostAddr(1, 1), 0x800001, hostAddr(1, 2), hostAddr(2, 1), hostAddr(3, 1), hostAddr(3, 2))
	l.install(1, g)
	for i := range 3 {
		if err := l.state(i + 1).Check(); err != nil {
			t.Error(err)
		}
		t.Logf("sw%d: %v", i+1, multicast(l.state(i+1)))
	}
	l.remove(1, g)
	l.noLeftovers()
}
