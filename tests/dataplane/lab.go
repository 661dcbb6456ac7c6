// Package dataplane tests the compiled program of p4src on the embedded switch's
// pipeline, in process: no ports, no P4Runtime, virtual time. Its Switch is also
// what the model checker and the benchmarks drive. tests/ptf tests the same
// program from outside, on the embedded switch and on bmv2.
package dataplane

import (
	"fmt"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Switch is the program on a pipeline.
type Switch struct {
	*pipeline.Pipeline
	PRE *pre.Engine
	Now time.Duration
	// Through, if it is not nil, takes frames in instead of the pipeline by itself.
	Through func(port uint16, frame []byte) []Frame
}

var loaded = sync.OnceValues(func() (*program.Program, error) { return program.Load(bmv2.JSON) })

// New returns a switch without entries.
func New() (*Switch, error) {
	prog, err := loaded()
	if err != nil {
		return nil, err
	}
	e := pre.New(pre.Limits{})
	p, err := pipeline.New(prog, pipeline.Options{PRE: e})
	if err != nil {
		return nil, err
	}
	return &Switch{Pipeline: p, PRE: e, Now: time.Second}, nil
}

// Keys that are not exact. An exact one is any integer.
type (
	// Prefix is the key of an LPM field.
	Prefix struct {
		Value uint64
		Len   int
	}
	// Span is the key of a range field, both ends included.
	Span struct{ Low, High uint64 }
	// Masked is the key of a ternary field.
	Masked struct{ Value, Mask uint64 }
)

// Exactly is the ternary key of one value of that many bits.
func Exactly(v uint64, bits int) Masked { return Masked{v, 1<<bits - 1} }

// Add inserts an entry. It panics where the program has nothing of that name,
// since that is a mistake of the test.
func (s *Switch) Add(table string, key []any, action string, args ...uint64) {
	t, e := s.entry(table, key, action, args)
	if err := t.Insert(e); err != nil {
		panic(err)
	}
}

// Modify changes an entry.
func (s *Switch) Modify(table string, key []any, action string, args ...uint64) {
	t, e := s.entry(table, key, action, args)
	if err := t.Modify(e); err != nil {
		panic(err)
	}
}

func (s *Switch) entry(table string, key []any, action string, args []uint64) (*pipeline.Table, *pipeline.Entry) {
	t := s.Table(table)
	if t == nil {
		panic("no table " + table)
	}
	e := &pipeline.Entry{Call: s.call(t, action, args)}
	for _, k := range key {
		var f match.Field
		switch k := k.(type) {
		case Prefix:
			f = match.Field{Value: match.Value{k.Value}, PrefixLen: k.Len}
		case Span:
			f = match.Field{Value: match.Value{k.Low}, High: match.Value{k.High}}
			e.Priority = 1
		case Masked:
			f = match.Field{Value: match.Value{k.Value}, Mask: match.Value{k.Mask}}
			e.Priority = 1
		case uint64:
			f = match.Field{Value: match.Value{k}}
		case int:
			f = match.Field{Value: match.Value{uint64(k)}}
		default:
			panic(fmt.Sprintf("table %s: key of type %T", table, k))
		}
		e.Key = append(e.Key, f)
	}
	return t, e
}

// Default sets a table's default entry.
func (s *Switch) Default(table, action string, args ...uint64) {
	t := s.Table(table)
	if err := t.SetDefault(s.call(t, action, args)); err != nil {
		panic(err)
	}
}

func (s *Switch) call(t *pipeline.Table, action string, args []uint64) pipeline.Call {
	for _, a := range t.Info().Actions {
		if s.Program().Actions[a].Name == action {
			c := pipeline.Call{Action: a}
			for _, v := range args {
				c.Args = append(c.Args, match.Value{v})
			}
			return c
		}
	}
	panic(fmt.Sprintf("table %s has no action %s", t.Info().Name, action))
}

// Send lets a frame in and returns what comes out, by copy.
func (s *Switch) Send(port uint16, frame []byte) []Frame {
	if s.Through != nil {
		return s.Through(port, frame)
	}
	return s.Alone(port, frame)
}

// Alone is Send by the pipeline.
func (s *Switch) Alone(port uint16, frame []byte) []Frame {
	var out []Frame
	s.Process(s.Now, port, frame, func(port uint16, frame []byte) {
		out = append(out, Frame{port, append([]byte(nil), frame...)})
	})
	return out
}

// Dropped returns the drop counters of ingress and egress together, by reason;
// only what is not 0.
func (s *Switch) Dropped() map[string]uint64 {
	m := map[string]uint64{}
	for i, reason := range bmv2.DropReasons {
		for _, c := range []string{"ingress.drops", "egress.drops"} {
			if n, err := s.Counter(c).Get(i); err == nil && n.Packets != 0 {
				m[reason] += n.Packets
			}
		}
	}
	return m
}

// A Frame is what a port sends.
type Frame struct {
	Port uint16
	Data []byte
}

// A Packet is a RoCE packet in parts.
type Packet struct {
	Eth     rocev2.Ethernet
	IP      rocev2.IPv4
	UDP     rocev2.UDP
	H       rocev2.Headers
	Payload []byte
	ICRC    uint32
}

// Parse takes a frame apart, and checks its lengths and IP checksum.
func (f Frame) Parse() (*Packet, error) {
	var p Packet
	ip, err := p.Eth.Parse(f.Data)
	if err != nil {
		return nil, err
	}
	udp, err := rocev2.ParseIPv4UDP(ip, &p.IP, &p.UDP)
	if err != nil {
		return nil, err
	}
	if len(udp) < 4 {
		return nil, fmt.Errorf("no ICRC in %d bytes", len(udp))
	}
	end := len(udp) - 4
	p.ICRC = uint32(udp[end]) | uint32(udp[end+1])<<8 | uint32(udp[end+2])<<16 | uint32(udp[end+3])<<24
	p.Payload, err = p.H.Parse(udp[:end])
	return &p, err
}

// GoodICRC reports whether the frame's ICRC is right.
func (f Frame) GoodICRC() bool { return rocev2.VerifyICRC(f.Data[14:]) }

// Frame encodes the packet, with a right ICRC.
func (p *Packet) Frame() []byte {
	n := rocev2.IPv4Len + rocev2.UDPLen + p.H.Len() + len(p.Payload) + 4
	ip, udp := p.IP, p.UDP
	ip.TotalLen, ip.Protocol = uint16(n), rocev2.ProtocolUDP
	if ip.TTL == 0 {
		ip.TTL = 64
	}
	udp.Length = uint16(n - rocev2.IPv4Len)
	if udp.DstPort == 0 {
		udp.DstPort = rocev2.UDPPort
	}
	b := p.Eth.AppendTo(make([]byte, 0, 14+n))
	b = udp.AppendTo(ip.AppendTo(b))
	b = append(p.H.AppendTo(b), p.Payload...)
	b = append(b, 0, 0, 0, 0)
	rocev2.PutICRC(b[14:])
	return b
}

// Addr returns the number that a table key has for an IPv4 address.
func Addr(a [4]byte) uint64 {
	return uint64(a[0])<<24 | uint64(a[1])<<16 | uint64(a[2])<<8 | uint64(a[3])
}
