package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Fault makes a switch corrupt one of the matching packets: number First, counted from 0.
type Fault struct {
	Out      bool // at egress, after rewriting; otherwise at ingress
	Src, Dst netip.Addr
	Opcode   rocev2.Opcode
	First    uint32
}

// Faults are entries in a switch, in addition to its agent's.
type Faults struct {
	n      *SwitchNode
	list   []Fault
	epoch  uint32
	conn   *grpc.ClientConn
	rpc    p4.P4RuntimeClient
	stream p4.P4Runtime_StreamChannelClient
	info   *p4cfg.P4Info
}

// faultsRole is the role of their controller, of which there is one at a time. The agent has the
// default role, and stays its primary.
const faultsRole = "faults"

// corrupt is FaultKind.CORRUPT of the program.
const corrupt = 1

// Corrupt installs the faults, until Close. There are at most 256 per direction.
func (n *SwitchNode) Corrupt(ctx context.Context, list []Fault) (*Faults, error) {
	n.epoch++
	f := &Faults{n: n, list: list, epoch: n.epoch, info: &p4cfg.P4Info{}}
	if err := f.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("faults in %s: %w", n.Name, err), f.conn.Close())
	}
	if err := f.write(ctx, p4.Update_INSERT); err != nil {
		return nil, errors.Join(err, f.Close(ctx))
	}
	return f, nil
}

func (f *Faults) open(ctx context.Context) (err error) {
	if f.conn, err = grpc.NewClient(p4rtTarget, f.n.dialP4Runtime()...); err != nil {
		return err
	}
	f.rpc = p4.NewP4RuntimeClient(f.conn)
	if err := prototext.Unmarshal(bmv2.P4Info, f.info); err != nil {
		return err
	}
	if f.stream, err = f.rpc.StreamChannel(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if err := f.stream.Send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Arbitration{
		Arbitration: &p4.MasterArbitrationUpdate{Role: &p4.Role{Name: faultsRole}, ElectionId: election}}}); err != nil {
		return err
	}
	_, err = f.stream.Recv()
	return err
}

var election = &p4.Uint128{Low: 1}

// write inserts or deletes the rules.
func (f *Faults) write(ctx context.Context, how p4.Update_Type) error {
	req := &p4.WriteRequest{Role: faultsRole, ElectionId: election}
	for slot := range f.list {
		e, err := f.rule(slot)
		if err != nil {
			return err
		}
		req.Updates = append(req.Updates, &p4.Update{Type: how, Entity: &p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: e}}})
	}
	if _, err := f.rpc.Write(ctx, req); err != nil {
		return fmt.Errorf("faults in %s: %w", f.n.Name, err)
	}
	return nil
}

// rule returns the entry of a fault. Its number is also that of its slot.
func (f *Faults) rule(slot int) (*p4.TableEntry, error) {
	x := f.list[slot]
	e := &p4.TableEntry{Priority: 1, Match: []*p4.FieldMatch{}}
	for _, t := range f.info.GetTables() {
		if t.GetPreamble().GetName() != x.control()+".rules" {
			continue
		}
		e.TableId = t.GetPreamble().GetId()
		src, dst := x.Src.As4(), x.Dst.As4()
		for _, m := range t.GetMatchFields() {
			if v := map[string][]byte{"src": src[:], "dst": dst[:], "opcode": {byte(x.Opcode)}}[m.GetName()]; v != nil {
				mask := []byte{255, 255, 255, 255}[:len(v)]
				e.Match = append(e.Match, &p4.FieldMatch{FieldId: m.GetId(),
					FieldMatchType: &p4.FieldMatch_Ternary_{Ternary: &p4.FieldMatch_Ternary{Value: v, Mask: mask}}})
			}
		}
	}
	for _, a := range f.info.GetActions() {
		if a.GetPreamble().GetName() != x.control()+".fault" {
			continue
		}
		call := &p4.Action{ActionId: a.GetPreamble().GetId()}
		values := map[string]uint32{"slot": uint32(slot), "epoch": f.epoch, "first": x.First, "count": 1, "kind": corrupt} //nolint:gosec // small
		for _, p := range a.GetParams() {
			call.Params = append(call.Params, &p4.Action_Param{ParamId: p.GetId(), Value: binary.BigEndian.AppendUint32(nil, values[p.GetName()])})
		}
		e.Action = &p4.TableAction{Type: &p4.TableAction_Action{Action: call}}
	}
	if len(e.Match) != 3 || e.Action == nil {
		return nil, fmt.Errorf("the program has no faults like %+v", x)
	}
	return e, nil
}

// control is the control that applies the rules.
func (x Fault) control() string {
	if x.Out {
		return "egress.fault_out"
	}
	return "ingress.fault_in"
}

// Missing returns the faults that have not happened, because the switch has not seen enough
// packets.
func (f *Faults) Missing(ctx context.Context) (list []Fault, err error) {
	for slot, x := range f.list {
		seen, err := f.seen(ctx, x.control()+".seen", slot)
		if err != nil {
			return nil, fmt.Errorf("faults in %s: %w", f.n.Name, err)
		}
		if epoch, packets := uint32(seen>>32), uint32(seen); epoch != f.epoch || packets <= x.First { //nolint:gosec // two halves
			list = append(list, x)
		}
	}
	return list, nil
}

// seen reads a cell of a register: an epoch, and how many packets of that epoch a rule has matched.
func (f *Faults) seen(ctx context.Context, register string, slot int) (uint64, error) {
	for _, r := range f.info.GetRegisters() {
		if r.GetPreamble().GetName() != register {
			continue
		}
		stream, err := f.rpc.Read(ctx, &p4.ReadRequest{Entities: []*p4.Entity{{Entity: &p4.Entity_RegisterEntry{
			RegisterEntry: &p4.RegisterEntry{RegisterId: r.GetPreamble().GetId(), Index: &p4.Index{Index: int64(slot)}}}}}})
		if err != nil {
			return 0, err
		}
		got, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		cell := make([]byte, 8)
		if e := got.GetEntities(); len(e) == 1 {
			b := e[0].GetRegisterEntry().GetData().GetBitstring()
			copy(cell[max(0, 8-len(b)):], b)
		}
		return binary.BigEndian.Uint64(cell), nil
	}
	return 0, fmt.Errorf("the program has no register %s", register)
}

// Close removes the faults.
func (f *Faults) Close(ctx context.Context) error {
	return errors.Join(f.write(ctx, p4.Update_DELETE), f.stream.CloseSend(), f.conn.Close())
}
