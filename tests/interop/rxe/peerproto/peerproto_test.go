package peerproto

import (
	"bytes"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

func TestLayoutKeepsMessagesApart(t *testing.T) {
	b := Batch{Opcode: qp.OpSend, Sizes: []int{0, 1, 3, 64, 257, 0, 5}, Seed: 1}
	offs, total := b.Layout()
	end := 0
	for i, n := range b.Sizes {
		if offs[i] <= end {
			t.Errorf("message %d at %d leaves no gap after %d", i, offs[i], end)
		}
		end = offs[i] + n
	}
	if total <= end {
		t.Errorf("total %d leaves no gap after %d", total, end)
	}
}

func TestFillIsSeeded(t *testing.T) {
	fill := func(b Batch) []byte {
		_, n := b.Layout()
		buf := make([]byte, n)
		b.Fill(buf)
		return buf
	}
	b := Batch{Opcode: qp.OpSend, Sizes: []int{100, 1000}, Seed: 7}
	same, other, third := b, b, b
	other.Seed = 8
	third.Opcode = qp.OpWrite
	if !bytes.Equal(fill(b), fill(same)) {
		t.Error("same batch, different data")
	}
	if bytes.Equal(fill(b), fill(other)) || bytes.Equal(fill(b), fill(third)) {
		t.Error("different batches, same data")
	}
	if b.Imm(0) == b.Imm(1) || b.Imm(0) == other.Imm(0) {
		t.Error("immediate data repeat")
	}
}
