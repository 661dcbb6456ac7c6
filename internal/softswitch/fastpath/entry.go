package fastpath

import (
	"encoding/binary"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// key32 returns a field of an entry's key, and arg an argument of its action.
func key32(e *pipeline.Entry, i int) uint32 { return uint32(e.Key[i].Value.Uint()) } //nolint:gosec // 32 bits at most

func arg(e *pipeline.Entry, i int) uint64 { return e.Call.Args[i].Uint() }

// wire returns a number in wire byte order.
func wire(v uint64) (b [4]byte) {
	binary.BigEndian.PutUint32(b[:], uint32(v)) //nolint:gosec // 32 bits at most
	return b
}

func macOf(v uint64) (m bpf.MAC) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	copy(m.At[:], b[2:])
	return m
}

// hopAt returns which argument of a replica's action is the next hop.
func (l *plan) hopAt(r *pipeline.Entry) int {
	if l.actions(r) == "egress.rewrite.to_receiver" {
		return 2
	}
	return 1
}
