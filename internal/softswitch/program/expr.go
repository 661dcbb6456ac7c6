package program

import "math/big"

// Op is an operation of an expression.
type Op uint8

// Operations. Arithmetic is on unbounded integers, as bmv2's; the compiler masks a result where the
// P4 type has a width. Expr.Bits and Expr.Signed bound the unbounded value. An expression that
// 64-bit words cannot compute is below an OpBig. In every other expression:
//
//   - operands that are added, subtracted, multiplied, negated, shifted by a variable or reduced by
//     OpTwoComp fit in 64 bits, or only their lowest 64 bits are needed, so that arithmetic modulo
//     2^64 gives the correct result after the mask;
//   - operands that are ordered, divided, shifted right, cast with saturation, or used as an index,
//     length, amount or identifier fit in 64 bits exactly, and both operands of a comparison fit in
//     uint64 or both in int64;
//   - anything wider consists only of moves, OpAnd, OpOr, OpXor, OpNot, OpCond, shifts by
//     constants, and OpEq, OpNe and OpD2B of unsigned operands with known Bits; its narrower
//     operands are unsigned, and so zero-extended.
const (
	OpConst      Op = iota // Const
	OpBool                 // Const is 0 or 1
	OpField                // Field; Field.Field may be Valid
	OpParam                // Index: of the action's parameter
	OpLookahead            // Offset, Bits: of the packet ahead (parser only)
	OpStackField           // field Index of the last element of Stack (parser); of a union: of member Head
	OpStackElem            // field Index of element Left of Stack
	OpStackLast            // index of the last valid element of Stack
	OpStackSize            // number of valid elements of Stack
	OpValid                // whether Head is valid

	OpAdd
	OpSub
	OpMul
	OpDiv
	OpMod
	OpShl
	OpShr
	OpAnd
	OpOr
	OpXor
	OpNot // ~

	OpEq
	OpNe
	OpLt
	OpLe
	OpGt
	OpGe
	OpLAnd // boolean operands; the right one may not be evaluated
	OpLOr
	OpLNot
	OpEqVar // whether varbit fields Left and Right (OpField) are equal as numbers

	OpD2B     // Left to a boolean
	OpB2D     // Left to 0 or 1
	OpTwoComp // Left as a signed integer of Right (a constant) bits
	OpSatCast
	OpUSatCast
	OpCond // Cond ? Left : Right
	OpBig  // the lowest Bits of Left, computed in unbounded integers; or Left, a boolean
)

// Expr is an expression. Op determines which fields are used.
type Expr struct {
	Op                Op
	Left, Right, Cond *Expr // a unary operation has its operand in Left
	Const             *big.Int
	Field             FieldRef
	Head, Stack       int
	Index             int
	Offset            int
	Bits              int  // n, where 0 <= result < 2^n; 0 if no such bound is known
	Signed            bool // the bound is -2^(n-1) <= result < 2^(n-1) instead
	Bool              bool // the result is a boolean
}

// StmtOp is a primitive of an action, or a parser operation.
type StmtOp uint8

// Statements, with the arguments that they use.
const (
	StAssign        StmtOp = iota // Dst = X
	StAssignVar                   // varbit: Field = Src
	StAssignHeader                // Head = Head2, validity included
	StAssignStack                 // Stack = Stack2
	StSetValid                    // Head
	StSetInvalid                  // Head
	StPick                        // the statement of Each selected by X, an index in Stack
	StPush                        // Stack, N
	StPop                         // Stack, N
	StMarkToDrop                  // Field = the drop port, Src = 0; either may be NoField
	StHash                        // Dst = X + Calc mod Y (a Y of 0 counts as 1)
	StRandom                      // Dst = a value from X to Y, both included
	StRegisterRead                // Dst = Register[X]
	StRegisterWrite               // Register[X] = Y
	StCount                       // Counter[X]
	StMeter                       // Dst = color of Meter[X]
	StDigest                      // Digest (index into Program.Digests)
	StCloneIngress                // session X, FieldList
	StCloneEgress                 // session X, FieldList
	StResubmit                    // FieldList
	StRecirculate                 // FieldList
	StTruncate                    // to X bytes
	StJump                        // to statement N, which may be the body's length; backward in a loop
	StJumpIfZero                  // if X is 0, to statement N; likewise
	StExit                        //
	StAssert                      // X
	StLog                         // Text, with {} for each of Exprs
	StNop                         //

	StExtract      // parser: Head
	StExtractStack // parser: next element of Stack, with X as StExtractVar; of a union: its member Head
	StExtractVar   // parser: Head, its varbit field X bits long; Own: X has fields of Head itself
	StAdvance      // parser: by X bits
	StVerify       // parser: X, or else error Y
)

// Stmt is one statement. Op determines which fields are used.
type Stmt struct {
	Op          StmtOp
	Dst         *Expr // OpField or OpStackElem or OpStackField
	X, Y        *Expr
	Exprs       []*Expr
	Each        []Stmt
	Field, Src  FieldRef // varbit fields, unless Op says otherwise
	Head, Head2 int
	Stack       int
	Stack2      int
	N           int
	Calc        int
	Register    int
	Counter     int
	Meter       int
	Digest      int
	FieldList   int // index into Program.FieldLists, or None
	Own         bool
	Text        string
	Source      Source
}
