package links

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/mcrdma/mcrdma/internal/routing/liveness"
	"github.com/mcrdma/mcrdma/internal/switchspec"
)

var sample = liveness.Hello{State: liveness.Up, Poll: true, DetectMult: 3, My: 0x01020304, Your: 0x05060708,
	DesiredMinTx: 50 * time.Millisecond, RequiredMinRx: 50 * time.Millisecond}

// The bytes on the wire, which agents of other versions must read too.
func TestHelloBytes(t *testing.T) {
	got := appendHello([]byte{0xee}, switchspec.MAC{2, 0, 0, 0, 0, 1}, sample, 0x109, 30*time.Second, "torÄ", 0)
	want := []byte{0xee,
		0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xb5,
		0xa2,
		0x20, 0xe0, 3, 24, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0xc3, 0x50, 0, 0, 0xc3, 0x50, 0, 0, 0, 0,
		0x01, 0x09, 30, 5, 't', 'o', 'r', 0xc3, 0x84,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%x\nwant\n%x", got, want)
	}
	if len(got) != 61 {
		t.Errorf("%d bytes, want 60 appended", len(got))
	}
	h, err := parseHello(got[1:])
	if err != nil || h.src != (switchspec.MAC{2, 0, 0, 0, 0, 1}) || h.live != sample || h.port != 0x109 || h.hold != 30*time.Second || string(h.name) != "torÄ" {
		t.Errorf("parsed %+v, %v", h, err)
	}
}

// A number stands behind the name, where older agents read nothing.
func TestHelloNumber(t *testing.T) {
	for _, name := range []string{"torA", strings.Repeat("n", MaxName)} {
		for _, number := range []uint32{0, 1, 0x01020304, 1<<32 - 1} {
			f := appendHello(nil, switchspec.MAC{2, 0, 0, 0, 0, 1}, sample, 9, 0, name, number)
			if h, err := parseHello(f); err != nil || h.number != number || string(h.name) != name {
				t.Errorf("%#x is read as %#x, %q, %v", number, h.number, h.name, err)
			}
			at := nameAt + len(name)
			if want := binary.BigEndian.AppendUint32([]byte{0xb7}, number); number > 0 && !bytes.Equal(f[at:at+5], want) {
				t.Errorf("%#x is %x", number, f[at:])
			}
		}
	}
	f := appendHello(nil, switchspec.MAC{2, 0, 0, 0, 0, 1}, sample, 9, 0, strings.Repeat("n", MaxName), 0)
	if h, err := parseHello(append(f, 1, 2, 3, 4, 5)); err != nil || h.number != 0 {
		t.Errorf("what a link adds is read as %#x, %v", h.number, err)
	}
}

