package pipeline

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// Operations of testdata/limits.p4.
const (
	opResubmit = iota
	opRecirculate
	opCloneForEver
	opDouble
	opMulticast
	opRandom
	opLog
	opAssert
	_
	opEndless
	_
	opDigest
	opCloneIngress
	opStack
	opTruncate
	opRegister
	opSpin = 0x80
	opSets = 0x81
)

// sent is a frame that came out.
type sent struct {
	port  uint16
	frame []byte
}

// process is Process with copies of the frames.
func process(p *Pipeline, frame []byte) (out []sent) {
	p.Process(0, 1, frame, func(port uint16, b []byte) { out = append(out, sent{port, bytes.Clone(b)}) })
	return out
}

// frameOf is a packet of limits.p4.
func frameOf(op, n uint8, x uint16) []byte {
	return append([]byte{op, n}, byte(x>>8), byte(x), 'd', 'a', 't', 'a')
}

// reportR and reportPass read the report's r and q.
func reportR(b []byte) uint32 { return binary.BigEndian.Uint32(b[4:]) }
func reportPass(b []byte) int { return int(b[4+4+6+6+4+4+5]) }

// idle checks that all packets and buffers are back.
func idle(t testing.TB, p *Pipeline) {
	t.Helper()
	if p.pool.made != len(p.pool.packets) {
		t.Fatalf("%d packets, of which %d are back", p.pool.made, len(p.pool.packets))
	}
	if p.pool.madeBuffers != len(p.pool.buffers) {
		t.Fatalf("%d buffers, of which %d are back", p.pool.madeBuffers, len(p.pool.buffers))
	}
}

func TestEndlessPasses(t *testing.T) {
	e := pre.New(pre.Limits{})
	if err := e.InsertSession(1, pre.Session{Replicas: []pre.Replica{{Port: 3}}}); err != nil {
		t.Fatal(err)
	}
	p := start(t, "limits", Options{PRE: e})
	for _, c := range []struct {
		op   uint8
		out  int
		many uint64 // passes too many
	}{
		{opResubmit, 0, 1},
		{opRecirculate, 0, 1},
		{opCloneForEver, maxPasses, 1},
	} {
		before := p.Stats()
		out := process(p, frameOf(c.op, 0, 0))
		after := p.Stats()
		if len(out) != c.out {
			t.Errorf("op %d: %d frames out, want %d", c.op, len(out), c.out)
		}
		if many := after.TooManyPasses - before.TooManyPasses; many != c.many {
			t.Errorf("op %d: %d times too many passes, want %d", c.op, many, c.many)
		}
	}
	if out := process(p, frameOf(opDouble, 0, 0)); len(out) != 0 || p.Stats().TooManyCopies == 0 {
		t.Errorf("%d frames; %+v", len(out), p.Stats())
	}
	idle(t, p)
}

// TestPassesKeepFieldList counts the passes in a field that the field list keeps.
func TestPassesKeepFieldList(t *testing.T) {
	e := pre.New(pre.Limits{})
	if err := e.InsertSession(1, pre.Session{Replicas: []pre.Replica{{Port: 3}}}); err != nil {
		t.Fatal(err)
	}
	p := start(t, "limits", Options{PRE: e})
	out := process(p, frameOf(opCloneForEver, 0, 0))
	for i, o := range out {
		if i > 0 && o.port != 3 {
			t.Errorf("clone %d to port %d", i, o.port)
		}
		if got := reportPass(o.frame); got != 1 {
			t.Errorf("frame %d: %d passes through the parser", i, got)
		}
	}
}

