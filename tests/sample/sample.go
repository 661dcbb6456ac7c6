// Package sample holds a small router in P4 and what the compiler made of it,
// for tests and benchmarks of the embedded switch. Its CPU port is [CPUPort].
//
// sample.json and sample.p4info.txtpb are made from sample.p4 by
//
//	p4c-bm2-ss --std p4-16 --p4runtime-files sample.p4info.txtpb -o sample.json sample.p4
package sample

import (
	_ "embed" // of the artifacts
	"fmt"
	"math/big"
	"net/netip"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// CPUPort is the CPU port that the program is written for.
const CPUPort = 510

// JSON is the program in bmv2's format.
//
//go:embed sample.json
var JSON []byte

// P4Info is its P4Info, as protobuf text.
//
//go:embed sample.p4info.txtpb
var P4Info []byte

// Load returns the program.
func Load() (*program.Program, error) { return program.Load(JSON) }

// Patch has a pipeline do an action (In.forward, In.replicate, …) with what
// comes in on a port and is not routed.
func Patch(p *pipeline.Pipeline, port uint16, action string, args ...uint64) error {
	return insert(p, "In.patch", match.Field{Value: value(uint64(port), 9)}, action, args)
}

// Route has it send what goes to a prefix out of a port, between those MAC
// addresses.
func Route(p *pipeline.Pipeline, to netip.Prefix, port uint16, src, dst uint64) error {
	a := to.Masked().Addr().As4()
	f := match.Field{Value: match.FromBig(new(big.Int).SetBytes(a[:]), 32), PrefixLen: to.Bits()}
	return insert(p, "In.routes", f, "In.route", []uint64{uint64(port), src, dst})
}

// Mark has it mark IPv4 packets that leave by a port as having met congestion if
// at least depth packets waited before them.
func Mark(p *pipeline.Pipeline, port uint16, depth uint64) error {
	return insert(p, "Out.congestion", match.Field{Value: value(uint64(port), 9)}, "Out.mark", []uint64{depth})
}

func value(v uint64, bits int) match.Value { return match.FromBig(new(big.Int).SetUint64(v), bits) }

func insert(p *pipeline.Pipeline, table string, key match.Field, action string, args []uint64) error {
	prog, err := Load() // the same numbers as in p
	if err != nil {
		return err
	}
	for i, a := range prog.Actions {
		if a.Name != action {
			continue
		}
		if len(a.Params) != len(args) {
			return fmt.Errorf("sample: action %s has %d parameters, not %d", action, len(a.Params), len(args))
		}
		c := pipeline.Call{Action: i}
		for k, arg := range args {
			c.Args = append(c.Args, value(arg, a.Params[k].Bits))
		}
		// An action may exist once for each table that has it.
		if err = p.Table(table).Insert(&pipeline.Entry{Key: match.Key{key}, Call: c}); err == nil {
			return nil
		}
	}
	if err == nil {
		err = fmt.Errorf("sample: there is no action %s", action)
	}
	return err
}
