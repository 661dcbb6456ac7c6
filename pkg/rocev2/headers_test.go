package rocev2

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// knownOpcodes returns the opcodes of the table.
func knownOpcodes() (ops []Opcode) {
	for o := range 256 {
		if Opcode(o).Known() {
			ops = append(ops, Opcode(o))
		}
	}
	return ops
}

// A decoded is everything that there is in a frame, layer by layer.
type decoded struct {
	eth     Ethernet
	ip      IPv4
	udp     UDP
	h       Headers
	payload []byte
	pad     []byte
}

func decode(frame []byte) (d decoded, err error) {
	pkt, err := d.eth.Parse(frame)
	if err != nil {
		return d, err
	}
	data, err := ParseIPv4UDP(pkt, &d.ip, &d.udp)
	if err != nil {
		return d, err
	}
	data = data[:len(data)-ICRCLen]
	d.payload, err = d.h.Parse(data)
	d.pad = data[len(data)-int(d.h.Pad):]
	return d, err
}

func (d *decoded) encode() []byte {
	b := d.eth.AppendTo(nil)
	b = d.ip.AppendTo(b)
	b = d.udp.AppendTo(b)
	b = d.h.AppendTo(b)
	b = append(b, d.payload...)
	b = append(b, d.pad...)
	b = append(b, make([]byte, ICRCLen)...)
	PutICRC(b[len(d.eth.AppendTo(nil)):])
	return b
}

func TestCapturesReencode(t *testing.T) {
	seen := map[Opcode]int{}
	for i, f := range captured(t) {
		d, err := decode(f)
		if err != nil {
			t.Errorf("frame %d: %v", i, err)
			continue
		}
		if d.eth.EtherType != EtherTypeIPv4 || d.udp.DstPort != UDPPort {
			t.Errorf("frame %d: EtherType %#x, port %d", i, d.eth.EtherType, d.udp.DstPort)
		}
		if diff := cmp.Diff(f, d.encode()); diff != "" {
			t.Errorf("frame %d, %v, changed (-captured +encoded):\n%s", i, d.h.Opcode, diff)
		}
		seen[d.h.Opcode]++
	}
	for _, o := range []Opcode{SendFirst, SendMiddle, SendLast, SendOnly, WriteFirst, WriteMiddle, WriteLast, WriteOnly,
		ReadRequest, ReadRespFirst, ReadRespMiddle, ReadRespLast, ReadRespOnly, Acknowledge, AtomicAck, CompareSwap,
		FetchAdd, UDSendOnly} {
		if seen[o] == 0 {
			t.Errorf("no %v in the captures", o)
		}
	}
}

// What the fields mean, against frames read by hand.
func TestHeadersOfKnownFrames(t *testing.T) {
	bth := func(op Opcode, qpn QPN, ack bool, psn PSN) BTH {
		return BTH{Opcode: op, PKey: DefaultPKey, DestQP: qpn, AckReq: ack, PSN: psn}
	}
	last := bth(SendLast, 0x11, true, 0x741ff0)
	last.Pad = 3
	cnp := BTH{Opcode: CNP, Solicited: true, MigReq: true, TVer: 5, PKey: 0x7fff, FECN: true, BECN: true, Resv6: 0x2a,
		DestQP: 0xabcdef, AckReq: true, Resv7: 0x55, PSN: 0x123456}
	for _, c := range []struct {
		hex     string
		want    Headers
		payload int
	}{
		{"0600ffff000000140025c9b0" + "0000560b43ff4000" + "00000565" + "00000bb9" + "0102",
			Headers{BTH: bth(WriteFirst, 0x14, false, 0x25c9b0), RETH: RETH{VA: 0x560b43ff4000, RKey: 0x565, Length: 3001}}, 2},
		{"0230ffff0000001180741ff0" + "7b000000", Headers{BTH: last}, 1},
		{"1100ffff0000001600833cf8" + "60abcdef",
			Headers{BTH: bth(Acknowledge, 0x16, false, 0x833cf8), AETH: AETH{NakSequence, 0xabcdef}}, 0},
		{"0b00ffff0000001180000001" + "0000000000000001" + "00000002" + "00000000" + "deadbeef",
			Headers{BTH: bth(WriteOnlyImm, 0x11, true, 1), RETH: RETH{1, 2, 0}, Imm: 0xdeadbeef}, 0},
		{"81c57fffeaabcdefd5123456" + "00000000000000000000000000000000", Headers{BTH: cnp}, 0},
		{"6500ffff0000000100000007" + "80010000" + "00000009" + "deadbeef" + "ff",
			Headers{BTH: bth(UDSendOnlyImm, 1, false, 7)}, 13}, // DETH and ImmDt stay in the payload
	} {
		b, err := hex.DecodeString(c.hex)
		if err != nil {
			t.Fatal(err)
		}
		var h Headers
		payload, err := h.Parse(b)
		if err != nil {
			t.Errorf("%s: %v", c.hex, err)
		}
		if diff := cmp.Diff(c.want, h); diff != "" || len(payload) != c.payload {
			t.Errorf("%s: payload of %d bytes, want %d; headers (-want +got):\n%s", c.hex, len(payload), c.payload, diff)
		}
		if again := h.AppendTo(nil); !bytes.Equal(again, b[:h.Len()]) {
			t.Errorf("%s encodes to %x", c.hex, again)
		}
	}
}