func TestMulticastStats(t *testing.T) {
	e := pre.New(pre.Limits{})
	p := start(t, "limits", Options{PRE: e})
	if out := process(p, frameOf(opMulticast, 0, 9)); len(out) != 0 || p.Stats().NoGroup != 1 {
		t.Fatalf("unknown group: %v, %+v", out, p.Stats())
	}
	to := []pre.Replica{{Port: 5, Instance: 1}, {Port: 2, Instance: 7}, {Port: 5, Instance: 2}}
	if err := e.InsertGroup(9, to); err != nil {
		t.Fatal(err)
	}
	var ports []uint16
	for _, o := range process(p, frameOf(opMulticast, 0, 9)) {
		ports = append(ports, o.port)
	}
	if !slices.Equal(ports, []uint16{5, 2, 5}) {
		t.Fatalf("ports %v", ports)
	}
	// Each copy recirculates and is copied again: 3, 9, 27, …
	if out := process(p, frameOf(opMulticast, 1, 9)); len(out) != 0 {
		t.Fatalf("%d frames", len(out))
	}
	if p.Stats().TooManyCopies == 0 {
		t.Fatalf("%+v", p.Stats())
	}
	idle(t, p)
}

func TestCloneIngress(t *testing.T) {
	e := pre.New(pre.Limits{})
	p := start(t, "limits", Options{PRE: e})
	if out := process(p, frameOf(opCloneIngress, 0, 4)); len(out) != 1 || p.Stats().NoSession != 1 {
		t.Fatalf("unknown session: %v, %+v", out, p.Stats())
	}
	s := pre.Session{Replicas: []pre.Replica{{Port: 3}, {Port: 4}}, PacketLength: 6}
	if err := e.InsertSession(4, s); err != nil {
		t.Fatal(err)
	}
	out := process(p, frameOf(opCloneIngress, 0, 4))
	if len(out) != 3 || out[0].port != 3 || out[1].port != 4 || out[2].port != 1 {
		t.Fatalf("%v", out)
	}
	if len(out[0].frame) != 6 || len(out[2].frame) <= 6 {
		t.Fatalf("lengths %d, %d", len(out[0].frame), len(out[2].frame))
	}
	idle(t, p)
}

func TestLoops(t *testing.T) {
	p := start(t, "limits", Options{})
	if out := process(p, frameOf(opEndless, 0, 0)); len(out) != 1 || p.Stats().EndlessLoop != 1 {
		t.Fatalf("action: %v, %+v", out, p.Stats())
	}
	if out := process(p, frameOf(opSpin, 1, 0)); len(out) != 1 || p.Stats().ParserErrors != 1 {
		t.Fatalf("parser: %v, %+v", out, p.Stats())
	}
	if process(p, frameOf(opSpin, 0, 0)); p.Stats().ParserErrors != 1 {
		t.Fatal("a parser that ends is in error")
	}
}

func TestRandom(t *testing.T) {
	draw := func(seed uint64) (all []uint32) {
		p := start(t, "limits", Options{Seed: seed})
		for range 200 {
			r := reportR(process(p, frameOf(opRandom, 10, 12))[0].frame)
			if r < 10 || r > 12 {
				t.Fatalf("%d is not in 10 … 12", r)
			}
			all = append(all, r)
		}
		return all
	}
	a, b, c := draw(1), draw(1), draw(2)
	if !slices.Equal(a, b) {
		t.Error("one seed, two sequences")
	}
	if slices.Equal(a, c) {
		t.Error("two seeds, one sequence")
	}
	for v := range uint32(3) {
		if !slices.Contains(a, 10+v) {
			t.Errorf("%d never came", 10+v)
		}
	}
	p := start(t, "limits", Options{})
	if r := reportR(process(p, frameOf(opRandom, 10, 9))[0].frame); r != 0 {
		t.Errorf("an empty range gave %d", r)
	}
}

func TestLogAndAssert(t *testing.T) {
	var said []string
	p := start(t, "limits", Options{Log: func(s string) { said = append(said, s) }})
	process(p, frameOf(opLog, 0, 513))
	if !slices.Equal(said, []string{"op 6 x 513"}) {
		t.Errorf("%q", said)
	}
	if out := process(p, frameOf(opAssert, 1, 0)); len(out) != 1 {
		t.Error("an assertion that holds drops")
	}
	if out := process(p, frameOf(opAssert, 0, 0)); len(out) != 0 || p.Stats().AssertionFailed != 1 {
		t.Errorf("%v, %+v", out, p.Stats())
	}
	idle(t, p)
}

