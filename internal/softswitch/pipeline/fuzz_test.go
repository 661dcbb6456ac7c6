package pipeline

import (
	"bufio"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// fuzzed are the programs that FuzzProcess runs, each set up as its script says.
// The one in bmv2 is the project's own.
var fuzzed = []string{
	"testdata/expressions", "testdata/parsing", "testdata/copies", "testdata/tables", "testdata/limits",
	"../../../bmv2/mcrdma", "testdata/varstack",
}

// ready compiles a program and runs the set-up of its script, if there is one. The
// packets of the script go to each.
func ready(tb testing.TB, file string, each func([]byte)) *Pipeline {
	tb.Helper()
	b, err := os.ReadFile(file + ".json")
	if err != nil {
		tb.Fatal(err)
	}
	prog, err := program.Load(b)
	if err != nil {
		tb.Fatal(err)
	}
	e := pre.New(pre.Limits{})
	p, err := New(prog, Options{PRE: e, Log: func(string) {}})
	if err != nil {
		tb.Fatal(err)
	}
	script, err := os.Open(file + ".txt")
	if err != nil {
		for id := range uint32(5) {
			to := []pre.Replica{{Port: 1, Instance: 1}, {Port: 2, Instance: 2}}
			if err := e.InsertGroup(1+id, to); err != nil {
				tb.Fatal(err)
			}
			if err := e.InsertSession(1+id, pre.Session{Replicas: to, PacketLength: int(id)}); err != nil {
				tb.Fatal(err)
			}
		}
		return p
	}
	defer script.Close()
	lines := bufio.NewScanner(script)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if setUp(tb, p, lines.Text()) {
			continue
		}
		if f := strings.Fields(lines.Text()); f[0] == "in" {
			b, err := hex.DecodeString(f[2])
			if err != nil {
				tb.Fatal(err)
			}
			each(b)
		}
	}
	return p
}

// roce is a frame that the project's program takes for RoCE, up to its ICRC.
func roce(opcode byte, payload int) []byte {
	n := 20 + 8 + 12 + payload + 4
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, byte(n >> 8), byte(n), 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	b = append(b, 0xc0, 0, 0x12, 0xb7, byte((n-20)>>8), byte(n-20), 0, 0)
	b = append(b, opcode, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 1)
	b = append(b, make([]byte, payload+4)...)
	sum := rocev2.Checksum(b[14:34])
	b[24], b[25] = byte(sum>>8), byte(sum)
	return b
}

// FuzzProcess processes arbitrary bytes as packets, on any port. Nothing may fail, all packets
// return to the pool, and the same packet has the same result in a second pipeline.
func FuzzProcess(f *testing.F) {
	ps := make([][2]*Pipeline, len(fuzzed))
	for i, file := range fuzzed {
		n := 0
		seed := func(b []byte) {
			if n++; n%10 == 0 {
				f.Add(uint8(i), uint16(1), b)
			}
		}
		ps[i] = [2]*Pipeline{ready(f, file, seed), ready(f, file, func([]byte) {})}
	}
	for op := range uint8(16) {
		f.Add(uint8(4), uint16(1), frameOf(op, 1, 1))
	}
	f.Add(uint8(4), uint16(1), frameOf(opSpin, 1, 1))
	f.Add(uint8(4), uint16(1), frameOf(opSets, 1, 1))
	for _, op := range []byte{0, 4, 6, 10, 0x11, 0x81} {
		f.Add(uint8(5), uint16(1), roce(op, 20))
		f.Add(uint8(5), uint16(1), roce(op, 4000))
	}
	f.Add(uint8(5), uint16(510), []byte{1, 0, 1})
	f.Fuzz(func(t *testing.T, which uint8, port uint16, frame []byte) {
		if len(frame) > 1<<16 {
			return
		}
		pair := ps[int(which)%len(ps)]
		var out [2][]string
		for i, p := range pair {
			p.Process(time.Millisecond, port, frame, func(to uint16, b []byte) {
				out[i] = append(out[i], string(byte(to>>8))+string(byte(to))+string(b))
			})
			p.TakeDigests()
			idle(t, p)
		}
		if a, b := strings.Join(out[0], "|"), strings.Join(out[1], "|"); a != b {
			t.Fatalf("one pipeline makes %x, another %x", a, b)
		}
	})
}

// TestCut gives each program its packets cut short at every length, and much too
// long.
func TestCut(t *testing.T) {
	for _, file := range fuzzed {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var in [][]byte
			p := ready(t, file, func(b []byte) { in = append(in, b) })
			if len(in) == 0 {
				in = [][]byte{roce(10, 64), roce(0x11, 4), roce(4, 0), frameOf(1, 2, 3), frameOf(3, 2, 1), frameOf(opStack, 1, 1)}
			}
			for _, b := range in[:min(len(in), 40)] {
				for n := range min(len(b), 300) {
					p.Process(0, 1, b[:n], func(uint16, []byte) {})
				}
				p.Process(0, 1, append(b[:len(b):len(b)], make([]byte, 1<<16-len(b))...), func(uint16, []byte) {})
			}
			p.Process(0, 1, nil, func(uint16, []byte) {})
			idle(t, p)
		})
	}
}

func BenchmarkProcess(b *testing.B) {
	for _, file := range append(fuzzed[:4:4], fuzzed[5]) {
		b.Run(filepath.Base(file), func(b *testing.B) {
			var in [][]byte
			p := ready(b, file, func(x []byte) { in = append(in, x) })
			if len(in) == 0 {
				in = [][]byte{roce(10, 1000), roce(0x11, 4)}
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				p.Process(0, 1, in[i], func(uint16, []byte) {})
				if i++; i == len(in) {
					i = 0
				}
			}
		})
	}
}
