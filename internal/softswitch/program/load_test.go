package program

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestText feeds texts that are not the JSON of a program.
func TestText(t *testing.T) {
	deep := strings.Repeat("[", maxDepth+1)
	long := `{"a": [` + strings.Repeat("1,", maxValues) + `1]}`
	for _, c := range []struct{ text, want string }{
		{"", "the JSON text: byte 0: unexpected EOF: invalid bmv2 JSON"},
		{"{", "the JSON text: byte 1: unexpected EOF: invalid bmv2 JSON"},
		{"[1 2]", "the JSON text: byte 3: invalid character '2' after array element: invalid bmv2 JSON"},
		{"{} {}", "the JSON text: byte 4: more text after the JSON object: invalid bmv2 JSON"},
		{`{"a": 1, "a": 2}`, `the JSON text: byte 12: member "a" occurs twice in an object: invalid bmv2 JSON`},
		{deep, "the JSON text: byte 2001: more than 2000 objects and arrays inside each other: invalid bmv2 JSON"},
		{long, "the JSON text: byte 4194308: more than 2097152 values: invalid bmv2 JSON"},
		{strings.Repeat(" ", maxJSON+1), "the JSON text: 67108865 bytes, more than 67108864: invalid bmv2 JSON"},
		{"null", "the program: want an object, have nothing: invalid bmv2 JSON"},
		{"7", "the program: want an object, have the number 7: invalid bmv2 JSON"},
	} {
		_, err := Load([]byte(c.text))
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", shorten(c.text, 20), err, c.want)
		}
	}
}

// TestErrorParts looks at what a program finds in the error, besides its text.
func TestErrorParts(t *testing.T) {
	_, err := Load(readSample(t, "refused_index"))
	var e *LoadError
	if !errors.As(err, &e) || !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrInvalid) {
		t.Fatalf("%#v", err)
	}
	want := LoadError{
		Construct: `parser state "start", key 0`,
		Source:    Source{File: "refused_index.p4"},
		Reason:    "not a field, the last element's field of a stack, or a lookahead",
		Kind:      ErrUnsupported,
	}
	if *e != want {
		t.Errorf("%#v\nwant %#v", *e, want)
	}
	text := edit(t, readSample(t, "tables"), `headers/[eth]/id = "x"`)
	if _, err := Load(text); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported) {
		t.Errorf("%v is not ErrInvalid", err)
	}
}

// TestDepth nests an expression deeper and deeper: it loads or is refused.
func TestDepth(t *testing.T) {
	nested := func(depth int) []byte {
		e := `{"type":"bool","value":true}`
		for range depth {
			e = `{"type":"expression","value":{"op":"not","left":null,"right":` + e + `}}`
		}
		return edit(t, readSample(t, "tables"), "pipelines/0/conditionals/0/expression = "+e)
	}
	if _, err := Load(nested(maxExpr - 1)); err != nil {
		t.Error(err)
	}
	_, err := Load(nested(maxExpr))
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "more than 500 levels") {
		t.Error(err)
	}
}

