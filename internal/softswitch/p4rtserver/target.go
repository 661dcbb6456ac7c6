package p4rtserver

import (
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A Target is the switch that a Server controls. All methods may be called at
// any time and concurrently.
type Target interface {
	// Do calls f while no packet is processed and no other f runs. Before the
	// first Load, p and e are nil. f must not call the Target.
	Do(f func(p *pipeline.Pipeline, e *pre.Engine))

	// Load replaces pipeline and packet replication engine at once: every packet is processed
	// either by the old ones or by the new ones. They belong to the Target from then on.
	Load(p *pipeline.Pipeline, e *pre.Engine)

	// NewPipeline prepares a program for Load. The error names the construct that the switch does
	// not support.
	NewPipeline(prog *program.Program) (*pipeline.Pipeline, *pre.Engine, error)

	// Inject processes a frame as if it had arrived on the CPU port. The Target keeps the frame.
	// The error says why it was not accepted.
	Inject(frame []byte) error

	// Subscribe sets the functions that are called for each frame sent to the CPU port (valid only
	// during the call), with new digests (whose values belong to the callee) and with entries that
	// have become idle. The functions are called while no f of Do runs, in particular idle, which
	// reads the entries. They neither block nor call the Target.
	Subscribe(packetIn func(frame []byte), digests func([]pipeline.Digest), idle func([]pipeline.Expired))

	// CPUPort is the port of packet-in and packet-out; 0: none.
	CPUPort() uint16

	// Now returns the pipeline's time.
	Now() time.Duration
}
