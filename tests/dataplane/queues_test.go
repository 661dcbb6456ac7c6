package dataplane

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	us       = time.Microsecond
	linkRate = 1_000_000_000
)

// A narrow rack has a link of linkRate to host 4, and a small buffer.
type narrow struct {
	*Switch
	*traffic.Manager
	now time.Duration
	got func(at time.Duration, frame []byte) // at host 4
}

func newNarrow(t *testing.T, c traffic.Config) *narrow {
	n := &narrow{Switch: rack(t)}
	m, err := traffic.New(c, func(port uint16, frame []byte) {
		if port == 4 {
			n.got(n.now, frame)
		}
	})
	if err == nil {
		err = m.SetRate(4, traffic.Rate{PerSecond: linkRate, Bits: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	m.Load(n.Switch.Pipeline)
	n.Manager = m
	return n
}

// until lets time pass.
func (n *narrow) until(now time.Duration) {
	for {
		next, ok := n.Run(n.now)
		if !ok || next > now {
			n.now = max(n.now, now)
			return
		}
		n.now = next
	}
}

// data is a WRITE to host 4.
func data(from, psn, size int) []byte {
	p := Between(from, 4, rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.WriteOnly, MigReq: true, PKey: rocev2.DefaultPKey, DestQP: 9, PSN: rocev2.PSN(psn)},
		RETH: rocev2.RETH{Length: uint32(size)}}, make([]byte, size))
	p.IP.TOS = 2
	return p.Frame()
}

// urgent returns the nth of what is not to wait for data: an ACK, a NAK, a CNP, or a
// hello from the agent.
func urgent(n int) (port uint16, frame []byte) {
	h := rocev2.Headers{BTH: rocev2.BTH{Opcode: rocev2.Acknowledge, MigReq: true, PKey: rocev2.DefaultPKey, DestQP: 9, PSN: rocev2.PSN(n)}}
	switch n % 4 {
	case 1:
		h.AETH.Syndrome = rocev2.NakSequence
	case 2:
		h.BTH.Opcode, h.BTH.BECN = rocev2.CNP, true
	case 3:
		out := binary.BigEndian.AppendUint16(nil, 4<<7)
		return bmv2.CPUPort, append(append(out, make([]byte, 12)...), 0x88, 0xb5, byte(n>>16), byte(n>>8), byte(n))
	}
	return 1, Between(1, 4, h, nil).Frame()
}

// TestUrgent: three hosts send far more than the link takes, and all else is full.
// Answers and hellos are not lost, and wait for no more than the frame that is on its way.
func TestUrgent(t *testing.T) {
	n := newNarrow(t, traffic.Config{Memory: traffic.Memory{Shared: 100_000}})
	sent, waited := map[int]time.Duration{}, map[int]time.Duration{}
	number := func(frame []byte) int {
		if frame[12] == 0x88 {
			return int(frame[14])<<16 | int(frame[15])<<8 | int(frame[16])
		}
		p, err := Frame{4, frame}.Parse()
		if err != nil {
			t.Fatal(err)
		}
		if p.H.BTH.Opcode == rocev2.WriteOnly {
			return -1
		}
		return int(p.H.BTH.PSN)
	}
	n.got = func(at time.Duration, frame []byte) {
		if i := number(frame); i >= 0 {
			waited[i] = at - sent[i]
		}
	}
	full := data(1, 0, 1024)
	for i := range 400 {
		for j := range 12 { // 12 frames in 25 µs, of which the link takes 3
			n.until(time.Duration(i)*25*us + time.Duration(j)*2*us)
			n.Arrive(n.now, uint16(1+j%3), full)
		}
		n.until(time.Duration(i)*25*us + 23*us)
		port, frame := urgent(i)
		sent[i] = n.now
		n.Arrive(n.now, port, frame)
	}
	n.until(time.Second)
	frame := time.Duration(len(full) * 8 * int(time.Second) / linkRate)
	for i := range sent {
		if w, ok := waited[i]; !ok || w > frame {
			t.Errorf("number %d arrived: %v, after %v; a frame takes %v", i, ok, w, frame)
		}
	}
	low, high := n.ClassStats(4)[0], n.ClassStats(4)[1]
	if low.Dropped < 1000 || high.Dropped != 0 || high.Sent != 400 {
		t.Errorf("data %+v, urgent %+v", low, high)
	}
}

// TestMarkedByBytes: where depths are in cells, packets are marked by the bytes that wait
// behind them, few long packets as well as many short ones.
func TestMarkedByBytes(t *testing.T) {
	const cell, threshold = 64, 50_000
	for _, size := range []int{64, 1024, 4096} {
		n := newNarrow(t, traffic.Config{Unit: cell})
		n.Add("egress.ecn.ports", []any{4}, "egress.ecn.red", threshold/cell, threshold/cell, 65535)
		length, count, marked := len(data(1, 0, size)), 100_000/len(data(1, 0, size)), 0
		n.got = func(_ time.Duration, frame []byte) {
			if frame[15]&3 == 3 {
				marked++
			}
		}
		for i := range count + 1 {
			n.Arrive(0, 1, data(1, i, size))
		}
		n.until(time.Second)
		// The first leaves at once; behind the others is less with each.
		want := count - threshold/length - 1
		if marked < want-2 || marked > want+2 {
			t.Errorf("%d of %d packets of %d bytes are marked, want %d", marked, count, length, want)
		}
	}
}
