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

	// Load replaces pipeline and packet replication engine at once: every packet
	// meets either the old ones or the new ones. They belong to the Target from
	// then on.
	Load(p *pipeline.Pipeline, e *pre.Engine)

	// NewPipeline makes a program ready to be loaded. The error says which
	// construct the switch cannot run.
	NewPipeline(prog *program.Program) (*pipeline.Pipeline, *pre.Engine, error)

	// Inject processes a frame as if it had come in on the CPU port. The frame
	// is the Target's to keep. The error says why it could not be taken.
	Inject(frame []byte) error

	// Subscribe sets what is called for each frame that leaves by the CPU port
	// (valid only during the call), with new digests (whose values belong to the
	// callee) and with entries that have become idle. The functions are called while
	// no f of Do runs, in particular idle, which reads the entries. They neither
	// block nor call the Target.
	Subscribe(packetIn func(frame []byte), digests func([]pipeline.Digest), idle func([]pipeline.Expired))

	// Now is the pipeline's time.
	Now() time.Duration
}