// TestSmallParts loads what p4c's samples don't have, but the format does.
func TestSmallParts(t *testing.T) {
	for _, c := range []struct{ sample, edits, want string }{
		{"externs", `actions/[externs97]/primitives/1/parameters/0/value = "0x0"`, "  1: recirculate at externs.p4:98"},
		{"externs", `actions/[externs97]/primitives/0/parameters/0 = {"type": "expression", "value": {"op": "+", ` +
			`"left": null, "right": {"type": "expression", "value": {"op": "access_field", ` +
			`"left": {"type": "header", "value": "sum"}, "right": 0}}}}`, "  0: clone egress (0x0 + sum.sum) with field list 1"},
		{"externs", `actions/[externs97]/primitives/0/parameters/0 = {"type": "expression", "value": {"op": "size_stack", ` +
			`"left": null, "right": {"type": "header_stack", "value": "tags"}}}`, "  0: clone egress size of tags with"},
		{"externs", `actions/[externs97]/primitives/0 = {"op": "assign_header_stack", "parameters": [` +
			`{"type": "header_stack", "value": "tags"}, {"type": "header_stack", "value": "copies"}]}`, "  0: assign stack tags = copies"},
		{"tables", `pipelines/[egress]/tables/0/action_ids -`, "action Out.rewrite -> end"},
		{"tables", `pipelines/[egress]/tables/0/key/0/name -`, `key "standard_metadata.egress_rid" standard_metadata.egress_rid`},
		{"tables", `pipelines/[egress]/tables/0/match_type = "ternary"`, "table Out.replicas ternary size"},
		{"tables", `pipelines/[ingress]/tables/[In.routes]/default_entry/action_data/0 = "-0x1"`, "default In.forward(0x1ff, "},
		{"tables", `pipelines/[ingress]/conditionals/1/expression = {"type": "expression", "value": {"op": "valid", ` +
			`"left": null, "right": {"type": "header", "value": "eth"}}}`, "conditional node_13: valid eth ?"},
		{"tables", `pipelines/[ingress]/tables/[In.acl]/entries/0/match_key/3/prefix_length = 6`, " 0x8000000/6 0x1 priority 1"},
		{"tables", `pipelines/[ingress]/tables/[In.acl]/entries/0/match_key/3/prefix_length = 0`, " 0x0/0 0x1 priority 1"},
		{"tables", `header_types/[ethernet_t]/fields/0/2 = 1`, "header eth ethernet_t (112): dst:int<48>"},
		{"tables", "__meta__ -", `program "tables.p4", format 0.0`},
		{"tables", "__meta__/version -", `program "tables.p4", format 0.0`},
		{"tables", `field_aliases + ["intrinsic_metadata.magic", ["eth", "type"]]`, "std EgressRid = standard_metadata.egress_rid"},
		{"tables", `pipelines/[ingress]/tables/0/pragmas = ["old"]`, "table tbl_tables22 exact"},
		{"parser", `parsers/0/parse_states/[start]/transitions/0/value = "8847"`, "    0x8847: "},
		{"parser", `parsers/0/parse_states/[start]/transitions/0/type -
			parsers/0/parse_states/[start]/transitions/0/mask -`, "    0x8847: "},
		{"parser", `parsers/0/parse_states/[start]/transitions = [{"value": "default", "mask": null, "next_state": null}]`, "    default: accept"},
		{"parser", `parsers/0/parse_states/[skip]/transition_key = [{"type": "field", "value": ["eth", "type"]}, {"type": "field", "value": ["scalars", "meta_t.next"]}]
			parsers/0/parse_states/[skip]/transitions/0 = {"type": "parse_vset", "value": "Parse.pairs", "mask": null, "next_state": null}`, "value set Parse.pairs of [24]"},
		{"unions", `actions/0/primitives = [{"op": "assign_union", "parameters": [{"type": "header_union", "value": "u"}, {"type": "header_union", "value": "v"}]}]`,
			"  0: assign stack u = v"},
		{"unions", `pipelines/0/conditionals/0/expression = {"type": "expression", "value": {"op": "!=", "left": {"type": "header_union", "value": "u"}, "right": {"type": "header_union", "value": "v"}}}`,
			"not ((((valid u.a and valid v.a) and (u.a.tag == v.a.tag)) and (u.a.x == v.a.x)) or (((valid u.c and valid v.c) and "},
		{"unions", `pipelines/0/conditionals/0/expression = {"type": "expression", "value": {"op": "==", "left": {"type": "header", "value": "b1"}, "right": {"type": "header", "value": "b2"}}}`,
			"(((valid b1 and valid b2) and (b1.len == b2.len)) and (b1.d same number as b2.d))"},
		{"unions", `parsers/0/parse_states/[stack_a]/transition_key = [{"type": "union_stack_field", "value": ["s", "c", "y"]}]
			parsers/0/parse_states/[stack_a]/transitions = []`, "  select s[last].y"},
		{"older", `pipelines/0/tables/0/type = "indirect_ws"
			pipelines/0/tables/0/selector = {"algo": "crc16", "input": []}
			pipelines/0/tables/0/act_prof_name = "profile"`, "profile profile size 0 selector=true crc16"},
	} {
		p, err := Load(edit(t, readSample(t, c.sample), c.edits))
		if err != nil {
			t.Errorf("%s: %v", c.edits, err)
		} else if !strings.Contains(p.String(), c.want) {
			t.Errorf("%s: no %q", c.edits, c.want)
		}
	}
}

// TestLongNames: an error does not repeat text from the JSON in full.
func TestLongNames(t *testing.T) {
	name := strings.Repeat("ä", maxName)
	text := edit(t, readSample(t, "tables"), fmt.Sprintf("actions/0/primitives + {\"op\": %q, \"parameters\": []}", name))
	_, err := Load(text)
	if err == nil || len(err.Error()) > 300 || !strings.Contains(err.Error(), "ä…") {
		t.Errorf("%.500v", err)
	}
	text = edit(t, readSample(t, "tables"), fmt.Sprintf("headers/0/name = %q", name))
	if _, err := Load(text); err == nil || !strings.Contains(err.Error(), "a name of 2000 bytes") {
		t.Errorf("%.500v", err)
	}
}

