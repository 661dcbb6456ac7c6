// Package program is the embedded switch's representation of a compiled P4 program: p4c's bmv2
// JSON, checked and with all names resolved.
//
// [Load] reads the JSON. It accepts any v1model program that the types of this package can express,
// and rejects everything else with the construct and the position in the P4 source; nothing is
// ignored. A *Program is immutable after Load, holds no state and runs nothing: package pipeline
// compiles it. All indices, widths, arities of primitives and jump targets in it are valid, so
// users need no checks of their own.
package program

import "math/big"

// Program is a compiled v1model program. Cross references are indices into its slices.
type Program struct {
	Name    string // of the P4 source file, as in the JSON
	Version [2]int // of the JSON format

	Headers      []Header // header instances, including metadata and stack elements
	Stacks       []Stack
	Errors       []Enumerator // parser errors
	Parser       Parser
	ValueSets    []ValueSet
	Deparser     []int // headers in the order of emission
	Calculations []Calculation
	Checksums    []Checksum
	Actions      []Action
	Tables       []Table // of both controls, with unique names
	Conditionals []Conditional
	Profiles     []Profile
	Counters     []Counter
	Meters       []Meter
	Registers    []Register
	Digests      []Digest
	FieldLists   []FieldList
	Ingress      Node // first node of ingress
	Egress       Node
	Std          Std
}

// Source is a position in the P4 source. The zero value means unknown.
type Source struct {
	File         string
	Line, Column int
	Fragment     string // the source text there, possibly shortened
}

// None is the index of nothing.
const None = -1

// Header is a header instance or a metadata struct.
type Header struct {
	Name     string
	Type     string
	Metadata bool // always valid, never emitted
	Fields   []Field
	Bits     int // sum of the fixed-width fields
	Stack    int // the stack or union that it is part of, or None
	Source   Source
}

// Field is a field of a header.
type Field struct {
	Name   string
	Bits   int // of a varbit field: the maximum
	Signed bool
	Var    bool // varbit; at most one in a header
}

// FieldRef refers to a field of a header instance.
type FieldRef struct {
	Header int
	Field  int // or Valid
}

// Valid in FieldRef.Field is the header's validity, a 1-bit read-only value.
const Valid = -2

// NoField is a FieldRef to nothing.
var NoField = FieldRef{None, None}

// Stack is a header stack, a header union, or a stack of unions. At most one header of a union is
// valid: making one valid makes the others invalid.
type Stack struct {
	Name    string
	Headers []int // element by element
	Members int   // headers per element if elements are unions; 0: elements are headers
}

// Enumerator is a named constant, such as a parser error.
type Enumerator struct {
	Name  string
	Value uint32
}

// Std are the fields of v1model's standard metadata. A field that the program
// does not declare is NoField.
type Std [numStd]FieldRef

// The fields, as indices of a Std. Every program has those up to StdPacketLength.
const (
	StdIngressPort = iota
	StdEgressSpec
	StdEgressPort
	StdInstanceType
	StdPacketLength
	StdEnqTimestamp
	StdEnqQdepth
	StdDeqTimedelta
	StdDeqQdepth
	StdIngressTimestamp // …_global_timestamp
	StdEgressTimestamp
	StdMcastGrp
	StdEgressRid
	StdChecksumError
	StdParserError
	StdPriority
	numStd
)

// Parser is the parser. It starts in state 0.
type Parser struct {
	States []State
}

// State is a parser state.
type State struct {
	Name   string
	Ops    []Stmt
	Key    []*Expr // OpField, OpStackField or OpLookahead
	Cases  []Case  // tried in order
	Source Source
}

// Case is a transition. It is taken if all parts of the key match, each masked. If none of a
// state's cases matches, the parser accepts without an error, as bmv2 does, although P4 specifies
// the error NoMatch.
type Case struct {
	Default  bool
	Values   []*big.Int // one per part of the key; nil with Default or ValueSet
	Masks    []*big.Int // likewise; nil: exact
	ValueSet int        // or None
	Next     int        // state, or Accept
}

// Accept ends the parser.
const Accept = -1

// ValueSet is a parser value set.
type ValueSet struct {
	Name string
	Bits []int // widths of the parts of the key matched against it
	Size int
}

// Node is a step of a control.
type Node struct {
	Kind  NodeKind
	Index int // into Tables or Conditionals
}

// NodeKind distinguishes tables from conditionals.
type NodeKind uint8

// Kinds of nodes.
const (
	NodeEnd NodeKind = iota // the control ends
	NodeTable
	NodeConditional
)

