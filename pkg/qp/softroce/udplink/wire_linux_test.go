package udplink

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// The commands of SIOCETHTOOL that switch an offload (linux/ethtool.h).
const (
	ethtoolTXChecksum = 0x17
	ethtoolSG         = 0x19
	ethtoolTSO        = 0x1f
	ethtoolGSO        = 0x24
	ethtoolGRO        = 0x2c
)

// offload switches an offload of a device in the present namespace.
func (l *lab) offload(dev string, cmd uint32, on bool) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		l.fatal(err)
	}
	defer unix.Close(fd)
	value := &struct{ cmd, data uint32 }{cmd: cmd}
	if on {
		value.data = 1
	}
	var pin runtime.Pinner // the request holds its address as a number
	defer pin.Unpin()
	pin.Pin(value)
	var req struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:], dev)
	req.data = unsafe.Pointer(value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		l.fatal(fmt.Sprintf("ethtool command %#x for %s: %v", cmd, dev, errno))
	}
}

// A tap is a packet socket on veth1: it sees frames as they come off the wire.
type tap struct {
	l  *lab
	fd int
}

func (l *lab) tap() *tap {
	l.enter(1)
	defer l.enter(0)
	const ipv4 = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8 // big-endian
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		l.fatal("packet socket: ", err)
	}
	l.t.Cleanup(func() { unix.Close(fd) })
	dev, err := net.InterfaceByName("veth1")
	if err != nil {
		l.fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20); err != nil {
		l.fatal("receive buffer: ", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		l.fatal("receive time-out: ", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ipv4, Ifindex: dev.Index}); err != nil {
		l.fatal("bind: ", err)
	}
	return &tap{l, fd}
}

// next returns the IP packet of the next frame.
func (p *tap) next() []byte {
	buf := make([]byte, 1<<17)
	n, err := unix.Read(p.fd, buf)
	if err != nil {
		p.l.fatal("capture: ", err)
	}
	var eth rocev2.Ethernet
	ip, err := eth.Parse(buf[:n])
	if err != nil || eth.EtherType != rocev2.EtherTypeIPv4 {
		p.l.fatal("capture: ", err, eth)
	}
	return ip
}

// count returns 0, 1, …, n-1 for each n in turn.
func count(ns ...int) (ids []uint16) {
	for _, n := range ns {
		for i := range n {
			ids = append(ids, uint16(i))
		}
	}
	return ids
}

// wireRuns are batches and the identifications that they have on the wire if
// GSO is on: a message has up to 64 segments and 64 KiB.
func wireRuns(m *maker) (runs [][]link.Tx, ids [][]uint16) {
	add := func(run []link.Tx, id []uint16) { runs, ids = append(runs, run), append(ids, id) }
	end := func(run []link.Tx, size int) []link.Tx { return append(run, m.packet(rocev2.WriteLast, size, 1)) }
	add(m.full(1, 1024), count(1))
	add(end(m.full(20, 1024), 101), count(21))
	add(end(m.full(3, 1024), 0), count(4))
	add(m.full(150, 256), count(64, 64, 22))
	add(end(m.full(20, 4096), 4000), count(15, 6))
	add(m.message(rocev2.WriteFirst, rocev2.WriteMiddle, rocev2.WriteLastImm, 2048, 10, 2048), count(2, 9, 1))
	add(m.message(rocev2.SendFirst, rocev2.SendMiddle, rocev2.SendLast, 512, 10, 5), count(12))
	var pieces []link.Tx
	for range 5 {
		pieces = append(pieces, m.packet(rocev2.SendOnly, 100, 3))
	}
	add(pieces, count(1, 1, 1, 1, 1))
	return runs, ids
}