func TestIndices(t *testing.T) {
	p := start(t, "limits", Options{})
	frame := append(frameOf(opStack, 0, 0), 1, 2, 3, 4)
	if out := process(p, frame); reportR(out[0].frame) != binary.BigEndian.Uint32([]byte{0, 0, 't', 'a'}) {
		t.Errorf("%x", out[0].frame)
	}
	frame[1] = 200
	if out := process(p, frame); reportR(out[0].frame) != 0 || p.Stats().BadStackIndex != 1 {
		t.Errorf("%x, %+v", out[0].frame, p.Stats())
	}
	process(p, frameOf(opRegister, 77, 3))
	if v, err := p.Register("I.reg").Get(3); err != nil || v.Uint() != 77 {
		t.Errorf("%v, %v", v, err)
	}
	if process(p, frameOf(opRegister, 1, 4)); p.Stats().BadIndex != 2 {
		t.Errorf("%+v", p.Stats())
	}
}

func TestDigest(t *testing.T) {
	p := start(t, "limits", Options{})
	process(p, frameOf(opDigest, 0, 0x1234))
	ds := p.TakeDigests()
	if len(ds) != 1 || ds[0].Values[0].Uint() != 1 || ds[0].Values[1].Uint() != 0x1234 {
		t.Fatalf("%v", ds)
	}
}

func TestValueSets(t *testing.T) {
	p := start(t, "limits", Options{})
	exact := func(v uint64, bits int) match.Field { return match.Field{Value: val(v, bits)} }
	if err := p.ValueSet("P.set1").Set([][]match.Field{{exact(7, 8)}}); err != nil {
		t.Fatal(err)
	}
	if err := p.ValueSet("P.set2").Set([][]match.Field{{exact(8, 8), exact(0x101, 16)}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		n    uint8
		x    uint16
		more bool
	}{{7, 0, true}, {8, 0x101, true}, {8, 0x100, false}, {9, 0x101, false}} {
		// An element of the stack follows the report, else the rest does.
		before := p.Stats().ParserErrors
		process(p, frameOf(opSets, c.n, c.x)[:4]) // too short for another header
		if got := p.Stats().ParserErrors > before; got != c.more {
			t.Errorf("%d, %#x: in a set %v", c.n, c.x, got)
		}
	}
}

// TestQueueMetadata tests the metadata about queue and time that egress sees.
func TestQueueMetadata(t *testing.T) {
	p := start(t, "limits", Options{})
	in := p.Ingress(5*time.Millisecond, 1, frameOf(opTruncate, 5, 100))
	if len(in) != 1 || in[0].Port() != 1 || in[0].Len() != 8 || in[0].Priority() != 5 {
		t.Fatalf("%+v", in)
	}
	frame, more := p.Egress(9*time.Millisecond, in[0], Queue{EnqDepth: 3, DeqDepth: 2, EnqTime: 6 * time.Millisecond})
	if len(more) != 0 {
		t.Fatal(more)
	}
	r := frame[4:]
	at := func(from, to int) (v uint64) {
		for _, b := range r[from:to] {
			v = v<<8 | uint64(b)
		}
		return v
	}
	depths := at(24, 29)
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"ingress time", at(4, 10), 5000}, {"egress time", at(10, 16), 9000},
		{"enqueued", at(16, 20), 6000}, {"in the queue", at(20, 24), 3000},
		{"depth when enqueued", depths >> 21, 3}, {"when dequeued", depths >> 2 & (1<<19 - 1), 2},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.what, c.got, c.want)
		}
	}
	if f, m := p.Egress(0, in[0], Queue{}); f != nil || m != nil {
		t.Error("a packet went through egress twice")
	}
	p.Release(in[0])
	idle(t, p)
}

func TestTruncate(t *testing.T) {
	p := start(t, "limits", Options{})
	for n := range uint16(40) {
		out := process(p, frameOf(opTruncate, 0, n))
		if got, want := len(out[0].frame), min(int(n), 4+35+4); got != want {
			t.Errorf("truncated to %d: %d bytes", n, got)
		}
	}
}

