package rocev2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"
)

func drawIPv4(t *rapid.T, payload int) IPv4 {
	h := IPv4{TOS: rapid.Uint8().Draw(t, "tos"), ID: rapid.Uint16().Draw(t, "id"),
		Flags: rapid.SampledFrom([]uint8{0, DontFragment}).Draw(t, "flags"), TTL: rapid.Uint8().Draw(t, "ttl"), Protocol: ProtocolUDP,
		Src: [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "src")), Dst: [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "dst"))}
	if n := 4 * rapid.IntRange(0, 10).Draw(t, "options/4"); n > 0 {
		h.Options = bytes.Repeat([]byte{1}, n) // no-operation
	}
	h.TotalLen = uint16(h.Len() + payload)
	return h
}

// An independent implementation must write and read the same.
func TestFramingEqualsGopacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// From 18 bytes on, because gopacket pads Ethernet frames to 60.
		payload := rapid.SliceOfN(rapid.Byte(), 18, 80).Draw(t, "payload")
		ip := drawIPv4(t, UDPLen+len(payload))
		udp := UDP{SrcPort: rapid.Uint16().Draw(t, "sport"), DstPort: UDPPort, Length: uint16(UDPLen + len(payload))}
		eth := Ethernet{Dst: [6]byte{2, 0, 0, 0, 0, 1}, Src: [6]byte{2, 0, 0, 0, 0, 2}, EtherType: EtherTypeIPv4}
		if eth.Tagged = rapid.Bool().Draw(t, "tagged"); eth.Tagged {
			eth.TCI = rapid.Uint16().Draw(t, "tci")
		}
		got := append(udp.AppendTo(ip.AppendTo(eth.AppendTo(nil))), payload...)

		ls := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: eth.Src[:], DstMAC: eth.Dst[:], EthernetType: layers.EthernetTypeIPv4}}
		if eth.Tagged {
			ls[0].(*layers.Ethernet).EthernetType = layers.EthernetTypeDot1Q
			ls = append(ls, &layers.Dot1Q{Priority: uint8(eth.TCI >> 13), DropEligible: eth.TCI>>12&1 == 1,
				VLANIdentifier: eth.TCI & 0xfff, Type: layers.EthernetTypeIPv4})
		}
		gip := &layers.IPv4{Version: 4, TOS: ip.TOS, Id: ip.ID, TTL: ip.TTL, Protocol: layers.IPProtocolUDP,
			SrcIP: net.IP(ip.Src[:]), DstIP: net.IP(ip.Dst[:])}
		if ip.Flags == DontFragment {
			gip.Flags = layers.IPv4DontFragment
		}
		for range ip.Options {
			gip.Options = append(gip.Options, layers.IPv4Option{OptionType: 1, OptionLength: 1})
		}
		// The UDP header goes to gopacket in bytes: it would compute a checksum.
		raw := append(udp.AppendTo(nil), payload...)
		ls = append(ls, gip, gopacket.Payload(raw))
		buf := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(buf.Bytes(), got); diff != "" {
			t.Fatalf("frame (-gopacket +ours):\n%s", diff)
		}
		var gudp layers.UDP
		if err := gudp.DecodeFromBytes(raw, gopacket.NilDecodeFeedback); err != nil || uint16(gudp.SrcPort) != udp.SrcPort ||
			gudp.Length != udp.Length || gudp.DstPort != UDPPort || gudp.Checksum != 0 || !bytes.Equal(gudp.Payload, payload) {
			t.Fatalf("gopacket reads %+v, %v", gudp, err)
		}

		var eth2 Ethernet
		var ip2 IPv4
		var udp2 UDP
		p, err := eth2.Parse(append(got, 0, 0, 0)) // with padding
		if err == nil {
			p, err = ParseIPv4UDP(p, &ip2, &udp2)
		}
		if err != nil || eth2 != eth || udp2 != udp || !bytes.Equal(p, payload) || cmp.Diff(ip, ip2) != "" {
			t.Fatalf("parsed %+v %+v %+v, %v", eth2, ip2, udp2, err)
		}
		if cap(p) != len(p) {
			t.Fatal("appending to the payload would write over what follows the packet")
		}
	})
}

func TestIPv4AnyOptions(t *testing.T) {
	for n := range 50 {
		h := IPv4{Options: bytes.Repeat([]byte{1}, n)}
		b := h.AppendTo(nil)
		if want := 20 + (min(n, 40)+3)/4*4; len(b) != want || h.Len() != want || int(b[0]&0xf)*4 != want {
			t.Errorf("%d bytes of options: header of %d, Len() = %d, IHL %d; want %d", n, len(b), h.Len(), b[0]&0xf, want)
		}
		if Checksum(b) != 0 {
			t.Errorf("%d bytes of options: wrong checksum", n)
		}
	}
}

