package framelink

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/mcrdma/mcrdma/internal/pcapfile"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
	"github.com/mcrdma/mcrdma/tests/pipe"
)

const (
	ethAt = 0
	ipAt  = rocev2.EthernetLen
	udpAt = ipAt + rocev2.IPv4Len
	bthAt = udpAt + rocev2.UDPLen
)

// goodFrame returns a frame as 10.0.0.2 sends it to 10.0.0.1.
func goodFrame(t testing.TB) []byte {
	t.Helper()
	c, _ := pipe.New(pipe.Config{})
	h := newHost(t, c, Config{Prefix: prefix("10.0.0.2/24")})
	tx := packet(addr("10.0.0.1"), 5, "payload.")
	f, err := h.build(nil, &tx)
	if err != nil {
		t.Fatal(err)
	}
	mac := DefaultMAC(tx.Dst)
	copy(f, mac[:])
	return f
}

// Outgoing frames, decoded by an independent decoder.
func TestFrameOnTheWire(t *testing.T) {
	f := goodFrame(t)
	p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	ip := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if eth.SrcMAC.String() != "02:00:0a:00:00:02" || eth.DstMAC.String() != "02:00:0a:00:00:01" {
		t.Errorf("Ethernet: %v", eth)
	}
	if ip.SrcIP.String() != "10.0.0.2" || ip.DstIP.String() != "10.0.0.1" || ip.TTL != 64 || ip.TOS != 0x6a || ip.Id != 0 ||
		ip.Flags != layers.IPv4DontFragment || int(ip.Length) != len(f)-ipAt || rocev2.Checksum(f[ipAt:udpAt]) != 0 {
		t.Errorf("IPv4: %+v", ip)
	}
	if udp.DstPort != 4791 || uint16(udp.SrcPort) != sourcePort(5) || int(udp.Length) != len(f)-udpAt || udp.Checksum != 0 {
		t.Errorf("UDP: %+v", udp)
	}
	if n := len(udp.Payload); n != 12+8+4 || string(udp.Payload[12:20]) != "payload." || !rocev2.VerifyICRC(f[ipAt:]) {
		t.Errorf("payload of %d bytes: % x", n, udp.Payload)
	}
}

// sealIP makes the header checksum right again after a change, seal that and
// the ICRC.
func sealIP(f []byte) []byte {
	ip := f[ipAt:]
	put16(ip[10:], 0)
	put16(ip[10:], int(rocev2.Checksum(ip[:int(ip[0]&0xf)*4])))
	return f
}

func seal(f []byte) []byte {
	rocev2.PutICRC(sealIP(f)[ipAt:][:binary.BigEndian.Uint16(f[ipAt+2:])])
	return f
}

func put16(b []byte, v int) { binary.BigEndian.PutUint16(b, uint16(v)) }

// addLen changes the lengths in the IPv4 and UDP headers by n.
func addLen(f []byte, n int) []byte {
	put16(f[ipAt+2:], int(binary.BigEndian.Uint16(f[ipAt+2:]))+n)
	put16(f[udpAt+4:], int(binary.BigEndian.Uint16(f[udpAt+4:]))+n)
	return f
}

func withTag(f []byte, tci ...uint16) []byte {
	out := bytes.Clone(f[:12])
	for _, v := range tci {
		out = append(out, 0x81, 0, byte(v>>8), byte(v))
	}
	return append(out, f[12:]...)
}

func set(f []byte, at int, v ...byte) []byte {
	copy(f[at:], v)
	return f
}