func TestHeadersRoundTrip(t *testing.T) {
	ops := knownOpcodes()
	rapid.Check(t, func(t *rapid.T) {
		op := rapid.SampledFrom(ops).Draw(t, "opcode")
		u24 := rapid.Uint32Range(0, Mask24)
		want := Headers{BTH: BTH{
			Opcode: op, Solicited: rapid.Bool().Draw(t, "se"), MigReq: rapid.Bool().Draw(t, "m"),
			TVer: rapid.Uint8Range(0, 15).Draw(t, "tver"), PKey: rapid.Uint16().Draw(t, "pkey"),
			FECN: rapid.Bool().Draw(t, "fecn"), BECN: rapid.Bool().Draw(t, "becn"),
			Resv6: rapid.Uint8Range(0, 63).Draw(t, "resv6"), DestQP: QPN(u24.Draw(t, "qpn")),
			AckReq: rapid.Bool().Draw(t, "a"), Resv7: rapid.Uint8Range(0, 127).Draw(t, "resv7"), PSN: PSN(u24.Draw(t, "psn")),
		}}
		if op.HasRETH() {
			want.RETH = RETH{rapid.Uint64().Draw(t, "va"), rapid.Uint32().Draw(t, "rkey"), rapid.Uint32().Draw(t, "length")}
		}
		if op.HasAETH() {
			want.AETH = AETH{Syndrome(rapid.Uint8().Draw(t, "syndrome")), u24.Draw(t, "msn")}
		}
		if op.HasImm() {
			want.Imm = rapid.Uint32().Draw(t, "imm")
		}
		n := op.ExtLen()
		if op.HasPayload() {
			n += rapid.IntRange(0, 40).Draw(t, "payload")
			want.Pad = uint8(-n & 3)
		}
		data := rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "data")
		b := want.AppendTo([]byte("prefix"))[len("prefix"):]
		if len(b) != op.HeaderLen() || len(b) != want.Len() {
			t.Fatalf("%v: %d bytes of headers, HeaderLen %d, Len %d", op, len(b), op.HeaderLen(), want.Len())
		}
		b = append(append(b, data...), make([]byte, want.Pad)...)
		var got Headers
		payload, err := got.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(payload, data) || got != want {
			t.Fatalf("%v: payload %x, want %x; headers (-want +got):\n%s", op, payload, data, cmp.Diff(want, got))
		}
	})
}

// The length of every opcode's headers, by the specification's list of headers.
func TestOpcodeTable(t *testing.T) {
	const reth, aeth, imm, deth, atomic, atomicAck, ieth = 16, 4, 4, 8, 28, 8, 4
	want := map[Opcode]int{ // all headers after the BTH
		0x00: 0, 0x01: 0, 0x02: 0, 0x03: imm, 0x04: 0, 0x05: imm, 0x06: reth, 0x07: 0, 0x08: 0, 0x09: imm, 0x0a: reth,
		0x0b: reth + imm, 0x0c: reth, 0x0d: aeth, 0x0e: 0, 0x0f: aeth, 0x10: aeth, 0x11: aeth, 0x12: aeth + atomicAck,
		0x13: atomic, 0x14: atomic, 0x16: ieth, 0x17: ieth, 0x64: deth, 0x65: deth + imm, 0x81: 16,
	}
	for i := range 256 {
		o := Opcode(i)
		n, known := want[o]
		if o.Known() != known {
			t.Errorf("%v: Known() = %v", o, o.Known())
		}
		if known && o.HeaderLen()+o.ExtLen() != 12+n || !known && (o.HeaderLen() != 0 || o.ExtLen() != 0) {
			t.Errorf("%v: %d bytes of headers and %d in the payload, want %d", o, o.HeaderLen(), o.ExtLen(), 12+n)
		}
		parts := BTHLen
		for _, p := range []struct {
			has bool
			len int
		}{{o.HasRETH(), RETHLen}, {o.HasAETH(), AETHLen}, {o.HasImm(), ImmDtLen}, {o == CNP, CNPPadLen}} {
			if p.has {
				parts += p.len
			}
		}
		if known && o.HeaderLen() != parts {
			t.Errorf("%v: HeaderLen() = %d, but its headers have %d", o, o.HeaderLen(), parts)
		}
	}
	for o, n := range map[Opcode]string{SendFirst: "SEND_FIRST", WriteOnlyImm: "WRITE_ONLY_IMM", CNP: "CNP", 0x15: "OPCODE_0x15"} {
		if o.String() != n {
			t.Errorf("opcode %#x is called %s, want %s", uint8(o), o, n)
		}
	}
	for o, want := range map[Opcode][5]bool{ // first, last, send, write, request
		SendFirst: {true, false, true, false, true}, SendMiddle: {false, false, true, false, true},
		SendLastImm: {false, true, true, false, true}, WriteOnly: {true, true, false, true, true},
		WriteLast: {false, true, false, true, true}, Acknowledge: {}, CNP: {}, ReadRespMiddle: {},
		ReadRequest: {true, true, false, false, true}, ReadRespOnly: {true, true, false, false, false},
	} {
		if got := [5]bool{o.IsFirst(), o.IsLast(), o.IsSend(), o.IsWrite(), o.IsRequest()}; got != want {
			t.Errorf("%v: first, last, send, write, request = %v, want %v", o, got, want)
		}
	}
}

