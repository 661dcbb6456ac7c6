package ports

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockSize is the kernel's allocation unit of the ring.
const blockSize = 64 << 10

// slotOverhead exceeds what the kernel puts before a frame in its slot, with room for a second VLAN
// tag.
const slotOverhead = 128

// slotAlign is TPACKET_ALIGNMENT.
const slotAlign = 16

// A ring is the receive ring of a packet socket. The zero value is none.
type ring struct {
	mem      []byte
	size     int // of a slot, in bytes
	perBlock int // slots
	slots    int
	at       int // index of the next slot
}

func (r *ring) open(fd, mtu, bytes int) error {
	r.size = (slotOverhead + HeaderLen + mtu + slotAlign - 1) / slotAlign * slotAlign
	block := blockSize
	for block < r.size {
		block *= 2
	}
	blocks := max(bytes/block, 4)
	r.perBlock = block / r.size
	r.slots = r.perBlock * blocks
	req := unix.TpacketReq{Block_size: uint32(block), Block_nr: uint32(blocks), Frame_size: uint32(r.size), Frame_nr: uint32(r.slots)}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return fmt.Errorf("a receive ring of %d MiB: %w", block*blocks>>20, os.NewSyscallError("setsockopt PACKET_RX_RING", err))
	}
	mem, err := unix.Mmap(fd, 0, block*blocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("a receive ring of %d MiB: %w", block*blocks>>20, os.NewSyscallError("mmap", err))
	}
	r.mem = mem
	return nil
}

func (r *ring) close() error {
	if r.mem == nil {
		return nil
	}
	err := unix.Munmap(r.mem)
	r.mem = nil
	return os.NewSyscallError("munmap", err)
}

// next returns the next slot if the kernel has filled it, or else nil.
func (r *ring) next() *slot {
	if r.mem == nil {
		return nil
	}
	block := len(r.mem) / (r.slots / r.perBlock)
	s := (*slot)(unsafe.Pointer(&r.mem[r.at/r.perBlock*block+r.at%r.perBlock*r.size]))
	if atomic.LoadUint32(&s.hdr.Status)&unix.TP_STATUS_USER == 0 {
		return nil
	}
	return s
}

// release returns the slot that next returned to the kernel.
func (r *ring) release(s *slot) {
	atomic.StoreUint32(&s.hdr.Status, unix.TP_STATUS_KERNEL)
	if r.at++; r.at == r.slots {
		r.at = 0
	}
}

// A slot is the header of a slot: the kernel's description of the frame in it.
type slot struct {
	hdr unix.Tpacket2Hdr
	sll unix.RawSockaddrLinklayer
}

// frame returns the part of the frame that the slot holds.
func (s *slot) frame() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(s), int(s.hdr.Mac))), int(s.hdr.Snaplen))
}

func (s *slot) vnet() *vnetHeader {
	return (*vnetHeader)(unsafe.Add(unsafe.Pointer(s), int(s.hdr.Mac)-vnetLen))
}

// outgoing reports whether this machine sent the frame.
func (s *slot) outgoing() bool { return s.sll.Pkttype == unix.PACKET_OUTGOING }

// tagged returns the number of bytes of VLAN tag removed from the frame.
func (s *slot) tagged() int {
	if s.hdr.Status&unix.TP_STATUS_VLAN_VALID == 0 {
		return 0
	}
	return 4
}

func (s *slot) tpid() uint16 {
	if s.hdr.Status&unix.TP_STATUS_VLAN_TPID_VALID == 0 {
		return unix.ETH_P_8021Q
	}
	return s.hdr.Vlan_tpid
}
