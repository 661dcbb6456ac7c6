package dataplane

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// Wires are veth pairs in a network namespace of their own: for each port of a switch from 1 on the
// interface s and its number, and a host at the other end, which is a packet socket.
type Wires struct {
	Ports map[int]uint32 // interfaces of the switch
	Peers map[int]int    // those of hosts
	hosts map[int]int    // packet sockets
	climb map[int]int    // those of the switch
	links []link.Link
	far   map[int]func() error // take the programs off at hosts
	ns    int
}

// WireMTU is that of wires: frames are longer than a page, too.
const WireMTU = 9000

// NewWires makes n wires, at whose far ends an XDP program says what becomes of packets, or skips the test. The
// calling goroutine is in their namespace from then on, and its thread ends with it.
func NewWires(t testing.TB, n int, says int32) *Wires {
	t.Helper()
	peers, err := XDP(asm.Instructions{asm.Mov.Imm(asm.R0, says), asm.Return()})
	if err != nil {
		testenv.Skip(t, "the kernel takes no XDP program: %v", err)
	}
	defer peers.Close()
	w, err := Connect(n, peers)
	if err != nil {
		testenv.Skip(t, "%v", err)
	}
	t.Cleanup(w.Close)
	for i := range w.Ports {
		w.hosts[i], w.climb[i] = listen(t, w.Peers[i]), listen(t, int(w.Ports[i]))
	}
	return w
}

// XDP is a program that also takes frames of more than a page.
func XDP(instructions asm.Instructions) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: instructions, Flags: unix.BPF_F_XDP_HAS_FRAGS})
}

// Connect makes n wires with an XDP program at their far ends: a veth takes what is redirected to it only if its peer has
// one, too. The calling goroutine is in their namespace from then on, and its thread ends with it.
func Connect(n int, far *ebpf.Program) (w *Wires, err error) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("it takes root to make a network namespace: %w", err)
	}
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0) // where there is IPv6, it would be heard
	w = &Wires{Ports: map[int]uint32{}, Peers: map[int]int{}, hosts: map[int]int{}, climb: map[int]int{}, far: map[int]func() error{}}
	if w.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	for i := 1; i <= n; i++ {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("s%d", i), MTU: WireMTU}, PeerName: fmt.Sprintf("h%d", i)}
		if err := netlink.LinkAdd(pair); err != nil {
			return nil, fmt.Errorf("veth: %w", err)
		}
		port, err := up(pair.Name)
		if err != nil {
			return nil, err
		}
		w.Ports[i] = uint32(port) //nolint:gosec // an interface's number
		if w.Peers[i], err = up(pair.PeerName); err != nil {
			return nil, err
		}
		if w.far[i], err = w.Attach(w.Peers[i], far); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Attach has an interface run a program until Close, or until detach is called.
func (w *Wires) Attach(ifindex int, program *ebpf.Program) (detach func() error, err error) {
	x, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: ifindex, Flags: link.XDPDriverMode})
	if err != nil {
		return nil, fmt.Errorf("XDP at a veth: %w", err)
	}
	w.links = append(w.links, x)
	return x.Close, nil
}

// Close takes the programs off. The namespace ends with the last thread that is in it.
func (w *Wires) Close() {
	for _, x := range w.links {
		x.Close()
	}
	unix.Close(w.ns)
}

// Enter takes another goroutine into the namespace. Its thread ends with it.
func (w *Wires) Enter(t testing.TB) {
	t.Helper()
	if err := w.Join(); err != nil {
		t.Fatal(err)
	}
}

// Join is Enter where there is no test.
func (w *Wires) Join() error {
	runtime.LockOSThread()
	return os.NewSyscallError("setns", unix.Setns(w.ns, unix.CLONE_NEWNET))
}

func up(name string) (index int, err error) {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetMTU(l, WireMTU)
	}
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		return 0, fmt.Errorf("veth %s: %w", name, err)
	}
	return l.Attrs().Index, nil
}

func listen(t testing.TB, ifindex int) int {
	t.Helper()
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifindex})
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// Send has a host send a frame.
func (w *Wires) Send(t testing.TB, host int, frame []byte) {
	t.Helper()
	if _, err := unix.Write(w.hosts[host], frame); err != nil {
		t.Fatal(err)
	}
}

// Refuse has a host take no more of what is redirected to it: it has no XDP program then, nor GRO.
func (w *Wires) Refuse(t testing.TB, host int) {
	t.Helper()
	if err := w.far[host](); err != nil {
		t.Fatal(err)
	}
}

// SetGRO has a host's interface put packets together, or not.
func (w *Wires) SetGRO(host int, on bool) error {
	value := struct{ command, is uint32 }{command: unix.ETHTOOL_SGRO}
	if on {
		value.is = 1
	}
	var pin runtime.Pinner
	pin.Pin(&value)
	defer pin.Unpin()
	var req struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:], fmt.Sprintf("h%d", host))
	req.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(w.hosts[host]), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return os.NewSyscallError("ethtool", errno)
	}
	return nil
}

// Leave has the switch itself send a frame by a port.
func (w *Wires) Leave(port int, frame []byte) error {
	_, err := unix.Write(w.climb[port], frame)
	return os.NewSyscallError("write", err)
}

// Next is the next IPv4 frame that a host receives, or nil if none comes for 10 s, or, with the flag MSG_DONTWAIT, if
// none is there.
func (w *Wires) Next(host, flags int) []byte {
	for {
		if b := receive(w.hosts[host], flags); b == nil || len(b) > 14 && b[12] == 8 && b[13] == 0 {
			return b
		}
	}
}

// Any is the next frame of any kind that a host receives, or nil if none comes for 10 s.
func (w *Wires) Any(host int) []byte { return receive(w.hosts[host], 0) }

// Climbs is Next of the frames that no program at the switch's port has taken.
func (w *Wires) Climbs(port, flags int) []byte { return receive(w.climb[port], flags) }

// receive is the next frame that has come in, with its tag.
func receive(fd, flags int) []byte {
	b, control := make([]byte, WireMTU+64), make([]byte, 128)
	for {
		n, oobn, _, from, err := unix.Recvmsg(fd, b, control, flags)
		if err != nil {
			return nil
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(control[:oobn])
		if err != nil {
			panic(err)
		}
		for _, m := range messages {
			const tci, tpid = 16, 18 // of struct tpacket_auxdata
			if len(m.Data) >= tpid+2 && binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
				tag := binary.BigEndian.AppendUint16(nil, binary.NativeEndian.Uint16(m.Data[tpid:]))
				tag = binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(m.Data[tci:]))
				return slices.Insert(b[:n], 12, tag...)
			}
		}
		return b[:n]
	}
}
