package framelink

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// TestARPScripts runs testdata/arp/*: each command is an input at a time
// (at=…), its result the frames that come out and whatever else there is to
// see.
func TestARPScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/arp", func(t *testing.T, path string) {
		var s arpScript
		datadriven.RunTest(t, path, s.run)
	})
}

type arpScript struct {
	a   *arp
	now time.Duration
}

func (s *arpScript) run(t *testing.T, d *datadriven.TestData) string {
	if d.HasArg("at") {
		at := argDuration(t, d, "at")
		if at < s.now {
			d.Fatalf(t, "time goes backwards")
		}
		s.now = at
	}
	var out strings.Builder
	switch d.Cmd {
	case "new":
		prefix := netip.MustParsePrefix(d.CmdArgs[0].Key)
		s.a, s.now = newARP(DefaultMAC(prefix.Addr()), prefix), 0
		return ""
	case "announce":
		s.a.announce(s.now)
	case "send": // one frame per word, as a host does
		for _, data := range strings.Fields(argString(t, d, "data")) {
			ip := argIP(t, d, "to")
			if mac, ok := s.a.lookup(ip); ok {
				fmt.Fprintf(&out, "direct: %q to %v\n", data, net.HardwareAddr(mac[:]))
			} else {
				s.a.hold(ip, append(make([]byte, rocev2.EthernetLen), data...), s.now)
			}
		}
	case "flood": // n frames to one neighbor
		for i := range argInt(t, d, "n") {
			s.a.hold(argIP(t, d, "to"), fmt.Appendf(make([]byte, rocev2.EthernetLen), "%d", i), s.now)
		}
	case "crowd": // requests to us from n neighbors, from the address on
		ip := argIP(t, d, "from")
		first := binary.BigEndian.Uint32(ip[:])
		for i := range uint32(argInt(t, d, "n")) {
			binary.BigEndian.PutUint32(ip[:], first+i)
			s.a.input(arpPacket(arpRequest, DefaultMAC(netip.AddrFrom4(ip)), ip, macAddr{}, s.a.ip), s.now)
		}
		fmt.Fprintf(&out, "%d frames\n", len(s.a.take()))
	case "request", "reply":
		op := map[string]uint16{"request": arpRequest, "reply": arpReply}[d.Cmd]
		from, to := argIP(t, d, "from"), argIP(t, d, "for")
		mac := DefaultMAC(netip.AddrFrom4(from))
		if d.HasArg("mac") {
			m, err := net.ParseMAC(argString(t, d, "mac"))
			if err != nil {
				t.Fatal(err)
			}
			mac = macAddr(m)
		}
		s.a.input(arpPacket(op, mac, from, macAddr{}, to), s.now)
	case "raw":
		b, err := hex.DecodeString(strings.Join(strings.Fields(d.Input), ""))
		if err != nil {
			t.Fatal(err)
		}
		s.a.input(b, s.now)
	case "run": // whatever falls due until then
		until := argDuration(t, d, "until")
		for s.a.deadline() <= until {
			s.now = max(s.now, s.a.deadline())
			s.a.tick(s.now)
			s.print(&out)
		}
		s.now = until
	case "state":
		return fmt.Sprintf("neighbors=%d held=%d %+v\n", len(s.a.neighbors), s.a.held, s.a.stats)
	default:
		d.Fatalf(t, "unknown command")
	}
	s.print(&out)
	return out.String()
}

// print writes the frames that came out, in the words of tcpdump.
func (s *arpScript) print(out *strings.Builder) {
	for _, f := range s.a.take() {
		fmt.Fprintf(out, "%v to %v: %s\n", s.now, net.HardwareAddr(f[:6]), describe(f))
	}
}

func describe(f []byte) string {
	var eth rocev2.Ethernet
	p, err := eth.Parse(f)
	if err != nil || eth.EtherType != rocev2.EtherTypeARP {
		return fmt.Sprintf("%q", p)
	}
	sha, spa, tpa := net.HardwareAddr(p[8:14]), netip.AddrFrom4(ipAddr(p[14:])), netip.AddrFrom4(ipAddr(p[24:]))
	if p[7] == arpReply {
		return fmt.Sprintf("reply %v is at %v", spa, sha)
	}
	return fmt.Sprintf("who has %v tell %v at %v", tpa, spa, sha)
}