// Conditional is a branch.
type Conditional struct {
	Name        string
	Cond        *Expr // a boolean
	True, False Node
	Source      Source
}

// MatchKind is the match kind of a key field.
type MatchKind uint8

// Match kinds. p4c's JSON writes optional as ternary; P4Info knows the difference.
const (
	Exact MatchKind = iota
	LPM
	Ternary
	Range
)

// Table is a table, possibly one synthesized by the compiler.
type Table struct {
	Name    string
	Egress  bool // table of the egress control
	Key     []KeyField
	Kind    MatchKind // the most general of the key's kinds, in bmv2's order: exact < LPM < ternary < range
	Size    int
	Actions []int  // into Program.Actions
	Next    []Node // after each action, parallel to Actions; unused if HitMiss
	HitMiss bool   // Hit and Miss are used instead of Next
	Hit     Node
	Miss    Node
	After   Node // if no action runs (an indirect table that misses)
	Counter int  // direct counter, or None
	Meter   int  // direct meter, or None
	Timeout bool // supports idle timeouts
	Profile int  // or None
	Default *DefaultEntry
	Entries []Entry // const entries: the table is immutable
	Source  Source
}

// KeyField is one field of a table's key.
type KeyField struct {
	Name  string
	Match MatchKind
	Field FieldRef
	Bits  int
	Mask  *big.Int // applied to the field before matching; nil: none
}

// DefaultEntry is a table's action on a miss.
type DefaultEntry struct {
	Call        Call
	ConstAction bool // the control plane cannot change the action
	ConstEntry  bool // nor the arguments
}

// Call is an action with its arguments.
type Call struct {
	Action int
	Args   []*big.Int
}

// Entry is a const entry.
type Entry struct {
	Key      []EntryKey
	Priority int // smallest first, as in the JSON
	Call     Call
}

// EntryKey is one field of an entry's key; the KeyField's Match determines which fields are used.
type EntryKey struct {
	Value     *big.Int // of a range: its start
	Mask      *big.Int // ternary
	High      *big.Int // inclusive end of a range
	PrefixLen int
}

// Profile is an action profile, with a selector if Input is not empty.
type Profile struct {
	Name     string
	Size     int
	Selector bool
	Algo     Algo
	Input    []FieldRef
	Source   Source
}

// Algo is a hash or checksum algorithm.
type Algo uint8

// Algorithms of v1model.
const (
	CRC32 Algo = iota
	CRC16
	Csum16
	Xor16
	Identity
	Random
)

// Calculation hashes the concatenation of its inputs. It omits fields of invalid headers.
type Calculation struct {
	Name   string
	Algo   Algo
	Input  []CalcInput
	Source Source
}

// CalcInput is one input of a calculation.
type CalcInput struct {
	Kind  CalcKind
	Field FieldRef // CalcField, fixed width or varbit
	Head  int      // CalcHeader
	Const *big.Int // CalcConst
	Bits  int      // CalcConst
}

// CalcKind is the kind of a CalcInput.
type CalcKind uint8

// Kinds of inputs.
const (
	CalcField CalcKind = iota
	CalcConst
	CalcHeader
	CalcPayload // headers after the last one named before, and the unparsed rest
)

// Checksum is verified before ingress, or updated after egress, or both.
type Checksum struct {
	Name           string
	Target         FieldRef
	Calc           int
	Verify, Update bool
	Cond           *Expr // nil: always
	Source         Source
}

// Action is an action.
type Action struct {
	Name   string
	Params []Param
	Body   []Stmt
	Source Source
}

// Param is a parameter of an action.
type Param struct {
	Name string
	Bits int
}

// Counter is a counter array; all count packets and bytes.
type Counter struct {
	Name  string
	Size  int // direct: of its table
	Table int // a direct counter's table, or None
}

// Meter is a meter array: two rates, three colors.
type Meter struct {
	Name   string
	Size   int
	Bytes  bool     // rates in bytes instead of packets
	Table  int      // a direct meter's table, or None
	Target FieldRef // of a direct meter: destination of the color
}

// Register is a register array.
type Register struct {
	Name string
	Size int
	Bits int
}

// Digest is the format of a digest ("learn list").
type Digest struct {
	ID     int // by which statements refer to it
	Name   string
	Fields []FieldRef
}

// FieldList is the list of fields that a clone, resubmission or recirculation preserves.
type FieldList struct {
	ID     int
	Fields []FieldRef
}
