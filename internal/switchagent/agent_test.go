package switchagent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/internal/switchagent/config"
)

func TestGroupsAcrossThreeSwitches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// TestEndUnready: an agent that never found its switch ends when it is told to.
func TestEndUnready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1)
		n := l.launch(1, func(c *config.Config, _ *Options) { c.P4Runtime.Target = "127.0.0.1:1" })
		ended := make(chan struct{})
		go func() { defer close(ended); n.kill() }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the agent goes on") // and hangs in the clean-up
		}
	})
}
