package vm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/pcapfile"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// readCPIO parses an archive back into "mode name data" lines.
func readCPIO(t *testing.T, b []byte) (out []string) {
	t.Helper()
	at := 0
	for {
		field := func(i int) int {
			n, err := strconv.ParseUint(string(b[at+6+8*i:][:8]), 16, 32)
			if err != nil {
				t.Fatalf("entry at %d: %v", at, err)
			}
			return int(n)
		}
		if string(b[at:at+6]) != "070701" {
			t.Fatalf("no entry at %d", at)
		}
		mode, size, nameLen := field(1), field(6), field(11)
		name := b[at+110:][:nameLen]
		if name[nameLen-1] != 0 {
			t.Fatalf("name %q is not terminated", name)
		}
		data := (at + 110 + nameLen + 3) &^ 3
		if string(name) == "TRAILER!!!\x00" {
			return out
		}
		out = append(out, fmt.Sprintf("%o %s %s", mode, name[:nameLen-1], b[data:][:size]))
		at = (data + size + 3) &^ 3
	}
}

func TestCPIO(t *testing.T) {
	var b bytes.Buffer
	c := newCPIO(&b)
	c.File("/a/b/one", []byte("1"))
	c.File("a/b/two", []byte("22222"))
	c.Dir("proc")
	c.File("init", nil)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"40755 a ", "40755 a/b ", "100755 a/b/one 1", "100755 a/b/two 22222", "40755 proc ", "100755 init "}
	if got := readCPIO(t, b.Bytes()); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := newCPIO(failing{}).Close(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a failing writer: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// bzImage returns a minimal image around payload.
func bzImage(payload []byte, version uint16) []byte {
	const setupSects = 1
	b := make([]byte, (setupSects+1)*512+16)
	b[0x1f1] = setupSects
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x206:], version)
	binary.LittleEndian.PutUint32(b[0x248:], 16)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
	return append(b, payload...)
}

func TestPayload(t *testing.T) {
	got, err := payload(bzImage([]byte("kernel"), 0x20f))
	if err != nil || string(got) != "kernel" {
		t.Errorf("got %q, %v", got, err)
	}
	short := bzImage([]byte("kernel"), 0x20f)
	for name, b := range map[string][]byte{
		"empty": nil, "old": bzImage([]byte("x"), 0x207), "cut": short[:len(short)-1], "no payload": bzImage(nil, 0x20f),
		"other": bytes.Repeat([]byte{1}, 2000),
	} {
		if got, err := payload(b); !errors.Is(err, errKernel) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func FuzzPayload(f *testing.F) {
	f.Add(bzImage([]byte("kernel"), 0x20f))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := payload(b); err != nil && !errors.Is(err, errKernel) {
			t.Error(err)
		}
	})
}

func TestDecompress(t *testing.T) {
	plain := elf.ELFMAG + "rest"
	if got, err := decompress(t.Context(), []byte(plain)); err != nil || string(got) != plain {
		t.Errorf("an ELF file: %q, %v", got, err)
	}
	for _, b := range []string{"", "BZh9", "\x1f\x8bgarbage"} {
		if got, err := decompress(t.Context(), []byte(b)); !errors.Is(err, errKernel) {
			t.Errorf("%q: %q, %v", b, got, err)
		}
	}
}

func TestModuleDepsRefusesOthers(t *testing.T) {
	if _, err := moduleDeps([]byte("no ELF file")); !errors.Is(err, errKernel) {
		t.Errorf("got %v", err)
	}
	if _, err := loadModules(t.Context(), t.TempDir(), []string{"nosuch"}, func(string) bool { return false }); !errors.Is(err, errKernel) {
		t.Errorf("missing module: %v", err)
	}
	if mods, err := loadModules(t.Context(), t.TempDir(), []string{"crc32-generic"}, func(n string) bool { return n == "crc32_generic" }); err != nil || len(mods) != 0 {
		t.Errorf("built-in module: %v, %v", mods, err)
	}
}

