package rocev2

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// rewriteNeutral changes a packet's headers, and cancels what that does to the ICRC.
func rewriteNeutral(ip []byte, c HeaderChange) {
	n := NeutralOf(c)
	xor := func(off int, b []byte) {
		for i, v := range b {
			ip[off+i] ^= v
		}
	}
	be := binary.BigEndian
	xor(16, c.Dst[:])
	xor(32, be.AppendUint32(nil, uint32(c.QPN)))
	if Opcode(ip[28]).HasRETH() {
		xor(40, be.AppendUint64(nil, c.VA))
		xor(48, be.AppendUint32(nil, c.RKey))
	}
	xor(4, be.AppendUint16(nil, n.ID()))
	xor(20, be.AppendUint16(nil, n.SrcPort()))
}

func drawChange(t *rapid.T, op Opcode) HeaderChange {
	c := HeaderChange{QPN: QPN(rapid.Uint32Range(0, 1<<24-1).Draw(t, "QPN"))}
	binary.BigEndian.PutUint32(c.Dst[:], rapid.Uint32().Draw(t, "dst"))
	if op.HasRETH() {
		c.VA, c.RKey = rapid.Uint64().Draw(t, "VA"), rapid.Uint32().Draw(t, "rkey")
	}
	return c
}

// TestNeutralAnyPacket: packets of each opcode, of any content and length, also of odd
// ones, keep the ICRC that they came with.
func TestNeutralAnyPacket(t *testing.T) {
	for _, op := range knownOpcodes() {
		rapid.Check(t, func(t *rapid.T) {
			payload := rapid.OneOf(rapid.IntRange(0, 64), rapid.IntRange(0, 4096)).Draw(t, "payload")
			ip := drawPacket(t, IPv4Len, IPv4Len+UDPLen+op.HeaderLen()+op.ExtLen()+payload+ICRCLen)
			ip[28] = byte(op)
			PutICRC(ip)
			was := bytes.Clone(ip)
			c := drawChange(t, op)
			rewriteNeutral(ip, c)
			if slow := slowICRC(ip[:len(ip)-ICRCLen]); binary.LittleEndian.Uint32(ip[len(ip)-ICRCLen:]) != slow {
				t.Fatalf("%v, %d bytes of payload, %+v: ICRC is %x, should be %08x", op, payload, c, ip[len(ip)-ICRCLen:], bits.ReverseBytes32(slow))
			}
			rewriteNeutral(ip, c)
			if !bytes.Equal(ip, was) {
				t.Fatalf("the same change twice is not none")
			}
		})
	}
}

func TestNeutralCaptures(t *testing.T) {
	frames := captured(t)
	rapid.Check(t, func(t *rapid.T) {
		for i, f := range frames {
			ip := bytes.Clone(f[EthernetLen:])
			c := drawChange(t, Opcode(ip[28]))
			if rewriteNeutral(ip, c); !VerifyICRC(ip) {
				t.Fatalf("frame %d, %v: %+v leaves a wrong ICRC", i, Opcode(ip[28]), c)
			}
			// What was damaged stays damaged.
			at := rapid.IntRange(0, len(ip)-1).Draw(t, "damaged")
			if ip[at] ^= 1 << (at % 8); VerifyICRC(ip) && (at >= len(ip)-ICRCLen || covered(at, IPv4Len)) {
				t.Fatalf("frame %d: damage of byte %d is not seen", i, at)
			}
		}
	})
}

// TestNeutralOneToOne: each Neutral cancels something, and only none cancels nothing. As
// the map is linear, 32 changes that give the 32 single bits show it.
func TestNeutralOneToOne(t *testing.T) {
	var of [32]HeaderChange // a change whose Neutral has this bit as its highest
	var have [32]bool
	for i := range 64 {
		c := HeaderChange{VA: 1 << i}
		n := NeutralOf(c)
		for n != 0 {
			h := bits.Len32(uint32(n)) - 1
			if !have[h] {
				of[h], have[h] = c, true
				break
			}
			c.VA ^= of[h].VA
			n = NeutralOf(c)
		}
	}
	for i, ok := range have {
		if !ok {
			t.Errorf("no change needs bit %d", i)
		}
	}
	if n := NeutralOf(HeaderChange{}); n != 0 {
		t.Errorf("no change needs %#08x", n)
	}
}

