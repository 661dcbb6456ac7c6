package softroce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A peer with a plain socket, whose packets have identification 0: those with a
// wrong ICRC leave no trace but a counter.
func TestWrongICRC(t *testing.T) {
	for _, mode := range []string{"rx=raw", "rx=udp"} {
		t.Run(mode, func(t *testing.T) {
			if mode == "rx=raw" && os.Geteuid() != 0 {
				testenv.Skip(t, "raw sockets take CAP_NET_RAW")
			}
			e := newEnd(t, open(t, mode), 4096, qp.Init{})
			peer := testenv.Loopback()
			conn := must(net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, 0))))(t)
			defer conn.Close()
			neverFragment(t, conn)
			e.up(peer, peerQPN)

			write := func(psn rocev2.PSN, payload string, damage byte) {
				t.Helper()
				b := writePacket(conn.LocalAddr().(*net.UDPAddr).AddrPort(), e, psn, payload)
				b[len(b)-1] ^= damage
				if _, err := conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(e.dev.Attr().Addr, rocev2.UDPPort)); err != nil {
					t.Fatal(err)
				}
			}
			counter := func(name string, n uint64) {
				t.Helper()
				until(t, name, func() bool { return e.dev.Counters()[name] >= n })
			}
			write(e.attr.RQPSN, "good", 0)
			counter("rx_packets", 1)
			write(e.attr.RQPSN.Add(1), "evil", 0x40)
			counter("rx_drop_icrc", 1)
			write(e.attr.RQPSN.Add(1), "fine", 0)
			counter("rx_packets", 2)

			c := e.dev.Counters()
			if c["rx_drop_icrc"] != 1 || c["rc_messages_received"] != 2 || c["rc_out_of_sequence"]+c["rc_duplicates"] != 0 {
				t.Errorf("counters %s", nonZero(e.dev))
			}
			if err := e.mr.Close(); err != nil { // orders the device's writes before what follows
				t.Fatal(err)
			}
			if string(e.buf[:4]) != "fine" {
				t.Errorf("memory holds %q", e.buf[:4])
			}
		})
	}
}

// neverFragment makes the kernel send with Don't Fragment and identification 0.
func neverFragment(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	raw := must(conn.SyscallConn())(t)
	var err error
	if cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

// writePacket builds the UDP payload of a WRITE to the start of e's region.
func writePacket(src netip.AddrPort, e *end, psn rocev2.PSN, payload string) []byte {
	h := rocev2.Headers{
		BTH:  rocev2.BTH{Opcode: rocev2.WriteOnly, PKey: rocev2.DefaultPKey, DestQP: e.qp.QPN(), PSN: psn, AckReq: true},
		RETH: rocev2.RETH{VA: e.mr.Addr(), RKey: e.mr.RKey(), Length: uint32(len(payload))},
	}
	n := h.Len() + len(payload) + rocev2.ICRCLen + rocev2.UDPLen
	ip := rocev2.IPv4{TotalLen: uint16(rocev2.IPv4Len + n), Flags: rocev2.DontFragment, Protocol: rocev2.ProtocolUDP,
		Src: src.Addr().As4(), Dst: e.dev.Attr().Addr.As4()}
	udp := rocev2.UDP{SrcPort: src.Port(), DstPort: rocev2.UDPPort, Length: uint16(n)}
	b := append(h.AppendTo(udp.AppendTo(ip.AppendTo(nil))), payload...)
	b = binary.LittleEndian.AppendUint32(b, 0)
	rocev2.PutICRC(b)
	return b[rocev2.IPv4Len+rocev2.UDPLen:]
}