// roceFrame returns an Ethernet frame with a RoCEv2 packet.
func roceFrame(op rocev2.Opcode, syn rocev2.Syndrome, payload int) []byte {
	f := make([]byte, ethLen+ipLen+udpLen, 200)
	binary.BigEndian.PutUint16(f[12:], ipv4)
	f[ethLen], f[ethLen+9] = 0x45, 17
	binary.BigEndian.PutUint16(f[ethLen+ipLen+2:], roceUDP)
	h := rocev2.Headers{BTH: rocev2.BTH{Opcode: op, PKey: rocev2.DefaultPKey}, AETH: rocev2.AETH{Syndrome: syn}}
	return append(h.AppendTo(f), make([]byte, payload+rocev2.ICRCLen)...)
}

func TestImpair(t *testing.T) {
	var im impairer
	im.set(Impairment{Loss: 0.1, Corrupt: 0.2, Seed: 1})
	clean := roceFrame(rocev2.SendOnly, 0, 64)
	var lost, changed uint64
	const n = 10000
	for range n {
		f := bytes.Clone(clean)
		if !im.apply(f) {
			lost++
			continue
		}
		diff := 0
		for i := range f {
			diff += bits.OnesCount8(f[i] ^ clean[i])
		}
		if diff > 1 {
			t.Fatalf("%d bits changed", diff)
		}
		changed += uint64(diff)
		if !bytes.Equal(f[:ethLen], clean[:ethLen]) || f[ethLen+ipLen+udpLen+4] != clean[ethLen+ipLen+udpLen+4] {
			t.Fatal("changed where no receiver can notice")
		}
	}
	if lost < n/20 || lost > n/5 || changed < n/10 || changed > n*3/10 {
		t.Errorf("lost %d and changed %d of %d", lost, changed, n)
	}
	if got := im.set(Impairment{Loss: 1}); got != (Stats{Frames: n, Lost: lost, Corrupted: changed}) {
		t.Errorf("counted %+v, saw %d and %d", got, lost, changed)
	}
	// Everything else passes, whatever happens to RoCE.
	tcp := bytes.Clone(clean)
	tcp[ethLen+9] = 6
	dns := bytes.Clone(clean)
	dns[ethLen+ipLen+3] = 53
	for _, f := range [][]byte{tcp, dns, clean[:30], nil} {
		if !im.apply(f) {
			t.Errorf("%x was lost", f)
		}
	}
	if im.apply(bytes.Clone(clean)) {
		t.Error("a RoCE frame got through a loss of 100 %")
	}
}

func TestImpairIsSeeded(t *testing.T) {
	pattern := func(seed uint64) (out []bool) {
		var im impairer
		im.set(Impairment{Loss: 0.5, Seed: seed})
		for range 100 {
			out = append(out, im.apply(roceFrame(rocev2.SendOnly, 0, 0)))
		}
		return out
	}
	first, again, other := pattern(1), pattern(1), pattern(2)
	if !slices.Equal(first, again) {
		t.Error("one seed, two patterns")
	}
	if slices.Equal(first, other) {
		t.Error("two seeds, one pattern")
	}
}