func TestParseHelloRefuses(t *testing.T) {
	long := strings.Repeat("n", MaxName)
	good := appendHello(nil, switchspec.MAC{2, 0, 0, 0, 0, 1}, sample, 9, 0, long, 0)
	if h, err := parseHello(good); err != nil || string(h.name) != long || len(good) != nameAt+MaxName {
		t.Fatalf("the longest name: %v", err)
	}
	for n := range good {
		if _, err := parseHello(good[:n]); !errors.Is(err, ErrFrame) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := parseHello(append(slices.Clone(good), 1, 2, 3)); err != nil {
		t.Errorf("with more behind: %v", err)
	}
	for what, change := range map[string]func(f []byte){
		"EtherType":                  func(f []byte) { f[13]++ },
		"hello to":                   func(f []byte) { f[5] = 0 },
		"not a station's address":    func(f []byte) { f[6] |= 1 },
		"from 00:00":                 func(f []byte) { clear(f[6:12]) },
		"not a hello of this":        func(f []byte) { f[14] = 0xa1 },
		"another version":            func(f []byte) { f[15] = 2 << 5 },
		"authentication":             func(f []byte) { f[16] |= 4 },
		"detect multiplier 0":        func(f []byte) { f[17] = 0 },
		"length 25":                  func(f []byte) { f[18] = 25 },
		"intervals 50ms and 0s":      func(f []byte) { binary.BigEndian.PutUint32(f[31:], 0) },
		"intervals 50ms and 1m0.000": func(f []byte) { binary.BigEndian.PutUint32(f[31:], 60_000_001) },
		"intervals 1m0.000":          func(f []byte) { binary.BigEndian.PutUint32(f[27:], 60_000_001) },
		"hold of 2m1s":               func(f []byte) { f[holdAt] = 121 },
		"link that is Down":          func(f []byte) { f[holdAt], f[16] = 1, 0x40 },
		"link that is AdminDown":     func(f []byte) { f[holdAt], f[16] = 1, 0 },
		"name of 0 bytes":            func(f []byte) { f[nameLenAt] = 0 },
		"not printable":              func(f []byte) { f[nameAt+3] = 0x1b },
		`\xff`:                       func(f []byte) { f[nameAt+3] = 0xff },
		`\u202e`:                     func(f []byte) { copy(f[nameAt:], "\u202e") },
	} {
		f := slices.Clone(good)
		change(f)
		if _, err := parseHello(f); !errors.Is(err, ErrFrame) || !strings.Contains(err.Error(), what) {
			t.Errorf("want a refusal with %q, got %v", what, err)
		}
	}
}

func FuzzParseHello(f *testing.F) {
	f.Add(appendHello(nil, switchspec.MAC{2, 0, 0, 0, 0, 1}, sample, 9, 0, "torA", 0))
	f.Add(appendHello(nil, switchspec.MAC{2, 0, 0, 0, 0, 1}, sample, 9, 0, "torA", 7))
	f.Add(appendHello(nil, switchspec.MAC{2, 0, 0, 0, 0, 1}, sample, 9, MaxHold, "torA", 0))
	f.Add(appendHello(nil, switchspec.MAC{2, 0, 0, 0, 0, 1}, sample, 9, 0, strings.Repeat("n", MaxName), 0))
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, err := parseHello(frame)
		if err != nil {
			if !errors.Is(err, ErrFrame) {
				t.Fatalf("%v is no ErrFrame", err)
			}
			return
		}
		again := appendHello(nil, h.src, h.live, h.port, h.hold, string(h.name), h.number)
		g, err := parseHello(again)
		if err != nil || g.src != h.src || g.live != h.live || g.port != h.port || g.hold != h.hold || g.number != h.number || !bytes.Equal(g.name, h.name) {
			t.Fatalf("%+v written and read is %+v, %v", h, g, err)
		}
		// A manager takes it too, and time goes on.
		m := New(Config{Name: "torB", Rand: steady(), Ports: []Port{{Number: 1, MAC: mac("B", 1), Expect: string(h.name)}, {Number: 2, Expect: "torA"}}}, time.Unix(0, 0))
		for _, port := range []uint16{1, 2} {
			_ = m.Receive(m.now, port, frame)
			if _, _, next := m.Tick(m.now); !next.After(m.now) || next.Sub(m.now) > maxInterval {
				t.Fatalf("next tick after %v", next.Sub(m.now))
			}
		}
	})
}

var (
	hostMAC  = switchspec.MAC{2, 0, 0, 0, 1, 1}
	hostAddr = netip.MustParseAddr("10.1.0.11")
	gwMAC    = switchspec.MAC{2, 0, 0, 0, 0x0a, 0}
	gwAddr   = netip.MustParseAddr("10.1.0.1")
)