// TestTightBounds pins the bounds that the executing side depends on.
func TestTightBounds(t *testing.T) {
	f := func(bits int, signed bool) *Expr { return &Expr{Op: OpField, Bits: bits, Signed: signed} }
	u32, u64, s8 := f(32, false), f(64, false), f(8, true)
	for _, c := range []struct {
		e      *Expr
		bits   int
		signed bool
	}{
		{&Expr{Op: OpAdd, Left: u32, Right: u32}, 33, false},
		{&Expr{Op: OpSub, Left: u32, Right: u32}, 33, true},
		{&Expr{Op: OpSub, Left: s8, Right: s8}, 9, true},
		{&Expr{Op: OpAdd, Left: u32, Right: s8}, 34, true},
		{&Expr{Op: OpMul, Left: u32, Right: u64}, 96, false},
		{&Expr{Op: OpAnd, Left: &Expr{Op: OpNot, Left: u64, Bits: 65, Signed: true}, Right: u32}, 32, false},
		{&Expr{Op: OpAnd, Left: s8, Right: s8}, 8, true},
		{&Expr{Op: OpOr, Left: u32, Right: u64}, 64, false},
		{&Expr{Op: OpNot, Left: u32}, 33, true},
		{&Expr{Op: OpShl, Left: u32, Right: f(5, false)}, 0, false},
		{&Expr{Op: OpShr, Left: u32, Right: f(5, false)}, 32, false},
		{&Expr{Op: OpTwoComp, Left: u64, Right: constant(ones(3))}, 7, true},
		{&Expr{Op: OpUSatCast, Left: u64, Right: constant(ones(3))}, 7, false},
		{&Expr{Op: OpMod, Left: u64, Right: u32}, 32, false},
	} {
		c.e.bound()
		if c.e.Bits != c.bits || c.e.Signed != c.signed {
			t.Errorf("%s of %d and %d bits: %d bits, signed %t; want %d, %t", opName(c.e), c.e.Left.Bits,
				max(c.bits, 0), c.e.Bits, c.e.Signed, c.bits, c.signed)
		}
	}
}

// TestManyHeaders declares one header more than there may be.
func TestManyHeaders(t *testing.T) {
	var b strings.Builder
	for i := range maxHeaders {
		fmt.Fprintf(&b, `,{"name": "h%d", "id": %d, "header_type": "ethernet_t", "metadata": false}`, i, i)
	}
	_, err := Load(edit(t, readSample(t, "tables"), "headers = ["+b.String()[1:]+"]"))
	if err == nil || strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
	more := `,{"name": "one", "id": 1000000, "header_type": "ethernet_t", "metadata": false}]`
	_, err = Load(edit(t, readSample(t, "tables"), "headers = ["+b.String()[1:]+more))
	if err == nil || !strings.Contains(err.Error(), `header "one": more than 16384 headers`) {
		t.Error(err)
	}
}

// TestWidenedSigned has a signed field where its sign would have to be extended.
func TestWidenedSigned(t *testing.T) {
	for _, bits := range []int{8, 64, 65} {
		e := &Expr{
			Op:    OpOr,
			Left:  &Expr{Op: OpField, Bits: 128},
			Right: &Expr{Op: OpField, Bits: bits, Signed: true},
		}
		e.bound()
		if e.inWords(128) {
			t.Errorf("%d bits pass in 128", bits)
		}
		if !e.inWords(64) {
			t.Errorf("%d bits do not pass in 64", bits)
		}
	}
}

// TestDefaultLast checks that a default transition comes last, as bmv2 has it,
// wherever it is written, and that the first state is the initial one.
func TestDefaultLast(t *testing.T) {
	text := edit(t, readSample(t, "parser"), `parsers/0/init_state = "address"
parsers/0/parse_states/[start]/transitions/6 -
parsers/0/parse_states/[start]/transitions/2 = {"type": "default", "value": null, "mask": null, "next_state": "start"}`)
	p, err := Load(text)
	if err != nil {
		t.Fatal(err)
	}
	s := p.Parser.States
	if s[0].Name != "address" || s[5].Name != "start" {
		t.Fatalf("states %s … %s", s[0].Name, s[5].Name)
	}
	c := s[5].Cases
	if len(c) != 6 || !c[5].Default || c[5].Next != 5 || c[2].Default || c[2].Next == None {
		t.Errorf("cases %+v", c)
	}
}

func BenchmarkLoad(b *testing.B) {
	text := readSample(b, "externs")
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load(text); err != nil {
			b.Fatal(err)
		}
	}
}

// samples returns the names of all programs in testdata.
func samples(t testing.TB) []string {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".json")
	}
	return files
}