func TestImpairCountsNaks(t *testing.T) {
	var im impairer
	im.set(Impairment{})
	for _, syn := range []rocev2.Syndrome{rocev2.AckNoLimit, rocev2.NakSequence, rocev2.RNRSyndrome(12), rocev2.RNRSyndrome(1), rocev2.NakRemoteAccess} {
		im.apply(roceFrame(rocev2.Acknowledge, syn, 0))
	}
	im.apply(roceFrame(rocev2.SendOnly, 0, 64))
	if got, want := im.count(), (Stats{Frames: 6, RNRNaks: 2, SequenceNaks: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestHold: requests wait for the next impairment, answers and other frames do not.
func TestHold(t *testing.T) {
	var s ethSwitch
	a, b := newChanPort(), newChanPort()
	s.attach(a)
	s.attach(b)
	s.change(Impairment{Hold: true})
	frames := [][]byte{roceFrame(rocev2.SendOnly, 0, 1), roceFrame(rocev2.Acknowledge, 0, 0), roceFrame(rocev2.SendOnly, 0, 2), make([]byte, ethLen)}
	for _, f := range frames {
		f[0], f[6] = 2, 4 // to b, from a
		a.in <- f
	}
	if got := [][]byte{<-b.out, <-b.out}; !bytes.Equal(got[0], frames[1]) || !bytes.Equal(got[1], frames[3]) {
		t.Errorf("meanwhile: %x", got)
	}
	if n := s.change(Impairment{}).Held; n != 2 {
		t.Errorf("%d held", n)
	}
	if got := [][]byte{<-b.out, <-b.out}; !bytes.Equal(got[0], frames[0]) || !bytes.Equal(got[1], frames[2]) {
		t.Errorf("afterward: %x", got)
	}
	if got, want := s.impair.count(), (Stats{Inward: 2, Wrong: 2}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	b.in <- frames[1] // the other way
	s.close()
	if got := s.impair.count(); got.Frames != 1 || got.Inward != 2 {
		t.Errorf("counted %+v", got)
	}
}

// A chanPort is a port whose other end is two channels.
type chanPort struct {
	in, out chan []byte
}

func newChanPort() *chanPort { return &chanPort{make(chan []byte), make(chan []byte, 10)} }

func (p *chanPort) Read(b []byte) (int, error) {
	f, ok := <-p.in
	if !ok {
		return 0, io.EOF
	}
	return copy(b, f), nil
}

func (p *chanPort) Write(b []byte) (int, error) {
	p.out <- bytes.Clone(b)
	return len(b), nil
}

func (p *chanPort) Close() error { close(p.in); return nil }

func TestSwitchLearns(t *testing.T) {
	var s ethSwitch
	var seen atomic.Int32
	s.tap = func([]byte) { seen.Add(1) }
	a, b, c := newChanPort(), newChanPort(), newChanPort()
	for _, p := range []*chanPort{a, b, c} {
		s.attach(p)
	}
	frame := func(dst, src byte) []byte {
		f := make([]byte, 60)
		f[5], f[11] = dst, src
		return f
	}
	a.in <- frame(2, 1) // unknown: to all others
	for _, p := range []*chanPort{b, c} {
		select {
		case <-p.out:
		case <-time.After(20 * time.Second):
			t.Fatal("a frame for an unknown station was not flooded")
		}
	}
	b.in <- frame(1, 2) // to a alone
	select {
	case <-a.out:
	case <-time.After(20 * time.Second):
		t.Fatal("a frame for a known station did not arrive")
	}
	a.in <- frame(2, 1) // now to b alone
	a.in <- frame(1, 3) // to no port: 1 is where it comes from
	a.in <- make([]byte, 5)
	s.close()
	if len(a.out) != 0 || len(b.out) != 1 || len(c.out) != 0 || seen.Load() != 4 {
		t.Errorf("%d, %d and %d further frames arrived, %d seen", len(a.out), len(b.out), len(c.out), seen.Load())
	}
	if got := s.String(); !strings.HasPrefix(got, "port 0: 4 frames, the last ") || !strings.HasSuffix(got, "; port 2: 0 frames; ended: EOF") {
		t.Error(got)
	}
}

// TestTests: what fails because a card hangs runs once more, and nothing else does.
func TestTests(t *testing.T) {
	for _, tt := range []struct {
		name  string
		codes []int
		hangs []bool
		end   error
		want  int
	}{
		{"all is well", []int{0}, []bool{false}, nil, 0},
		{"tests fail", []int{1}, []bool{false}, nil, 1},
		{"a card hangs and the tests pass", []int{0}, []bool{true}, nil, 0},
		{"a card hangs", []int{1, 0}, []bool{true, false}, nil, 0},
		{"tests fail the second time", []int{1, 1}, []bool{true, false}, nil, 1},
		{"a card hangs twice", []int{1, 1}, []bool{true, true}, nil, 1},
		{"guests do not end", []int{0}, []bool{false}, io.ErrClosedPipe, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runs, ends := 0, 0
			got := Tests(func() int { runs++; return tt.codes[runs-1] }, func() bool { return tt.hangs[runs-1] },
				func() error { ends++; return tt.end })
			if got != tt.want || runs != len(tt.codes) || ends != runs {
				t.Errorf("exit code %d after %d runs and %d ends", got, runs, ends)
			}
		})
	}
}

func TestPcapWriter(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.pcap")
	w, err := pcapWriter(name)
	if err != nil {
		t.Fatal(err)
	}
	w([]byte("first frame"))
	w([]byte("second"))
	frames, err := (&pcapfile.Tail{Name: name}).Read()
	if err != nil || len(frames) != 2 || string(frames[0].Data) != "first frame" || string(frames[1].Data) != "second" {
		t.Errorf("got %+v, %v", frames, err)
	}
}