// Each frame is followed by a good one, which must come up, alone; of all
// counters exactly one counts the bad frame.
func TestBadFrames(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(f []byte) []byte
		counter string
	}{
		{"empty", func(f []byte) []byte { return nil }, "rx_drop_truncated"},
		{"half an Ethernet header", func(f []byte) []byte { return f[:13] }, "rx_drop_truncated"},
		{"half a tag", func(f []byte) []byte { return withTag(f, 0)[:15] }, "rx_drop_truncated"},
		{"VLAN", func(f []byte) []byte { return withTag(f, 7) }, "rx_drop_vlan"},
		{"two tags", func(f []byte) []byte { return withTag(f, 0, 0) }, "rx_drop_vlan"},
		{"to another MAC address", func(f []byte) []byte { return set(f, ethAt+5, 9) }, "rx_drop_mac"},
		{"to a group", func(f []byte) []byte { return set(f, ethAt, 1, 0, 0x5e) }, "rx_drop_mac"},
		{"IPv4 to all", func(f []byte) []byte { return set(f, ethAt, broadcast[:]...) }, "rx_drop_mac"},
		{"from a group", func(f []byte) []byte { return set(f, ethAt+6, 3) }, "rx_drop_mac"},
		{"IPv6", func(f []byte) []byte { return set(f, 12, 0x86, 0xdd) }, "rx_drop_not_ipv4"},
		{"length field", func(f []byte) []byte { return set(f, 12, 0, 50) }, "rx_drop_not_ipv4"},
		{"version", func(f []byte) []byte { return seal(set(f, ipAt, 0x65)) }, "rx_drop_not_ipv4"},
		{"ARP, malformed", func(f []byte) []byte { return set(f, 12, 8, 6) }, "rx_drop_arp"},
		{"ARP to another MAC address", func(f []byte) []byte { return set(set(f, 12, 8, 6), ethAt+5, 9) }, "rx_drop_mac"},
		{"no IPv4 header", func(f []byte) []byte { return f[:ipAt] }, "rx_drop_truncated"},
		{"half an IPv4 header", func(f []byte) []byte { return f[:ipAt+19] }, "rx_drop_truncated"},
		{"header length 16", func(f []byte) []byte { return set(f, ipAt, 0x44) }, "rx_drop_malformed"},
		{"header length 60", func(f []byte) []byte { return set(f, ipAt, 0x4f)[:ipAt+59] }, "rx_drop_truncated"},
		{"header checksum", func(f []byte) []byte { return set(f, ipAt+8, 63) }, "rx_drop_checksum"},
		{"total length too small", func(f []byte) []byte {
			put16(f[ipAt+2:], 19)
			return sealIP(f)
		}, "rx_drop_malformed"},
		{"total length too large", func(f []byte) []byte { return f[:len(f)-1] }, "rx_drop_truncated"},
		{"first fragment", func(f []byte) []byte { return seal(set(f, ipAt+6, 0x20, 0)) }, "rx_drop_fragment"},
		{"later fragment", func(f []byte) []byte { return seal(set(f, ipAt+6, 0, 1)) }, "rx_drop_fragment"},
		{"to another address", func(f []byte) []byte { return seal(set(f, ipAt+19, 9)) }, "rx_drop_not_ours"},
		{"to the broadcast address", func(f []byte) []byte { return seal(set(f, ipAt+19, 255)) }, "rx_drop_not_ours"},
		{"from ourselves", func(f []byte) []byte { return seal(set(f, ipAt+15, 1)) }, "rx_drop_source"},
		{"from the broadcast address", func(f []byte) []byte { return seal(set(f, ipAt+15, 255)) }, "rx_drop_source"},
		{"from the network address", func(f []byte) []byte { return seal(set(f, ipAt+15, 0)) }, "rx_drop_source"},
		{"from a multicast address", func(f []byte) []byte { return seal(set(f, ipAt+12, 224)) }, "rx_drop_source"},
		{"from loopback", func(f []byte) []byte { return seal(set(f, ipAt+12, 127)) }, "rx_drop_source"},
		{"from nowhere", func(f []byte) []byte { return seal(set(f, ipAt+12, 0, 0, 0, 0)) }, "rx_drop_source"},
		{"TCP", func(f []byte) []byte { return seal(set(f, ipAt+9, 6)) }, "rx_drop_protocol"},
		{"ICMP", func(f []byte) []byte { return seal(set(f, ipAt+9, 1)) }, "rx_drop_protocol"},
		{"no UDP header", func(f []byte) []byte {
			put16(f[ipAt+2:], 20)
			return sealIP(f)
		}, "rx_drop_truncated"},
		{"half a UDP header", func(f []byte) []byte {
			put16(f[ipAt+2:], 27)
			return sealIP(f)
		}, "rx_drop_truncated"},
		{"UDP length too small", func(f []byte) []byte {
			put16(f[udpAt+4:], len(f)-udpAt-4)
			return seal(f)
		}, "rx_drop_malformed"},
		{"UDP length too large", func(f []byte) []byte {
			put16(f[udpAt+4:], len(f)-udpAt+1)
			return seal(f)
		}, "rx_drop_malformed"},
		{"another port", func(f []byte) []byte { return seal(set(f, udpAt+2, 0x12, 0xb8)) }, "rx_drop_port"},
		{"no room for BTH and ICRC", func(f []byte) []byte { return seal(addLen(f, -9)) }, "rx_drop_truncated"},
		{"ICRC", func(f []byte) []byte { return set(f, len(f)-1, f[len(f)-1]^1) }, "rx_drop_icrc"},
		{"payload", func(f []byte) []byte { return set(f, bthAt+12, 'P') }, "rx_drop_icrc"},
		{"BTH", func(f []byte) []byte { return set(f, bthAt+7, 18) }, "rx_drop_icrc"},
		{"cut short, lengths right", func(f []byte) []byte { return sealIP(addLen(f, -4))[:len(f)-4] }, "rx_drop_icrc"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wire, c := pipe.New(pipe.Config{})
			h := newHost(t, c, Config{Prefix: prefix("10.0.0.1/24")})
			before := counters(h)
			if err := wire.Send([][]byte{tc.change(goodFrame(t)), goodFrame(t)}); err != nil {
				t.Fatal(err)
			}
			rx := make([]link.Rx, 8)
			n, err := h.Recv(rx)
			if n != 1 || err != nil || string(rx[0].Data[rocev2.BTHLen:]) != "payload." || rx[0].Src != addr("10.0.0.2") {
				t.Errorf("Recv = %d, %v, %q from %v", n, err, rx[0].Data, rx[0].Src)
			}
			want := map[string]uint64{"rx_frames": 2, "rx_roce": 1, tc.counter: 1}
			if tc.counter == "rx_drop_arp" {
				want["rx_arp"] = 1
			}
			rose := map[string]uint64{}
			for k, v := range counters(h) {
				if v != before[k] {
					rose[k] = v - before[k]
				}
			}
			if diff := cmp.Diff(want, rose); diff != "" {
				t.Errorf("counters (-want +got):\n%s", diff)
			}
		})
	}
}