func TestNeutralIsLinear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawChange(t, WriteOnly), drawChange(t, WriteOnly)
		both := HeaderChange{QPN: a.QPN ^ b.QPN, VA: a.VA ^ b.VA, RKey: a.RKey ^ b.RKey}
		for i := range both.Dst {
			both.Dst[i] = a.Dst[i] ^ b.Dst[i]
		}
		if got, want := NeutralOf(both), NeutralOf(a)^NeutralOf(b); got != want {
			t.Fatalf("%#08x, want %#08x", got, want)
		}
	})
}

func BenchmarkNeutralOf(b *testing.B) {
	c := HeaderChange{Dst: [4]byte{0, 0, 0, 7}, QPN: 0x123456, RKey: 0xdeadbeef}
	for b.Loop() {
		c.QPN ^= QPN(NeutralOf(c)) & 0xffffff
	}
}

// TestWorkedExample: what docs/hardware.md has readers check by hand is right.
func TestWorkedExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/hardware.md")
	if err != nil {
		t.Fatal(err)
	}
	var packets [][]byte
	for _, m := range regexp.MustCompile(`(?m)^    (4500[0-9a-f]+)$`).FindAllSubmatch(page, -1) {
		b, err := hex.DecodeString(string(m[1]))
		if err != nil || !VerifyICRC(b) {
			t.Errorf("%s: %v, or its ICRC is wrong", m[1], err)
		}
		packets = append(packets, b)
	}
	if len(packets) != 2 {
		t.Fatalf("%d packets", len(packets))
	}
	ip := bytes.Clone(packets[0])
	c := HeaderChange{Dst: [4]byte{0, 0, 0, 1}, QPN: 0x800010}
	rewriteNeutral(ip, c)
	copy(ip[10:12], []byte{0, 0})
	binary.BigEndian.PutUint16(ip[10:], Checksum(ip[:IPv4Len]))
	if !bytes.Equal(ip, packets[1]) {
		t.Errorf("the copy is\n%x, not\n%x", ip, packets[1])
	}
	for _, row := range []string{
		fmt.Sprintf("| destination | `%x` | `%08x` |", c.Dst, place(0x01000000, 16)),
		fmt.Sprintf("| QPN | `%06x` | `%08x` |", c.QPN, place(0x100080, 33)),
		fmt.Sprintf("| identification | `%04x` | `%08x` |", NeutralOf(c).ID(), place(uint32(bits.ReverseBytes16(NeutralOf(c).ID())), 4)),
		fmt.Sprintf("| source port | `%04x` | `%08x` |", NeutralOf(c).SrcPort(), place(uint32(bits.ReverseBytes16(NeutralOf(c).SrcPort())), 20)),
		fmt.Sprintf("The constant %#08x cancels", uint32(NeutralOf(c))),
	} {
		if !bytes.Contains(page, []byte(row)) {
			t.Errorf("the page does not say %q", row)
		}
	}
}

// TestPortKeys: whichever rkey another becomes, the source port stays.
func TestPortKeys(t *testing.T) {
	seen := map[uint32]bool{}
	for n := range 1 << 16 {
		k := PortKey(uint16(n))
		if change := NeutralOf(HeaderChange{RKey: PortKey(0) ^ k}); change.SrcPort() != 0 || uint16(k) != uint16(n) || seen[k] {
			t.Fatalf("key %d is %#x, and the source port changes by %#x", n, k, change.SrcPort())
		}
		seen[k] = true
	}
}