// A header whose checksum is widely printed as an example.
func TestChecksum(t *testing.T) {
	b := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	if got := Checksum(b); got != 0xb861 {
		t.Errorf("checksum %#x, want 0xb861", got)
	}
	if got := Checksum(bytes.Repeat([]byte{0xff}, 60)); got != 0 {
		t.Errorf("checksum of ones %#x, want 0", got)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 70 { // against the definition
		b, sum := make([]byte, n), 0
		for i := range b {
			b[i] = byte(r.Uint32() | uint32(n%3)*0x7f) // many ones, for carries
			sum += int(b[i]) << (8 * (1 - i%2))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		if got := Checksum(b); got != ^uint16(sum) {
			t.Errorf("checksum of %x: %#x, want %#x", b, got, ^uint16(sum))
		}
	}
}

func TestParseIPv4UDPErrors(t *testing.T) {
	whole := randomPacket(16)
	edit := func(f func(b []byte) []byte) []byte {
		b := f(bytes.Clone(whole))
		if len(b) >= 20 {
			b[10], b[11] = 0, 0
			if n := int(b[0]&0xf) * 4; n <= len(b) {
				binary.BigEndian.PutUint16(b[10:], Checksum(b[:n]))
			}
		}
		return b
	}
	set := func(at int, v ...byte) []byte {
		return edit(func(b []byte) []byte { copy(b[at:], v); return b })
	}
	var ip IPv4
	var udp UDP
	if _, err := ParseIPv4UDP(set(0, 0x45), &ip, &udp); err != nil {
		t.Fatal(err)
	}
	n := byte(len(whole))
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"empty":               {nil, ErrTruncated},
		"half a header":       {whole[:19], ErrTruncated},
		"version 6":           {set(0, 0x65), ErrNotIPv4},
		"IHL 4":               {set(0, 0x44), ErrFormat},
		"IHL past the end":    {edit(func(b []byte) []byte { b[0] = 0x4f; return b[:56] }), ErrTruncated},
		"total below header":  {set(2, 0, 19), ErrFormat},
		"total past the end":  {set(2, 0, n+1), ErrTruncated},
		"cut off":             {whole[:len(whole)-1], ErrTruncated},
		"more fragments":      {set(6, 0x20), ErrFragment},
		"last fragment":       {set(6, 0x00, 0x01), ErrFragment},
		"TCP":                 {set(9, 6), ErrNotUDP},
		"no room for UDP":     {set(2, 0, 27), ErrTruncated},
		"UDP length too long": {set(24, 0, n-19), ErrFormat},
		"UDP length short":    {set(24, 0, n-21), ErrFormat},
		"UDP length 0":        {set(24, 0, 0), ErrFormat},
	} {
		if p, err := ParseIPv4UDP(c.b, &ip, &udp); !errors.Is(err, c.want) || p != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := ip.Parse(set(0, 0x44)); !errors.Is(err, ErrFormat) {
		t.Errorf("IPv4 header of 16 bytes: %v, want ErrFormat", err)
	}
	for bit := range 160 { // the checksum covers the header
		b := bytes.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := ParseIPv4UDP(b, &ip, &udp); err == nil {
			t.Errorf("bit %d of header byte %d flipped: no error", bit%8, bit/8)
		} else if bit >= 8 && !errors.Is(err, ErrChecksum) {
			t.Errorf("bit %d of header byte %d flipped: %v, want ErrChecksum", bit%8, bit/8, err)
		}
	}
}

func TestEthernetErrors(t *testing.T) {
	tagged := (&Ethernet{Tagged: true, TCI: 5, EtherType: EtherTypeARP}).AppendTo(nil)
	var h Ethernet
	for n := range tagged {
		if _, err := h.Parse(tagged[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("%d bytes of a tagged header: %v, want ErrTruncated", n, err)
		}
	}
	twice := append((&Ethernet{Tagged: true, EtherType: EtherTypeVLAN}).AppendTo(nil), 0, 5, 8, 0)
	if _, err := h.Parse(twice); !errors.Is(err, ErrFormat) {
		t.Errorf("two tags: %v, want ErrFormat", err)
	}
	if p, err := h.Parse(tagged); err != nil || len(p) != 0 || h.TCI != 5 || h.EtherType != EtherTypeARP {
		t.Errorf("tagged header: %+v, %v", h, err)
	}
	if _, err := h.Parse(make([]byte, 14)); err != nil || h.Tagged || h.TCI != 0 {
		t.Errorf("an untagged header after a tagged one: %+v, %v", h, err)
	}
}