// What routers and switches may do to a frame, and what senders may do that we
// do not.
func TestGoodFrames(t *testing.T) {
	for name, change := range map[string]func(f []byte) []byte{
		"as sent":       func(f []byte) []byte { return f },
		"padded":        func(f []byte) []byte { return append(f, make([]byte, 20)...) },
		"priority tag":  func(f []byte) []byte { return withTag(f, 3<<13) },
		"fragmentable":  func(f []byte) []byte { return seal(set(f, ipAt+6, 0)) },
		"TTL 0":         func(f []byte) []byte { return seal(set(f, ipAt+8, 0)) },
		"UDP checksum":  func(f []byte) []byte { return set(f, udpAt+6, 0xab, 0xcd) },
		"from far away": func(f []byte) []byte { return seal(set(f, ipAt+12, 192, 0, 2, 255)) },
		"FECN":          func(f []byte) []byte { return set(f, bthAt+4, 0x80) },
		"options": func(f []byte) []byte {
			f = bytes.Join([][]byte{f[:udpAt], {7, 4, 4, 0, 1, 1, 1, 0}, f[udpAt:]}, nil)
			f[ipAt] = 0x47
			put16(f[ipAt+2:], len(f)-ipAt)
			return seal(f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := pipe.New(pipe.Config{})
			h := newHost(t, c, Config{Prefix: prefix("10.0.0.1/24")})
			f := change(goodFrame(t))
			var rx link.Rx
			if got := h.receive(f, &rx); got != rxPackets {
				t.Fatalf("counted as %s", counterNames[got])
			}
			if string(rx.Data[rocev2.BTHLen:]) != "payload." || rx.TOS != 0x6a || !rx.Src.Is4() {
				t.Errorf("got %+v", rx)
			}
		})
	}
}