// TestVethWire looks at the frames on the wire between two hosts: each has the
// right ICRC for the identification that the kernel gave it, 0, 1, 2, … within
// a GSO message. Both modes of the receiver agree.
func TestVethWire(t *testing.T) {
	for _, c := range []struct {
		name string
		off  []uint32 // offloads of the devices
		opt  Options
	}{
		{"segmented by the kernel", nil, Options{}},
		{"no offloads", []uint32{ethtoolTXChecksum, ethtoolSG, ethtoolTSO, ethtoolGSO, ethtoolGRO}, Options{}},
		{"gso=off", nil, Options{NoGSO: true}},
	} {
		for _, mode := range []RXMode{RXRaw, RXUDP} {
			t.Run(c.name+" rx="+mode.String(), func(t *testing.T) {
				inLab(t, 9000, func(l *lab) {
					l.run("ip link set veth0 gso_max_segs 1")
					for i, dev := range []string{"veth0", "veth1"} {
						l.enter(i)
						for _, cmd := range c.off {
							l.offload(dev, cmd, false)
						}
					}
					c.opt.RX = mode
					a, b := l.open(c.opt)
					checkWire(l, a, b)
				})
			})
		}
	}
}

func checkWire(l *lab, a, b *Link) {
	p := l.tap()
	m := newMaker(b.Addr())
	runs, ids := wireRuns(m)
	port := uint16(0)
	for k, run := range runs {
		for i := range run {
			run[i].TOS, run[i].Flow = 0x69, 7
		}
		carry(l.t, a, b, run)
		// Older kernels refuse GSO on a device that has no checksum
		// offload; then all go singly.
		if a.gsoOff.Load() {
			ids[k] = make([]uint16, len(run))
		}
		for i, tx := range run {
			b := p.next()
			var ip rocev2.IPv4
			var udp rocev2.UDP
			payload, err := rocev2.ParseIPv4UDP(b, &ip, &udp)
			if err != nil {
				l.fatal("run ", k, " frame ", i, ": ", err)
			}
			if port == 0 {
				port = udp.SrcPort
			}
			if !rocev2.VerifyICRC(b[:ip.TotalLen]) {
				l.fatal(fmt.Sprintf("run %d frame %d: the ICRC is wrong; identification %d", k, i, ip.ID))
			}
			if ip.ID != ids[k][i] || ip.Flags != rocev2.DontFragment || ip.TOS != tx.TOS ||
				udp.SrcPort != port || udp.SrcPort < firstPort || udp.DstPort != rocev2.UDPPort {
				l.fatal(fmt.Sprintf("run %d frame %d: %+v %+v, want identification %d", k, i, ip, udp, ids[k][i]))
			}
			if want := slices.Concat(tx.Parts...); !bytes.Equal(payload[:len(payload)-rocev2.ICRCLen], want) {
				l.fatal(fmt.Sprintf("run %d frame %d has other content", k, i))
			}
		}
	}
	if (counter(a, "tx_gso") > 0) == a.opt.NoGSO || drops(b) != 0 {
		l.t.Errorf("sender %v, receiver %v", counts(a), counts(b))
	}
}

// TestVethGRO: frames that were segments on the wire are put together again by
// the receiving host, and cut up by the receiver.
func TestVethGRO(t *testing.T) {
	for _, mode := range []RXMode{RXRaw, RXUDP} {
		t.Run(mode.String(), func(t *testing.T) {
			inLab(t, 9000, func(l *lab) {
				l.run("ip link set veth0 gso_max_segs 1")
				l.offload("veth0", ethtoolTSO, false) // what a veth that has it sends is not put together
				l.enter(1)
				l.offload("veth1", ethtoolGRO, true)
				a, b := l.open(Options{RX: mode})
				for range 10 {
					runs, _ := wireRuns(newMaker(b.Addr()))
					for _, run := range runs {
						carry(l.t, a, b, run)
					}
				}
				if n := counts(b); n["rx_split"] == 0 || drops(b) != 0 {
					t.Errorf("receiver %v: want packets put together, and none lost", n)
				}
			})
		})
	}
}

// TestVethRefusedGSO: GSO that the kernel refuses is done without, and the
// identifications on the wire are right before and after.
func TestVethRefusedGSO(t *testing.T) {
	inLab(t, 9000, func(l *lab) {
		l.run("ip link set veth0 gso_max_segs 1")
		a, b := l.open(Options{})
		// Without UDP checksums there is no GSO.
		if err := a.tx[7].sock.setInt(unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
			l.fatal(err)
		}
		checkWire(l, a, b)
		if n := counts(a); n["tx_gso_refused"] != 1 || !a.gsoOff.Load() {
			t.Errorf("sender %v: want one refusal", n)
		}
	})
}
