package program

import "math/big"

// Op is an operation of an expression.
type Op uint8

// Operations. Arithmetic is on unbounded integers, as bmv2's; the compiler
// masks a result where the P4 type has a width. So the width of an OpAnd with a
// constant, of a field, a parameter and a constant is known, and Expr.Bits gives
// it; a result wider than 64 bits of anything but moves, comparison for
// equality, bitwise operations, and shifts by constants is refused by Load.
const (
	OpConst      Op = iota // Const
	OpBool                 // Const is 0 or 1
	OpField                // Field; Field.Field may be Valid
	OpParam                // Index: of the action's parameter
	OpLookahead            // Offset, Bits: of the packet ahead (parser only)
	OpStackField           // field Index of the last valid element of Stack (parser)
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
	OpLAnd // both sides are booleans, of which the right one may not be evaluated
	OpLOr
	OpLNot

	OpD2B     // Left to a boolean
	OpB2D     // Left to 0 or 1
	OpTwoComp // Left as a signed integer of Right (a constant) bits
	OpSatCast
	OpUSatCast
	OpCond // Cond ? Left : Right
)

// Expr is an expression. Which members count depends on Op.
type Expr struct {
	Op                Op
	Left, Right, Cond *Expr // a unary operation has its operand in Left
	Const             *big.Int
	Field             FieldRef
	Head, Stack       int
	Index             int
	Offset            int
	Bits              int  // width of the result if it is known, else 0
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
	StPush                        // Stack, N
	StPop                         // Stack, N
	StMarkToDrop                  //
	StHash                        // Dst = X + Calc mod Y (a Y of 0 counts as 1)
	StRandom                      // Dst = a value from X to Y, both included
	StRegisterRead                // Dst = Register[X]
	StRegisterWrite               // Register[X] = Y
	StCount                       // Counter[X]
	StMeter                       // Dst = colour of Meter[X]
	StDigest                      // Digest (index into Program.Digests)
	StCloneIngress                // session X, FieldList
	StCloneEgress                 // session X, FieldList
	StResubmit                    // FieldList
	StRecirculate                 // FieldList
	StTruncate                    // to X bytes
	StJump                        // to statement N
	StJumpIfZero                  // if X is 0, to statement N
	StExit                        //
	StAssert                      // X
	StLog                         // Text, with {} for each of Exprs

	StExtract      // parser: Head
	StExtractStack // parser: next element of Stack
	StExtractVar   // parser: Head, its varbit field X bits long
	StAdvance      // parser: by X bits
	StVerify       // parser: X, or else error Y
)

// Stmt is one statement. Which members count depends on Op.
type Stmt struct {
	Op          StmtOp
	Dst         *Expr // OpField or OpStackElem or OpStackField
	X, Y        *Expr
	Exprs       []*Expr
	Field, Src  FieldRef // varbit fields
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
	Text        string
	Source      Source
}