// TestExit leaves the control at once.
func TestExit(t *testing.T) {
	p := start(t, "limits", Options{})
	if out := process(p, []byte{1}); len(out) != 0 || p.Stats().IngressDrops != 1 {
		t.Errorf("%v, %+v", out, p.Stats())
	}
}

func TestSessionID(t *testing.T) {
	for _, c := range [][2]uint64{{5, 5}, {1<<15 + 5, 5}, {1<<16 + 5, 1<<15 - 1}} {
		if got := sessionID(c[0]); uint64(got) != c[1] {
			t.Errorf("session %d is %d, want %d", c[0], got, c[1])
		}
	}
}

// TestAbsentField: setting what a program does not declare changes nothing.
func TestAbsentField(t *testing.T) {
	pk := &Packet{w: []uint64{1}}
	f := stdField{}
	if f.set(pk, 4); pk.w[0] != 1 || f.get(pk) != 0 {
		t.Errorf("word 0 is %d, the field %d", pk.w[0], f.get(pk))
	}
}

// TestRelease gives back what never goes to egress.
func TestRelease(t *testing.T) {
	p := start(t, "limits", Options{})
	for range 3 {
		for _, pk := range p.Ingress(0, 1, frameOf(99, 0, 0)) {
			p.Release(pk)
			p.Release(pk)
		}
	}
	p.Release(nil)
	idle(t, p)
	if p.pool.made != 1 {
		t.Errorf("%d packets made", p.pool.made)
	}
}

// tablesPacket is a packet of tables.p4.
func tablesPacket(a, b byte, c uint16) []byte {
	return append([]byte{a, b, byte(c >> 8), byte(c)}, make([]byte, 20)...)
}

// TestDirect tests what tables count and meter.
func TestDirect(t *testing.T) {
	p := start(t, "tables", Options{})
	setUp(t, p, "entry I.direct 0x0101 0/0 => I.wide 0xff")
	setUp(t, p, "entry I.limited 1-3 => I.metered 0x40 @5")
	hit, limited := slices.Collect(p.Table("I.direct").All())[0], slices.Collect(p.Table("I.limited").All())[0]
	two := MeterConfig{CBurst: 1, PBurst: 2, Set: true} // a packet each, and never more
	if err := p.Table("I.limited").SetMeter(limited, two); err != nil {
		t.Fatal(err)
	}
	var colors []byte
	for i := range 3 {
		p.Process(time.Duration(i)*time.Second, 1, tablesPacket(2, 5, 0x0101), func(_ uint16, b []byte) {
			colors = append(colors, b[7])
		})
	}
	if !bytes.Equal(colors, []byte{0x40, 0x41, 0x42}) {
		t.Errorf("colors %x", colors)
	}
	if hit.Packets != 3 || hit.Bytes != 3*24 || hit.LastHit != 2*time.Second {
		t.Errorf("entry: %d packets, %d bytes, last at %v", hit.Packets, hit.Bytes, hit.LastHit)
	}
	process(p, tablesPacket(2, 5, 0x0102))
	if d := p.Table("I.direct").DefaultEntry(); d.Packets != 1 || d.Bytes != 24 {
		t.Errorf("default entry: %d packets, %d bytes", d.Packets, d.Bytes)
	}
	if n, err := p.Counter("I.seen").Get(5); n != (Counts{4, 4 * 24}) || err != nil {
		t.Errorf("counter: %+v, %v", n, err)
	}
}

// TestEmptyGroup: nothing happens to a packet that selects from nothing.
func TestEmptyGroup(t *testing.T) {
	p := start(t, "tables", Options{})
	for _, s := range []string{"member I.sel 1 I.pick 7 2", "select I.sel 1 1", "entry I.selected 3 => group 1"} {
		setUp(t, p, s)
	}
	if out := process(p, tablesPacket(3, 0, 0)); out[0].port != 2 || out[0].frame[0]&1 != 1 {
		t.Errorf("%v", out)
	}
	if err := p.Profile("I.sel").ModifyGroup(1, nil, 0); err != nil {
		t.Fatal(err)
	}
	if out := process(p, tablesPacket(3, 0, 0)); out[0].port != 1 || out[0].frame[0]&1 != 1 {
		t.Errorf("%v", out)
	}
}
