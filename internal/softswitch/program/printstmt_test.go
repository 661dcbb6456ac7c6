package program

import (
	"fmt"
	"strconv"
)

var stmtNames = [...]string{
	StAssign: "assign", StAssignVar: "assign varbit", StAssignHeader: "assign header", StAssignStack: "assign stack",
	StSetValid: "set valid", StSetInvalid: "set invalid", StPick: "pick", StPush: "push", StPop: "pop", StMarkToDrop: "mark to drop",
	StHash: "hash", StRandom: "random", StRegisterRead: "register read", StRegisterWrite: "register write",
	StCount: "count", StMeter: "meter", StDigest: "digest", StCloneIngress: "clone ingress",
	StCloneEgress: "clone egress", StResubmit: "resubmit", StRecirculate: "recirculate", StTruncate: "truncate",
	StJump: "jump", StJumpIfZero: "jump if zero", StExit: "exit", StAssert: "assert", StLog: "log", StNop: "nothing",
	StExtract: "extract", StExtractStack: "extract next", StExtractVar: "extract varbit", StAdvance: "advance",
	StVerify: "verify",
}

// String returns the name of the statement.
func (op StmtOp) String() string {
	if int(op) < len(stmtNames) {
		return stmtNames[op]
	}
	return "statement " + strconv.Itoa(int(op))
}

func (w *printer) stmt(s *Stmt) string {
	p := w.p
	out := s.Op.String() + w.object(s)
	if s.Dst != nil {
		out += " " + w.expr(s.Dst) + " ="
	}
	if s.Op == StHash {
		out += " " + p.Calculations[s.Calc].Name
	}
	if s.Own {
		out += " of its own"
	}
	if s.X != nil {
		out += " " + w.expr(s.X)
	}
	if s.Y != nil {
		out += ", " + w.expr(s.Y)
	}
	if s.FieldList != None {
		out += " with field list " + strconv.Itoa(p.FieldLists[s.FieldList].ID)
	}
	for i := range s.Each {
		out += "; " + w.stmt(&s.Each[i])
	}
	if s.Op == StLog {
		out += " " + strconv.Quote(s.Text)
		for _, e := range s.Exprs {
			out += ", " + w.expr(e)
		}
	}
	if s.Source != (Source{}) {
		out += " at " + s.Source.String()
	}
	return out
}

// object is what a statement works on besides expressions.
func (w *printer) object(s *Stmt) string {
	p := w.p
	switch s.Op {
	case StAssignVar:
		return fmt.Sprintf(" %s = %s", w.field(s.Field), w.field(s.Src))
	case StAssignHeader:
		return fmt.Sprintf(" %s = %s", p.Headers[s.Head].Name, p.Headers[s.Head2].Name)
	case StAssignStack:
		return fmt.Sprintf(" %s = %s", p.Stacks[s.Stack].Name, p.Stacks[s.Stack2].Name)
	case StSetValid, StSetInvalid, StExtract, StExtractVar:
		return " " + p.Headers[s.Head].Name
	case StMarkToDrop:
		return " by " + w.field(s.Field) + " and " + w.field(s.Src)
	case StPush, StPop:
		return fmt.Sprintf(" %s by %d", p.Stacks[s.Stack].Name, s.N)
	case StExtractStack:
		return " of " + p.Stacks[s.Stack].Name + fmt.Sprintf("[%d]", s.Head)
	case StRegisterRead, StRegisterWrite:
		return " " + p.Registers[s.Register].Name
	case StCount:
		return " " + p.Counters[s.Counter].Name
	case StMeter:
		return " " + p.Meters[s.Meter].Name
	case StDigest:
		return " " + p.Digests[s.Digest].Name
	case StJump, StJumpIfZero:
		return fmt.Sprintf(" to %d", s.N)
	}
	return ""
}

var opNames = [...]string{
	OpAdd: "+", OpSub: "-", OpMul: "*", OpDiv: "/", OpMod: "%", OpShl: "<<", OpShr: ">>", OpAnd: "&", OpOr: "|",
	OpXor: "^", OpNot: "~", OpEq: "==", OpNe: "!=", OpLt: "<", OpLe: "<=", OpGt: ">", OpGe: ">=", OpLAnd: "and",
	OpLOr: "or", OpLNot: "not ", OpD2B: "d2b ", OpB2D: "b2d ", OpTwoComp: "two_comp_mod", OpSatCast: "sat_cast",
	OpUSatCast: "usat_cast", OpEqVar: "same number as",
}

func (w *printer) expr(e *Expr) string {
	p := w.p
	switch e.Op {
	case OpConst:
		return fmt.Sprintf("%#x", e.Const)
	case OpBool:
		return strconv.FormatBool(e.Const.Sign() != 0)
	case OpField:
		return w.field(e.Field)
	case OpParam:
		return "$" + w.params[e.Index].Name
	case OpLookahead:
		return fmt.Sprintf("lookahead[%d+%d]", e.Offset, e.Bits)
	case OpStackField:
		return p.Stacks[e.Stack].Name + "[last]." + w.elementField(e)
	case OpStackElem:
		return fmt.Sprintf("%s[%s].%s", p.Stacks[e.Stack].Name, w.expr(e.Left), w.elementField(e))
	case OpStackLast:
		return "last index of " + p.Stacks[e.Stack].Name
	case OpStackSize:
		return "size of " + p.Stacks[e.Stack].Name
	case OpValid:
		return "valid " + p.Headers[e.Head].Name
	case OpBig:
		return fmt.Sprintf("big[%d] %s", e.Bits, w.expr(e.Left))
	case OpNot, OpLNot, OpD2B, OpB2D:
		return opNames[e.Op] + w.expr(e.Left)
	case OpCond:
		return fmt.Sprintf("(%s ? %s : %s)", w.expr(e.Cond), w.expr(e.Left), w.expr(e.Right))
	}
	return fmt.Sprintf("(%s %s %s)", w.expr(e.Left), opNames[e.Op], w.expr(e.Right))
}

func (w *printer) elementField(e *Expr) string {
	return w.p.Headers[w.p.Stacks[e.Stack].Headers[e.Head]].Fields[e.Index].Name
}