func TestHeadersParseErrors(t *testing.T) {
	var h Headers
	for _, op := range knownOpcodes() {
		whole := make([]byte, op.HeaderLen()+op.ExtLen())
		whole[0] = byte(op)
		if _, err := h.Parse(whole); err != nil {
			t.Errorf("%v: %v", op, err)
		}
		for n := range whole {
			if _, err := h.Parse(whole[:n]); !errors.Is(err, ErrTruncated) {
				t.Errorf("%v, %d bytes of %d: %v, want ErrTruncated", op, n, len(whole), err)
			}
		}
		whole[1] = 1 << 4 // one byte of padding, which is not there
		if _, err := h.Parse(whole); !errors.Is(err, ErrTruncated) {
			t.Errorf("%v without its padding: %v, want ErrTruncated", op, err)
		}
		_, err := h.Parse(append(whole, 0))
		if op.HasPayload() && err != nil || !op.HasPayload() && !errors.Is(err, ErrFormat) {
			t.Errorf("%v with padding: %v", op, err)
		}
		whole[1] = 0
		_, err = h.Parse(append(whole, 0))
		if op.HasPayload() && err != nil || !op.HasPayload() && !errors.Is(err, ErrFormat) {
			t.Errorf("%v with payload: %v", op, err)
		}
	}
	bad := append([]byte{0x15}, make([]byte, 11)...)
	bad[11] = 9
	if _, err := h.Parse(bad); !errors.Is(err, ErrOpcode) || h.PSN != 9 {
		t.Errorf("opcode 0x15: %v, PSN %d; want ErrOpcode and PSN 9", err, h.PSN)
	}
	if got := h.AppendTo(nil); !bytes.Equal(got, bad) || h.Len() != BTHLen {
		t.Errorf("opcode 0x15 encodes to %x, Len() = %d", got, h.Len())
	}
}

func TestCNP(t *testing.T) {
	h := CNPHeaders(0x123456)
	if want := "8100ffff4012345600000000" + "00000000000000000000000000000000"; hex.EncodeToString(h.AppendTo(nil)) != want {
		t.Errorf("CNP is %x, want %s", h.AppendTo(nil), want)
	}
	if n := IPv4Len + UDPLen + h.Len() + ICRCLen; n != 60 {
		t.Errorf("the IPv4 packet of a CNP has %d bytes, want 60", n)
	}
	b := h.AppendTo(nil)
	var got Headers
	if payload, err := got.Parse(b); err != nil || len(payload) != 0 || got != h {
		t.Errorf("parsed: %+v, %v", got, err)
	}
	for n := BTHLen; n < len(b); n++ {
		if _, err := got.Parse(b[:n]); !errors.Is(err, ErrFormat) {
			t.Errorf("CNP of %d bytes: %v, want ErrFormat", n, err)
		}
	}
	if _, err := got.Parse(append(b, 0)); !errors.Is(err, ErrFormat) {
		t.Errorf("CNP with payload: %v, want ErrFormat", err)
	}
}

// Values that are too wide for their fields do not spill into others.
func TestHeadersCutToWidth(t *testing.T) {
	h := Headers{BTH: BTH{Opcode: Acknowledge, Pad: 0xff, TVer: 0xff, Resv6: 0xff, DestQP: 0xffffffff, Resv7: 0xff, PSN: 0xffffffff},
		AETH: AETH{Syndrome: 0, MSN: 0xffffffff}}
	if got, want := hex.EncodeToString(h.AppendTo(nil)), "113f00003fffffff7fffffff00ffffff"; got != want {
		t.Errorf("encoded %s, want %s", got, want)
	}
}
