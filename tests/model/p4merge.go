package main

import (
	"fmt"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// p4Merger merges by the compiled program on the embedded switch: the state is written to its
// registers, the answer arrives on the member's port, and the output on the sender's port is the
// merged answer.
type p4Merger struct {
	sw *dataplane.Switch
	g  dataplane.Group
	c  ackmerge.Config
}

func newP4Merger() (merger, error) {
	sw, err := dataplane.NewRack()
	if err != nil {
		return nil, err
	}
	p := &p4Merger{sw: sw, g: dataplane.Group{Index: 1, Sender: 1, SenderQPN: 0x11, MCID: 0x80_0000, Receivers: []int{2, 3, 4}, Epoch: 1}}
	sw.Install(p.g)
	return p, nil
}

func (p *p4Merger) merge(c *ackmerge.Config, s *ackmerge.State, a ackmerge.Answer) (ackmerge.Answer, ackmerge.Verdict) {
	if *c != p.c {
		p.c = *c
		p.g.Members, p.g.Epoch, p.g.InitialPSN, p.g.Learn = c.Members, int(c.Epoch), c.InitialPSN, c.Learn
		p.sw.Merge(p.g)
	}
	for i := range maxMembers {
		p.write("acked", p.g.Index*ackmerge.MaxMembers+i, s.Acked[i])
	}
	p.write("passed", p.g.Index, s.Passed)
	out := p.sw.Send(uint16(p.g.Receivers[a.Member]), p.g.Answer(a.Member, a.Syndrome, a.PSN, a.MSN).Frame())
	for i := range maxMembers {
		s.Acked[i] = p.read("acked", p.g.Index*ackmerge.MaxMembers+i)
	}
	s.Passed = p.read("passed", p.g.Index)
	if len(out) == 0 {
		return a, ackmerge.Absorbed // or any other: it was dropped
	}
	got, err := out[0].Parse()
	if err != nil || len(out) != 1 || out[0].Port != uint16(p.g.Sender) || got.H.Opcode != rocev2.Acknowledge ||
		got.H.DestQP != p.g.SenderQPN || !out[0].GoodICRC() {
		panic(fmt.Sprintf("the program makes %v of an answer: %v", out, err))
	}
	a.PSN, a.MSN, a.Syndrome = got.H.PSN, got.H.AETH.MSN, got.H.AETH.Syndrome
	return a, ackmerge.Pass
}

func (p *p4Merger) write(register string, i int, r ackmerge.Record) {
	v := uint64(r.Epoch)<<48 | uint64(r.MSN)<<24 | uint64(r.PSN)
	if err := p.sw.Register("egress.ack_merge."+register).Set(i, []uint64{v}); err != nil {
		panic(err)
	}
}

func (p *p4Merger) read(register string, i int) ackmerge.Record {
	v, err := p.sw.Register("egress.ack_merge." + register).Get(i)
	if err != nil {
		panic(err)
	}
	return ackmerge.Record{Epoch: uint16(v[0] >> 48), MSN: uint32(v[0]>>24) & rocev2.Mask24, PSN: rocev2.PSN(v[0]) & rocev2.Mask24}
}
