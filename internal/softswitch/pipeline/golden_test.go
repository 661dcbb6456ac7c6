package pipeline

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A script in testdata configures a pipeline and lists inputs and expected outputs. The outputs are
// those of bmv2's simple_switch, with the same program and entries. Its lines:
//
//	group ID INSTANCE:PORT…          multicast group
//	session ID PORT                  clone session
//	value SET VALUE                  adds to a parser value set
//	member PROFILE ID ACTION ARG…    member of an action profile
//	select PROFILE ID MEMBER…        group of a selector
//	entry TABLE KEY… => ACTION ARG… [@PRIORITY], or => member ID, or => group ID
//	default TABLE ACTION ARG…
//	in PORT HEX
//	out PORT HEX                     in the order of Process

// loadProgram reads a compiled program of testdata.
func loadProgram(tb testing.TB, name string) *program.Program {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		tb.Fatal(err)
	}
	prog, err := program.Load(b)
	if err != nil {
		tb.Fatal(err)
	}
	return prog
}

// start compiles a program of testdata.
func start(tb testing.TB, name string, o Options) *Pipeline {
	tb.Helper()
	p, err := New(loadProgram(tb, name), o)
	if err != nil {
		tb.Fatal(err)
	}
	pk := p.pool.packet() // whose words were used before
	for i := range pk.w {
		pk.w[i] = 0xdead_beef_dead_beef
	}
	p.pool.release(pk)
	return p
}

func num0(tb testing.TB, s string) int {
	tb.Helper()
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return int(n)
}

func value(tb testing.TB, s string, bits int) match.Value {
	tb.Helper()
	n, ok := new(big.Int).SetString(s, 0)
	if !ok {
		tb.Fatalf("%q is no number", s)
	}
	return match.FromBig(n, bits)
}

// call makes a call of its name and arguments of one of a table's actions; the
// compiler gives each table its own copy of an action.
func call(tb testing.TB, prog *program.Program, of []int, f []string) Call {
	tb.Helper()
	at := slices.IndexFunc(of, func(i int) bool { return prog.Actions[i].Name == f[0] })
	if at < 0 {
		tb.Fatalf("no action %s", f[0])
	}
	i := of[at]
	c := Call{Action: i}
	for j, p := range prog.Actions[i].Params {
		c.Args = append(c.Args, value(tb, f[1+j], p.Bits))
	}
	return c
}

// keyField reads VALUE, VALUE/PREFIX, VALUE&MASK or LOW-HIGH.
func keyField(tb testing.TB, s string, bits int) match.Field {
	tb.Helper()
	i := strings.IndexAny(s, "/&-")
	if i < 0 {
		return match.Field{Value: value(tb, s, bits)}
	}
	f := match.Field{Value: value(tb, s[:i], bits)}
	switch s[i] {
	case '/':
		f.PrefixLen = num0(tb, s[i+1:])
	case '&':
		f.Mask = value(tb, s[i+1:], bits)
	default:
		f.High = value(tb, s[i+1:], bits)
	}
	return f
}

// entry adds an entry to a table.
func entry(tb testing.TB, p *Pipeline, f []string) {
	tb.Helper()
	t := p.Table(f[0])
	if t == nil {
		tb.Fatalf("no table %s", f[0])
	}
	e := &Entry{}
	at := slices.Index(f, "=>")
	for i, s := range f[1:at] {
		e.Key = append(e.Key, keyField(tb, s, t.Info().Key[i].Bits))
	}
	to := f[at+1:]
	if last := to[len(to)-1]; last[0] == '@' {
		e.Priority = int32(num0(tb, last[1:]))
		to = to[:len(to)-1]
	}
	switch to[0] {
	case "member":
		e.Ref, e.Member = RefMember, uint32(num0(tb, to[1]))
	case "group":
		e.Ref, e.Group = RefGroup, uint32(num0(tb, to[1]))
	default:
		e.Call = call(tb, t.s.prog, t.Info().Actions, to)
	}
	if err := t.Insert(e); err != nil {
		tb.Fatal(err)
	}
}

// setUp runs a line of a script that sets something up, and reports whether it is
// one.
func setUp(tb testing.TB, p *Pipeline, line string) bool {
	tb.Helper()
	f := strings.Fields(line)
	if len(f) == 0 || f[0] == "#" {
		return true
	}
	var err error
	switch f[0] {
	case "group":
		var to []pre.Replica
		for _, s := range f[2:] {
			rid, port, _ := strings.Cut(s, ":")
			to = append(to, pre.Replica{Port: uint16(num0(tb, port)), Instance: uint16(num0(tb, rid))})
		}
		err = p.opt.PRE.InsertGroup(uint32(num0(tb, f[1])), to)
	case "session":
		to := []pre.Replica{{Port: uint16(num0(tb, f[2]))}}
		err = p.opt.PRE.InsertSession(uint32(num0(tb, f[1])), pre.Session{Replicas: to})
	case "value":
		set := p.ValueSet(f[1])
		var fields []match.Field
		for i, s := range f[2:] {
			bits := set.Info().Bits[i]
			fields = append(fields, match.Field{Value: value(tb, s, bits)})
		}
		err = set.Set(append(set.Get(), fields))
	case "member":
		prof := p.Profile(f[1])
		err = prof.InsertMember(uint32(num0(tb, f[2])), call(tb, p.prog, prof.tables[0].Actions, f[3:]))
	case "select":
		var ms []Weighted
		for _, s := range f[3:] {
			ms = append(ms, Weighted{Member: uint32(num0(tb, s)), Weight: 1})
		}
		err = p.Profile(f[1]).InsertGroup(uint32(num0(tb, f[2])), ms, 0)
	case "entry":
		entry(tb, p, f[1:])
	case "default":
		t := p.Table(f[1])
		err = t.SetDefault(call(tb, p.prog, t.Info().Actions, f[2:]))
	default:
		return false
	}
	if err != nil {
		tb.Fatalf("%s: %v", line, err)
	}
	return true
}

// TestGolden compares with what bmv2 made of the same packets.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txt")
		t.Run(name, func(t *testing.T) { golden(t, f, start(t, name, Options{PRE: pre.New(pre.Limits{})})) })
	}
}

// golden runs a script.
func golden(t *testing.T, file string, p *Pipeline) {
	r, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var got []string
	in := ""
	n := 0
	for lines.Scan() {
		line := lines.Text()
		if setUp(t, p, line) {
			continue
		}
		f := strings.Fields(line)
		switch f[0] {
		case "in":
			if len(got) > 0 {
				t.Fatalf("%s\nmakes also %q", in, got)
			}
			in = line
			b, err := hex.DecodeString(f[2])
			if err != nil {
				t.Fatal(err)
			}
			p.Process(0, uint16(num0(t, f[1])), b, func(port uint16, b []byte) {
				got = append(got, fmt.Sprintf("out %d %x", port, b))
			})
			n++
		case "out":
			if len(got) == 0 || got[0] != line {
				t.Fatalf("%s\nmakes %q\nwanted %s", in, got, line)
			}
			got = got[1:]
		default:
			t.Fatalf("line %q", line)
		}
	}
	if len(got) > 0 {
		t.Fatalf("%s\nmakes also %q", in, got)
	}
	if n < 50 {
		t.Fatalf("only %d packets", n)
	}
}