func arpPacket(op uint16, sha macAddr, spa ipAddr, tha macAddr, tpa ipAddr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, byte(op >> 8), byte(op)}
	b = append(append(b, sha[:]...), spa[:]...)
	return append(append(b, tha[:]...), tpa[:]...)
}

func argString(t *testing.T, d *datadriven.TestData, key string) (s string) {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return strings.Join(a.Vals, " ")
		}
	}
	d.Fatalf(t, "%s= is missing", key)
	return ""
}

func argInt(t *testing.T, d *datadriven.TestData, key string) (n int) {
	d.ScanArgs(t, key, &n)
	return n
}

func argDuration(t *testing.T, d *datadriven.TestData, key string) time.Duration {
	v, err := time.ParseDuration(argString(t, d, key))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func argIP(t *testing.T, d *datadriven.TestData, key string) ipAddr {
	ip, err := netip.ParseAddr(argString(t, d, key))
	if err != nil {
		t.Fatal(err)
	}
	return ip.As4()
}

// FuzzARP drives the machine with arbitrary inputs and checks what must always
// hold: the bounds, the count of held frames, that no held frame is lost
// without being counted, and that tick at the deadline moves it.
func FuzzARP(f *testing.F) {
	f.Add([]byte{0, 2, 1, 2, 2, 2, 3, 100, 4, 2, 3, 200, 5, 9})
	f.Add([]byte{0, 1, 0, 2, 3, 100, 3, 100, 3, 100, 3, 100, 1, 1, 3, 255, 3, 255, 3, 255})
	f.Fuzz(func(t *testing.T, ops []byte) {
		a := newARP(macAddr{2, 0, 10, 0, 0, 1}, netip.MustParsePrefix("10.0.0.1/22"))
		var now time.Duration
		var held, released uint64
		a.announce(now)
		for len(ops) >= 2 {
			op, v := ops[0], ops[1]
			ops = ops[2:]
			ip := ipAddr{10, 0, op >> 6, v}
			switch op % 6 {
			case 0:
				if _, ok := a.lookup(ip); !ok {
					a.hold(ip, make([]byte, 20), now)
					held++
				}
			case 1:
				a.input(arpPacket(arpReply, macAddr{2, 0, 0, 0, op, v}, ip, a.mac, a.ip), now)
			case 2:
				a.input(arpPacket(arpRequest, macAddr{2, 0, 0, 0, op, v}, ip, macAddr{}, a.ip), now)
			case 3:
				now += time.Duration(v) * 50 * time.Millisecond
				a.tick(now)
			case 4:
				if d := a.deadline(); d != never {
					now = max(now, d)
					a.tick(now)
					if a.deadline() <= d {
						t.Fatalf("tick at %v leaves the deadline at %v", d, a.deadline())
					}
				}
			case 5:
				n := min(len(ops), int(v))
				a.input(ops[:n], now)
				ops = ops[n:]
			}
			for _, f := range a.take() {
				if binary.BigEndian.Uint16(f[12:]) != rocev2.EtherTypeARP {
					released++
				}
			}
			n := 0
			for _, nb := range a.neighbors {
				n += len(nb.held)
				if len(nb.held) > arpHeldEach || nb.tries > arpTries || len(nb.held) > 0 && nb.tries == 0 {
					t.Fatalf("neighbor out of bounds: %+v", nb)
				}
			}
			if n != a.held || a.held > arpHeldAll || len(a.neighbors) > arpCache {
				t.Fatalf("%d held, counted %d, %d neighbors", n, a.held, len(a.neighbors))
			}
			if held != released+a.stats.dropped+uint64(a.held) {
				t.Fatalf("%d frames: %d released, %d dropped, %d held", held, released, a.stats.dropped, a.held)
			}
		}
	})
}