// Every RoCEv2 packet that the Linux kernel sent in the captures is taken by
// the host that it was for, and none with a bit changed that the ICRC covers.
func TestKernelCaptures(t *testing.T) {
	files, err := filepath.Glob("../../../rocev2/testdata/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatal("no captures", err)
	}
	total := 0
	for _, file := range files {
		fs, err := (&pcapfile.Tail{Name: file}).Read()
		if err != nil {
			t.Fatal(err)
		}
		for i, captured := range fs {
			f := captured.Data
			var eth rocev2.Ethernet
			var ip rocev2.IPv4
			var udp rocev2.UDP
			p, err := eth.Parse(f)
			if err != nil {
				t.Fatal(err)
			}
			payload, err := rocev2.ParseIPv4UDP(p, &ip, &udp)
			if err != nil || udp.DstPort != rocev2.UDPPort {
				continue // ARP, IPv6 neighbor discovery and the like
			}
			total++
			c, _ := pipe.New(pipe.Config{})
			h := newHost(t, c, Config{Prefix: netip.PrefixFrom(netip.AddrFrom4(ip.Dst), 24), MAC: eth.Dst})
			var rx link.Rx
			if got := h.receive(f, &rx); got != rxPackets {
				t.Errorf("%s, frame %d: counted as %s", file, i, counterNames[got])
				continue
			}
			want := link.Rx{Src: netip.AddrFrom4(ip.Src), TOS: ip.TOS, Data: payload[:len(payload)-4]}
			if rx.Src != want.Src || rx.TOS != want.TOS || !bytes.Equal(rx.Data, want.Data) {
				t.Errorf("%s, frame %d: got %+v, want %+v", file, i, rx, want)
			}
			f[ipAt+int(ip.TotalLen)-1-i%8] ^= 1 << (i % 8)
			if got := h.receive(f, &rx); got != rxDropICRC {
				t.Errorf("%s, frame %d, a bit changed: counted as %s", file, i, counterNames[got])
			}
		}
	}
	if total < 50 {
		t.Errorf("%d packets in the captures, expected more", total)
	}
}

// sink is a Conn that discards everything.
type sink struct{}

func (sink) Send([][]byte) error        { return nil }
func (sink) Recv([][]byte) (int, error) { select {} }
func (sink) Counters(map[string]uint64) {}
func (sink) Close() error               { return nil }

// FuzzFrame feeds arbitrary bytes to the receive path, as they are and with
// their checksums put right, so that the fuzzer comes past those.
func FuzzFrame(f *testing.F) {
	good := goodFrame(f)
	f.Add(good, false)
	f.Add(good, true)
	f.Add(withTag(good, 0), false)
	arpFrame := append(bytes.Clone(broadcast[:]), 2, 0, 10, 0, 0, 2, 8, 6)
	f.Add(append(arpFrame, arpPacket(arpRequest, macAddr{2, 0, 10, 0, 0, 2}, ipAddr{10, 0, 0, 2}, macAddr{}, ipAddr{10, 0, 0, 1})...), false)
	h := newHost(f, sink{}, Config{Prefix: prefix("10.0.0.1/24"), Gateway: addr("10.0.0.254")})
	f.Fuzz(func(t *testing.T, frame []byte, fix bool) {
		frame = bytes.Clone(frame)
		if n := len(frame) - ipAt; fix && n >= rocev2.IPv4Len && int(frame[ipAt]&0xf)*4 <= n &&
			int(binary.BigEndian.Uint16(frame[ipAt+2:])) <= n {
			seal(frame)
		}
		before := bytes.Clone(frame)
		var rx link.Rx
		c := h.receive(frame, &rx)
		if c < rxPackets || c >= numCounters {
			t.Fatalf("counted as %d", c)
		}
		if (c == rxPackets) != (rx.Data != nil) {
			t.Fatalf("%s, but data %v", counterNames[c], rx.Data)
		}
		if c == rxPackets && (len(rx.Data) < rocev2.BTHLen || !bytes.Contains(frame, rx.Data) || !rx.Src.Is4()) {
			t.Fatalf("passed up %+v", rx)
		}
		if !bytes.Equal(before, frame) {
			t.Fatal("the frame was changed")
		}
	})
}
