package rocev2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// addPackets seeds a fuzzer with the captured IPv4 packets.
func addPackets(f *testing.F, add func(ip []byte)) {
	for _, frame := range captured(f) {
		add(frame[EthernetLen:])
	}
}

func FuzzHeadersParse(f *testing.F) {
	addPackets(f, func(ip []byte) { f.Add(ip[28 : len(ip)-ICRCLen]) })
	for _, op := range knownOpcodes() {
		f.Add(append([]byte{byte(op)}, make([]byte, 47)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Headers
		payload, err := h.Parse(b)
		if err != nil {
			if !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrOpcode) && !errors.Is(err, ErrFormat) {
				t.Fatalf("error %v wraps none of the package's", err)
			}
			return
		}
		again := h.AppendTo(nil)
		want := b[:len(again)]
		if h.Opcode == CNP { // whose reserved bytes are not kept
			want = append(bytes.Clone(b[:BTHLen]), make([]byte, CNPPadLen)...)
		}
		if !bytes.Equal(again, want) {
			t.Fatalf("%x decodes to %+v, which encodes to %x", b, h, again)
		}
		if len(again)+len(payload)+int(h.Pad) != len(b) || len(payload) > 0 && &payload[0] != &b[len(again)] {
			t.Fatalf("%d bytes of headers, %d of payload, %d of padding in %d", len(again), len(payload), h.Pad, len(b))
		}
	})
}

func FuzzParseIPv4UDP(f *testing.F) {
	addPackets(f, func(ip []byte) { f.Add(ip) })
	f.Fuzz(func(t *testing.T, b []byte) {
		// Most mutations break the checksum; fix it so that the code after it is reached, too.
		if len(b) > 20 && b[len(b)-1]&1 == 0 {
			if n := int(b[0]&0xf) * 4; n >= 20 && n <= len(b) {
				b = bytes.Clone(b)
				b[10], b[11] = 0, 0
				binary.BigEndian.PutUint16(b[10:], Checksum(b[:n]))
			}
		}
		var ip IPv4
		var udp UDP
		payload, err := ParseIPv4UDP(b, &ip, &udp)
		if err != nil {
			for _, e := range []error{ErrTruncated, ErrFormat, ErrChecksum, ErrFragment, ErrNotIPv4, ErrNotUDP} {
				if errors.Is(err, e) {
					return
				}
			}
			t.Fatalf("error %v wraps none of the package's", err)
		}
		again := append(udp.AppendTo(ip.AppendTo(nil)), payload...)
		if b[10] == 0xff && b[11] == 0xff { // the other way to write a checksum of zero
			again[10], again[11] = 0xff, 0xff
		}
		if !bytes.Equal(again, b[:ip.TotalLen]) {
			t.Fatalf("%x becomes %x", b[:ip.TotalLen], again)
		}
	})
}

func FuzzVerifyICRC(f *testing.F) {
	addPackets(f, func(ip []byte) { f.Add(ip) })
	f.Fuzz(func(t *testing.T, ip []byte) {
		n := len(ip) - ICRCLen
		want := len(ip) > 0 && ip[0]&0xf >= 5 && n >= int(ip[0]&0xf)*4+20 && binary.LittleEndian.Uint32(ip[n:]) == slowICRC(ip[:n])
		if got := VerifyICRC(ip); got != want {
			t.Fatalf("VerifyICRC(%x) = %v, want %v", ip, got, want)
		}
		if len(ip) > 0 && ICRC(ip) != slowICRC(ip) {
			t.Fatalf("ICRC(%x) = %#x, want %#x", ip, ICRC(ip), slowICRC(ip))
		}
	})
}
