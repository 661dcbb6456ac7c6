package program

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// node is a value of the JSON tree with its context for errors. Its accessors reject the program if
// the value is not of the required kind.
type node struct {
	v         any
	construct string
	detail    string // the part of the construct
	member    string // the member of that part with the value v
	source    Source
}

// in returns n as a part of the named construct.
func (n node) in(format string, args ...any) node {
	n.construct, n.detail, n.member = fmt.Sprintf(format, args...), "", ""
	return n
}

// under returns n as a named part of the current construct.
func (n node) under(format string, args ...any) node {
	n.detail, n.member = fmt.Sprintf(format, args...), ""
	return n
}

func (n node) refuse(kind error, format string, args ...any) {
	construct := n.construct
	if n.detail != "" {
		construct += ", " + n.detail
	}
	if n.member != "" {
		construct += ", " + n.member
	}
	panic(refusal{&LoadError{construct, n.source, fmt.Sprintf(format, args...), kind}})
}

// invalid rejects the program as one that p4c would not have written.
func (n node) invalid(format string, args ...any) { n.refuse(ErrInvalid, format, args...) }

// unsupported rejects the program for something that the embedded switch does not support.
func (n node) unsupported(format string, args ...any) { n.refuse(ErrUnsupported, format, args...) }

func (n node) want(kind string) { n.invalid("want %s, have %s", kind, n.kind()) }

func (n node) kind() string {
	switch v := n.v.(type) {
	case nil:
		return "nothing"
	case bool:
		return strconv.FormatBool(v)
	case string:
		return "the string " + quote(v)
	case json.Number:
		return "the number " + shorten(v.String(), 40)
	case []any:
		return fmt.Sprintf("an array of %d", len(v))
	}
	return "an object"
}

func (n node) isNull() bool { return n.v == nil }

// object checks that n is an object with all of the required members and no others, except the
// optional ones and the informative source_info, pi_omit and pragmas. Both lists are separated by
// blanks. The result has the object's own source position.
func (n node) object(required, optional string) node {
	o, ok := n.v.(*object)
	if !ok {
		n.want("an object")
	}
	if v, ok := o.members["source_info"]; ok {
		info := n
		info.v = v
		n.source = info.sourceInfo()
	}
	must := strings.Fields(required)
	for _, name := range must {
		if _, ok := o.members[name]; !ok {
			n.invalid("%q is missing", name)
		}
	}
	allowed := append(must, strings.Fields(optional+" source_info pi_omit pragmas")...)
	for _, name := range o.names {
		if !slices.Contains(allowed, name) {
			n.unsupported("unknown member %s", quote(name))
		}
	}
	return n
}

// get returns a member of an object, or an empty node if there is none of that name.
func (n node) get(name string) node {
	n.v, n.member = n.v.(*object).members[name], name
	return n
}

// has reports whether n is an object with that member.
func (n node) has(name string) bool {
	o, ok := n.v.(*object)
	if !ok {
		return false
	}
	_, ok = o.members[name]
	return ok
}

func (n node) sourceInfo() Source {
	o, ok := n.v.(*object)
	if !ok {
		n.want("an object as source_info")
	}
	var s Source
	for _, name := range o.names {
		m := n.get(name)
		switch name {
		case "filename":
			s.File = m.str()
		case "line":
			s.Line = m.integer(0, 1<<30)
		case "column":
			s.Column = m.integer(0, 1<<30)
		case "source_fragment":
			s.Fragment = shorten(m.str(), 80)
		default:
			n.unsupported("unknown member %s of source_info", quote(name))
		}
	}
	return s
}

func (n node) str() string {
	s, ok := n.v.(string)
	if !ok {
		n.want("a string")
	}
	return s
}

// name returns a string that names something.
func (n node) name() string {
	s := n.str()
	if s == "" || len(s) > maxName {
		n.invalid("a name of %d bytes", len(s))
	}
	return s
}

func (n node) boolean() bool {
	b, ok := n.v.(bool)
	if !ok {
		n.want("true or false")
	}
	return b
}

// truth returns a boolean, which p4c may have written as 0 or 1.
func (n node) truth() bool {
	if _, ok := n.v.(json.Number); ok {
		return n.integer(0, 1) == 1
	}
	return n.boolean()
}

// flag returns a boolean member that may be left out.
func (n node) flag(name string, absent bool) bool {
	if !n.has(name) {
		return absent
	}
	return n.get(name).boolean()
}

func (n node) integer(low, high int) int {
	num, ok := n.v.(json.Number)
	if !ok {
		n.want("a number")
	}
	i, err := strconv.Atoi(num.String())
	if err != nil || i < low || i > high {
		n.invalid("%s is not an integer from %d to %d", shorten(num.String(), 40), low, high)
	}
	return i
}

// size returns a count, which has a limit.
func (n node) size(high int) int {
	i := n.integer(0, math.MaxInt)
	if i > high {
		n.unsupported("%d, more than %d", i, high)
	}
	return i
}

// list returns the elements of an array.
func (n node) list() []node {
	l, ok := n.v.([]any)
	if !ok {
		n.want("an array")
	}
	nodes := make([]node, len(l))
	for i, v := range l {
		nodes[i] = n
		nodes[i].v = v
	}
	return nodes
}

// optional returns the elements of an optional array.
func (n node) optional(name string) []node {
	if n = n.get(name); n.isNull() {
		return nil
	}
	return n.list()
}

// tuple returns the elements of an array with low to high elements.
func (n node) tuple(low, high int) []node {
	l := n.list()
	if len(l) < low || len(l) > high {
		n.want(fmt.Sprintf("an array of %d", low))
	}
	return l
}

// digits returns the digits of a string such as "0x0a", "-0x0a" or, from older compilers, "0a".
func (n node) digits() string {
	s := n.str()
	digits := strings.TrimPrefix(strings.TrimPrefix(s, "-"), "0x")
	if digits == "" || strings.Trim(digits, "0123456789abcdefABCDEF") != "" {
		n.invalid("%s is not a hexadecimal number", quote(s))
	}
	if len(digits) > maxHex {
		n.unsupported("a constant of %d hexadecimal digits", len(digits))
	}
	return digits
}

// hex returns the value of a hexadecimal string.
func (n node) hex() *big.Int {
	v, _ := new(big.Int).SetString(n.digits(), 16)
	if n.str()[0] == '-' {
		v.Neg(v)
	}
	return v
}

// unsigned returns a hex of at most that many bits.
func (n node) unsigned(bits int) *big.Int {
	v := n.hex()
	if v.Sign() < 0 || v.BitLen() > bits {
		n.invalid("%s does not fit in %d bits", n.kind(), bits)
	}
	return v
}

// argument returns a hex of at most that many bits; a negative one becomes its two's complement.
func (n node) argument(bits int) *big.Int {
	v := n.hex()
	if v.Sign() >= 0 {
		return n.unsigned(bits)
	}
	limit := new(big.Int).Lsh(big.NewInt(1), uint(bits))
	if half := new(big.Int).Rsh(limit, 1); new(big.Int).Neg(v).Cmp(half) > 0 {
		n.invalid("%s does not fit in %d bits", n.kind(), bits)
	}
	return v.Add(v, limit)
}

// small returns a hex from 0 to high.
func (n node) small(high int) int {
	v := n.hex()
	if v.Sign() < 0 || v.Cmp(big.NewInt(int64(high))) > 0 {
		n.invalid("%s is not from 0 to %d", n.kind(), high)
	}
	return int(v.Int64())
}
