package main

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// kernelMerger merges by the bytecode of package bpf in the kernel (BPF_PROG_TEST_RUN): the state
// is written to its slot, the answer is the input frame, and a redirected frame is the merged
// answer. Each merger has its own group.
type kernelMerger struct {
	b *dataplane.Bytecode
	g dataplane.Group
	c ackmerge.Config
}

var (
	bytecode = sync.OnceValues(func() (*dataplane.Bytecode, error) {
		b, err := dataplane.LoadBytecode()
		if err == nil {
			b.Only(2, 1)
		}
		return b, err
	})
	kernelMergers atomic.Int32
)

func newKernelMerger() (merger, error) {
	b, err := bytecode()
	if err != nil {
		return nil, err
	}
	n := int(kernelMergers.Add(1) % bpf.Slots)
	k := &kernelMerger{b: b, g: dataplane.Group{Index: n, Sender: 1, SenderQPN: rocev2.QPN(0x10000 + n), MCID: rocev2.QPN(0x80_0000 + n), Receivers: []int{2, 3, 4}, Epoch: 1}}
	b.Members(&k.g)
	return k, nil
}

func (k *kernelMerger) merge(c *ackmerge.Config, s *ackmerge.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict) {
	if *c != k.c {
		k.c = *c
		k.g.Members, k.g.Epoch, k.g.InitialPSN, k.g.Learn = c.Members, int(c.Epoch), c.InitialPSN, c.Learn
		k.b.Merge(&k.g)
	}
	slot := bpf.Slot{Passed: record(s.Passed)}
	for i := range maxMembers {
		slot.Acked[i] = record(s.Acked[i])
	}
	k.b.Put("merge_slots", uint32(k.g.Index), &slot)
	did, out := k.b.Run(k.g.Answer(a.Member, a.Syndrome, a.PSN, a.MSN).Frame())
	if err := k.b.Maps["merge_slots"].Lookup(uint32(k.g.Index), &slot); err != nil {
		panic(err)
	}
	for i := range maxMembers {
		s.Acked[i] = recordOf(slot.Acked[i])
	}
	s.Passed = recordOf(slot.Passed)
	const drop, redirect = 1, 4
	if did == drop {
		return a, ackmerge.Absorbed // or any other: it was dropped
	}
	f := dataplane.Frame{Data: out}
	got, err := f.Parse()
	if err != nil || did != redirect || got.H.Opcode != rocev2.Acknowledge || got.H.DestQP != k.g.SenderQPN || !f.GoodICRC() {
		panic(fmt.Sprintf("the kernel says %d, and makes % x of an answer: %v", did, out, err))
	}
	a.PSN, a.MSN, a.Syndrome = got.H.PSN, got.H.AETH.MSN, got.H.AETH.Syndrome
	return a, ackmerge.Pass
}

func record(r ackmerge.Record) bpf.Record {
	return bpf.Record{MSN: r.MSN, PSN: uint32(r.PSN), Epoch: uint32(r.Epoch)}
}

func recordOf(r bpf.Record) ackmerge.Record {
	return ackmerge.Record{Epoch: uint16(r.Epoch), MSN: r.MSN, PSN: rocev2.PSN(r.PSN)}
}
