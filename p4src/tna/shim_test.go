package tna_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/p4src/tna"
	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/ackmerge/packed"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/answers"
)

const slot = 3

// What a packet is, and where its parts are in a frame of shim.p4.
const (
	kindData = 1
	kindACK  = 2 // or another answer

	atNow, atGap, atDrop          = 0, 4, 8
	atKind, atIndex, atSlot       = 9, 10, 11
	atMembers, atIP, atBTH        = 13, 25, 53
	atPSN, atSyndrome, atMSN, end = 62, 65, 66, 73
)

// A shim is the compiled program, and beside it the group as it must be.
type shim struct {
	*testing.T
	p    *pipeline.Pipeline
	c    packed.Config
	want packed.State
}

func newShim(t *testing.T) *shim {
	t.Helper()
	prog, err := program.Load(tna.Shim)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipeline.New(prog, pipeline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &shim{T: t, p: p}
}

// registers calls f with each of the group's registers and what it must hold.
func (s *shim) registers(f func(name string, value uint64)) {
	f("ingress.admit.sent", uint64(s.want.Sent))
	for i, r := range s.want.Acked {
		f("egress.merge.acked_"+[]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"}[i], uint64(r)<<32)
	}
	f("egress.merge.passed", uint64(s.want.Passed))
	f("egress.merge.cnp_at", uint64(s.want.CNPAt))
}

// group sets the group's tables and, if it is a new one, its registers.
func (s *shim) group(c *ackmerge.Config, anew bool, now time.Duration) {
	s.c = packed.Config{Members: c.Members, CNPGap: uint32(c.CNPGap)}
	if c.Epoch == 0 {
		s.c.Members = 0
	}
	if anew {
		s.want = packed.Reset(c.InitialPSN, now)
		s.registers(func(name string, value uint64) {
			if err := s.p.Register(name).Set(slot, []uint64{value}); err != nil {
				s.Fatal(err)
			}
		})
	}
}

// check compares all registers.
func (s *shim) check(where any) {
	s.Helper()
	s.registers(func(name string, value uint64) {
		got, err := s.p.Register(name).Get(slot)
		mask := uint64(math.MaxUint64)
		if strings.Contains(name, "acked") {
			mask <<= 32 // what went on last is never read
		}
		if err != nil || got[0]&mask != value {
			s.Fatalf("%v: %s is %#x, %v, expected %#x", where, name, got, err, value)
		}
	})
}

func (s *shim) send(psn rocev2.PSN) {
	s.want.Send(psn)
	s.process(s.frame(kindData, byte(rocev2.WriteOnly), ackmerge.Answer{PSN: psn}, 0), 0)
}

// merge has an answer merged by the program and by package packed.
func (s *shim) merge(where any, a ackmerge.Answer, now time.Duration) (ackmerge.Answer, ackmerge.Verdict) {
	s.Helper()
	opcode := rocev2.Acknowledge
	if a.CNP {
		opcode = rocev2.CNP
	}
	want, verdict := packed.Merge(&s.c, &s.want, a, now)
	out := s.process(s.frame(kindACK, byte(opcode), a, now), now)
	if pass := out[atDrop] == 0; pass != (verdict == ackmerge.Pass) {
		s.Fatalf("%v: %+v of %+v: passed on is %v, expected %v, %v", where, a, s.c, pass, want, verdict)
	}
	if verdict == ackmerge.Pass && !a.CNP {
		got := ackmerge.Answer{Member: a.Member, Syndrome: rocev2.Syndrome(out[atSyndrome]),
			PSN: rocev2.PSN(binary.BigEndian.Uint32(out[atPSN-1:])) & rocev2.Mask24, MSN: binary.BigEndian.Uint32(out[atMSN-1:]) & rocev2.Mask24}
		if got != want || !rocev2.VerifyICRC(out[atIP:]) {
			s.Fatalf("%v: %+v of %+v becomes\n%+v, ICRC right: %v; expected\n%+v", where, a, s.c, got, rocev2.VerifyICRC(out[atIP:]), want)
		}
	}
	return want, verdict
}

// frame returns a frame of shim.p4.
func (s *shim) frame(kind, opcode byte, a ackmerge.Answer, now time.Duration) []byte {
	b := make([]byte, end)
	put := binary.BigEndian
	put.PutUint32(b[atNow:], uint32(now))
	put.PutUint32(b[atGap:], s.c.CNPGap)
	put.PutUint16(b[atSlot:], slot)
	put.PutUint16(b[atMembers:], s.c.Members)
	b[atKind], b[atIndex] = kind, byte(a.Member)
	ip := b[atIP:]
	copy(ip, []byte{0x45, 2, 0, 48, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, byte(a.Member), 10, 0, 1, 1,
		0xc0, 0x11, 0x12, 0xb7, 0, 28, 0, 0, opcode, 0, 0xff, 0xff, 0, 0x80, 0, 7})
	put.PutUint32(b[atMSN-1:], a.MSN)
	put.PutUint32(b[atPSN-1:], uint32(a.PSN))
	b[atSyndrome] = byte(a.Syndrome)
	rocev2.PutICRC(ip)
	return b
}

func (s *shim) process(frame []byte, now time.Duration) (out []byte) {
	s.Helper()
	n := 0
	s.p.Process(now, 1, frame, func(_ uint16, frame []byte) {
		out = append(out, frame...)
		n++
	})
	if n != 1 || len(out) != end {
		s.Fatalf("of %x there came %d frames, %x", frame, n, out)
	}
	return out
}

// TestShimScripts has the program merge the scripts of ackmerge.
func TestShimScripts(t *testing.T) {
	scripts, err := answers.Scripts("../../pkg/ackmerge/testdata")
	if err != nil {
		t.Fatal(err)
	}
	s := newShim(t)
	total, passed := 0, 0
	for _, steps := range scripts {
		var c ackmerge.Config
		anew := true
		for _, x := range steps {
			switch {
			case x.Restart:
				anew = true
			case x.Group != nil:
				s.group(x.Group, anew || x.Group.Epoch != c.Epoch, x.Now)
				c, anew = *x.Group, false
			default:
				if c.InitialPSN.Sub(x.Answer.PSN) < packed.Window/2 { // the sender may be there
					s.send(x.Answer.PSN)
				}
				if _, v := s.merge(x.Where, x.Answer, x.Now); v == ackmerge.Pass {
					passed++
				}
				total++
				s.check(x.Where)
			}
		}
	}
	t.Logf("%d answers, %d passed on", total, passed)
	if passed < 30 {
		t.Errorf("%d of %d answers were passed on", passed, total)
	}
}

// TestShimRandom has the program merge answers drawn at random; in the long mode, a million of them.
func TestShimRandom(t *testing.T) {
	total := 20_000
	if os.Getenv("MCRDMA_LONG") != "" {
		total = 1_000_000
	}
	s := newShim(t)
	x := answers.NewStream(rand.New(rand.NewPCG(22, 22)), packed.Window-1, ackmerge.MaxMembers)
	passed := 0
	for i := range total {
		a, now, anew := x.Next()
		c := x.Group()
		s.group(&c, anew || i == 0, now)
		s.send(x.Sent())
		got, verdict := s.merge(i, a, now)
		if i%16 == 0 {
			s.check(i)
		}
		if verdict == ackmerge.Pass && !got.CNP {
			passed++
			x.Told(got.PSN.Add(-1))
			if got.Syndrome.IsAck() {
				x.Told(got.PSN)
			}
		}
	}
	if passed < total/10 {
		t.Errorf("%d of %d answers were passed on", passed, total)
	}
}

// TestShimCorruption: an answer in which any bit has changed that the ICRC covers goes no further, and changes nothing.
func TestShimCorruption(t *testing.T) {
	s := newShim(t)
	s.group(&ackmerge.Config{Members: 3, Epoch: 1, InitialPSN: 7}, true, 0)
	s.send(9)
	intact := s.frame(kindACK, byte(rocev2.Acknowledge), ackmerge.Answer{PSN: 8, MSN: 1, Syndrome: rocev2.AckNoLimit}, 0)
	for bit := atIP * 8; bit < end*8; bit++ {
		spoiled := bytes.Clone(intact)
		spoiled[bit/8] ^= 1 << (bit % 8)
		if rocev2.VerifyICRC(spoiled[atIP:]) {
			continue // not covered
		}
		if spoiled[atBTH] == byte(rocev2.CNP) {
			t.Fatal("an ACK became a CNP")
		}
		if out := s.process(spoiled, 0); out[atDrop] == 0 {
			t.Errorf("bit %d of byte %d has changed, and the answer goes on", bit%8, bit/8-atIP)
		}
		s.check(bit)
	}
}
