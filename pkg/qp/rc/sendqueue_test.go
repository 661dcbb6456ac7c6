package rc

import (
	"errors"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// TestLargestMessage: a message may be as large as the standard has it, and not a byte larger. Its memory is one MiB many times.
func TestLargestMessage(t *testing.T) {
	q := NewQP(Config{MaxSendWR: 2, MaxSGE: 2049, PathMTU: 4096}, nil)
	q.StartSend(&Config{})
	mem := make([]byte, 1<<20)
	largest := slices.Repeat([][]byte{mem}, qp.MaxMessage>>20)
	if err := q.PostSend(&qp.SendWR{Opcode: qp.OpSend}, append(largest, mem[:1])); !errors.Is(err, qp.ErrSGE) {
		t.Errorf("a byte more: %v", err)
	}
	if err := q.PostSend(&qp.SendWR{Opcode: qp.OpSend}, largest); err != nil {
		t.Error(err)
	}
}