// Another implementation reads what is written here.
func TestARPFrames(t *testing.T) {
	for _, c := range []struct {
		frame []byte
		dst   switchspec.MAC
		want  ARP
	}{
		{AppendRequest([]byte{1, 2}, gwMAC, gwAddr, hostAddr)[2:], broadcast,
			ARP{Op: ARPRequest, SenderMAC: gwMAC, SenderAddr: gwAddr, TargetAddr: hostAddr}},
		{AppendReply([]byte{1, 2}, gwMAC, netip.AddrFrom16(gwAddr.As16()), hostMAC, hostAddr)[2:], hostMAC,
			ARP{Op: ARPReply, SenderMAC: gwMAC, SenderAddr: gwAddr, TargetMAC: hostMAC, TargetAddr: hostAddr}},
	} {
		if len(c.frame) != 60 {
			t.Errorf("%d bytes", len(c.frame))
		}
		got, err := ParseARP(c.frame)
		if err != nil || got != c.want {
			t.Errorf("parsed %+v, %v, want %+v", got, err, c.want)
		}
		p := gopacket.NewPacket(c.frame, layers.LayerTypeEthernet, gopacket.Default)
		eth, _ := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		arp, _ := p.Layer(layers.LayerTypeARP).(*layers.ARP)
		if eth == nil || arp == nil {
			t.Fatalf("gopacket sees no ARP: %v", p)
		}
		sender, target := c.want.SenderAddr.As4(), c.want.TargetAddr.As4()
		if !bytes.Equal(eth.DstMAC, c.dst[:]) || !bytes.Equal(eth.SrcMAC, gwMAC[:]) || arp.AddrType != layers.LinkTypeEthernet ||
			arp.Protocol != layers.EthernetTypeIPv4 || arp.HwAddressSize != 6 || arp.ProtAddressSize != 4 || arp.Operation != c.want.Op ||
			!bytes.Equal(arp.SourceHwAddress, gwMAC[:]) || !bytes.Equal(arp.SourceProtAddress, sender[:]) ||
			!bytes.Equal(arp.DstHwAddress, c.want.TargetMAC[:]) || !bytes.Equal(arp.DstProtAddress, target[:]) {
			t.Errorf("gopacket sees %+v %+v", eth, arp)
		}
	}
}

func TestARPOfOtherAddresses(t *testing.T) {
	for _, a := range []netip.Addr{{}, netip.MustParseAddr("2001:db8::1")} {
		got, err := ParseARP(AppendRequest(nil, gwMAC, a, hostAddr))
		if err != nil || got.SenderAddr != netip.IPv4Unspecified() || got.TargetAddr != hostAddr {
			t.Errorf("from %v: %+v, %v", a, got, err)
		}
	}
}

func TestParseARPRefuses(t *testing.T) {
	reply := AppendReply(nil, hostMAC, hostAddr, gwMAC, gwAddr)
	for n := range arpOfEther {
		if _, err := ParseARP(reply[:n]); !errors.Is(err, ErrFrame) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := ParseARP(reply[:arpOfEther]); err != nil {
		t.Errorf("without padding: %v", err)
	}
	for _, c := range []struct {
		at    int
		bytes []byte
		want  string
	}{
		{12, []byte{0x81, 0}, "EtherType"},
		{14, []byte{0, 6}, "header"},
		{16, []byte{0x86, 0xdd}, "header"},
		{18, []byte{8}, "header"},
		{19, []byte{16}, "header"},
		{20, []byte{0, 0}, "operation 0"},
		{20, []byte{0, 3}, "operation 3"},
		{20, []byte{1, 1}, "operation 257"},
		{22, []byte{1}, "station"},
		{22, make([]byte, 6), "station"},
		{22, broadcast[:], "station"},
		{28, []byte{224}, "not a host"},
		{28, []byte{127}, "not a host"},
		{28, []byte{255, 255, 255, 255}, "not a host"},
		{28, make([]byte, 4), "not a host"},
	} {
		f := slices.Clone(reply)
		copy(f[c.at:], c.bytes)
		if _, err := ParseARP(f); !errors.Is(err, ErrFrame) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%x at %d: want a refusal with %q, got %v", c.bytes, c.at, c.want, err)
		}
	}
}

func FuzzParseARP(f *testing.F) {
	f.Add(AppendRequest(nil, gwMAC, gwAddr, hostAddr))
	f.Add(AppendReply(nil, hostMAC, hostAddr, gwMAC, gwAddr))
	f.Fuzz(func(t *testing.T, frame []byte) {
		a, err := ParseARP(frame)
		if err != nil {
			if !errors.Is(err, ErrFrame) {
				t.Fatalf("%v is no ErrFrame", err)
			}
			return
		}
		again := appendARP(nil, switchspec.MAC(frame[:6]), a)
		if !bytes.Equal(again[14:arpOfEther], frame[14:arpOfEther]) {
			t.Fatalf("%x read and written is %x", frame, again)
		}
	})
}
