package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/operators anew")

func module(t *testing.T, dir string) *options {
	t.Helper()
	root, err := filepath.Abs("testdata/module")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	return &options{root: root, targets: []target{{dir: dir}}, seed: 1, count: 1000, workers: 2, log: io.Discard}
}

// sameNumbers is a list with the one mutation of package small that changes nothing.
const sameNumbers = "small/small.go Least\n- if a < b {\n+ if a <= b {\n= equal numbers are the same\n"

// TestSmallModule: what the tests of a module miss survives, all else dies, what is listed is
// not tested, and no file is changed.
func TestSmallModule(t *testing.T) {
	o := module(t, "small")
	o.listed = sameNumbers
	source := filepath.Join(o.root, "small", "small.go")
	before, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	r, err := o.run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var survived []string
	hangs := 0
	for _, m := range r.Mutants {
		switch {
		case m.Result == "survived":
			survived = append(survived, m.New)
		case m.Result == "equivalent" && (m.New != "if a <= b {" || m.By != "equal numbers are the same"):
			t.Errorf("%s is equivalent: %s", m.block(), m.By)
		case strings.HasSuffix(m.By, "it hangs"):
			hangs++
		case m.Result == "killed" && !strings.HasPrefix(m.By, "small: Test"):
			t.Errorf("%s was killed by %s", m.block(), m.By)
		}
	}
	slices.Sort(survived)
	want := []string{
		"func Grown(n int) bool { return n > (3 + 1) }",
		"func Grown(n int) bool { return n > (3 - 1) }",
		"func Grown(n int) bool { return n >= 3 }",
	}
	if !slices.Equal(survived, want) {
		t.Errorf("survived: %q", survived)
	}
	if r.Equivalent != 1 || hangs == 0 || r.Died != float64(r.Killed)/float64(r.Killed+3) || r.Interrupted {
		t.Errorf("%d hang: %+v", hangs, r)
	}
	var out strings.Builder
	if err := r.print(&out); err != nil || !strings.Contains(out.String(), "small/small.go:15: survived: comparison\n") {
		t.Errorf("%v: %s", err, &out)
	}
	if after, err := os.ReadFile(source); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed: %v", err)
	}
	nothingLeft(t)
}

func nothingLeft(t *testing.T) {
	t.Helper()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestInterrupted: a run that is interrupted reports what it has, and leaves nothing.
func TestInterrupted(t *testing.T) {
	o := module(t, "small")
	ctx, stop := context.WithCancel(context.Background())
	o.log = writer(func(p []byte) (int, error) {
		if strings.HasPrefix(string(p), "3/") {
			stop()
		}
		return len(p), nil
	})
	r, err := o.run(ctx)
	if err != nil || !r.Interrupted || r.Drawn < 3 || r.Drawn > 5 {
		t.Errorf("%+v, %v", r, err)
	}
	nothingLeft(t)
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestBroken: a module whose own tests fail shows nothing, and is refused.
func TestBroken(t *testing.T) {
	o := module(t, "small")
	o.targets[0].also = []string{"nowhere"}
	if r, err := o.run(context.Background()); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("%+v, %v", r, err)
	}
	nothingLeft(t)
}

// TestOperators compares all mutations of a package with a list.
func TestOperators(t *testing.T) {
	o := module(t, "operators")
	list, err := o.corpora(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range list[0].mutations() {
		line := fmt.Sprintf("%s %s: %s -> %s", m.Func, m.Operator, m.Old, m.New)
		if !m.compiles() {
			line += ": does not compile"
		}
		got = append(got, strings.ReplaceAll(line, "\n", "; "))
	}
	slices.Sort(got)
	const golden = "testdata/operators"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || strings.Join(got, "\n")+"\n" != string(want) {
		t.Errorf("%v: the mutations are now\n%s\nbut were\n%s", err, strings.Join(got, "\n"), want)
	}
	drawn := func(seed uint64) (keep []*mutation) {
		o.seed = seed
		for _, m := range o.draw(list) {
			keep = append(keep, m.mutation)
		}
		return keep
	}
	key := func(a, b *mutation) bool { return a.key() == b.key() && a.off == b.off }
	if one := drawn(1); len(one) == 0 || !slices.EqualFunc(one, drawn(1), key) || slices.EqualFunc(one, drawn(2), key) {
		t.Errorf("drawn: %v", one)
	}
}

// TestListed: each equivalent that is listed is a mutation of the code as it is now.
func TestListed(t *testing.T) {
	reasons, err := readEquivalents(listed)
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	o := options{root: root, targets: targets}
	list, err := o.corpora(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		for _, m := range c.mutations() {
			delete(reasons, m.key())
		}
	}
	for k, reason := range reasons {
		t.Errorf("no mutation of today is\n%s\n= %s", k, reason)
	}
	for _, bad := range []string{"f.go F\n- a", "f.go F\n= why", "f.go F\na\n= why", sameNumbers + "\n" + sameNumbers} {
		if got, err := readEquivalents(bad); err == nil {
			t.Errorf("%q passes: %v", bad, got)
		}
	}
}
