package pipeline

import (
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
)

// digestLimit is the maximum number of digests that wait for TakeDigests.
const digestLimit = 4096

// Digest is a message of the program to the control plane.
type Digest struct {
	Index  int           // into Program.Digests
	Values []match.Value // of its fields
}

// digests is the queue of digests not taken yet.
type digests struct {
	queue   []Digest
	dropped uint64
}

// TakeDigests returns the digests since the last call, oldest first. At most 4096 wait; further
// ones are dropped and counted.
func (s *state) TakeDigests() []Digest {
	d := s.digests.queue
	s.digests.queue = nil
	return d
}

// digest queues a digest with these field values, each as the words of a Value.
func (s *state) digest(index int, words []uint64) {
	if len(s.digests.queue) >= digestLimit {
		s.digests.dropped++
		return
	}
	words = slices.Clone(words)
	refs := s.prog.Digests[index].Fields
	values := make([]match.Value, len(refs))
	for i, r := range refs {
		n := 1
		if r.Field >= 0 {
			n = match.Words(s.prog.Headers[r.Header].Fields[r.Field].Bits)
		}
		values[i], words = words[:n:n], words[n:]
	}
	s.digests.queue = append(s.digests.queue, Digest{index, values})
}
