package purity

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A compiled package is what go list -export says of one.
type compiled struct {
	ImportPath, Dir, Export string
	GoFiles, CgoFiles       []string
}

// TestCircles: calls between the files of a package go one way. A use of a function or method
// as a value is a call; a use of a type, a constant or a variable is none.
func TestCircles(t *testing.T) {
	pkgs := goList[compiled](t, "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles,CgoFiles")
	exports := map[string]string{}
	for _, p := range pkgs {
		exports[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	files := 0
	for _, p := range pkgs {
		dir, own := strings.CutPrefix(p.ImportPath, module)
		if !own {
			continue
		}
		var parsed []*ast.File
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
		files += len(parsed)
		calls, err := callsBetween(fset, parsed, imports)
		if err != nil {
			t.Fatal(err)
		}
		for _, circle := range calls.circles() {
			t.Errorf("these files of %s call each other: %s\n%s", dir, strings.Join(circle, " "), calls.explain(circle))
		}
	}
	if files < 500 {
		t.Errorf("%d files only", files)
	}
}

// A callGraph holds, by file and file, one call from the first of what the second declares.
type callGraph map[string]map[string]string

// callsBetween finds the calls between the files of a package.
func callsBetween(fset *token.FileSet, files []*ast.File, imports types.Importer) (callGraph, error) {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: imports, FakeImportC: true}
	pkg, err := conf.Check("p", fset, files, info)
	calls := callGraph{}
	for _, f := range files {
		from := filepath.Base(fset.Position(f.Pos()).Filename)
		calls[from] = map[string]string{}
		ast.Inspect(f, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			called, ok := info.Uses[id].(*types.Func)
			if !ok || called.Pkg() != pkg {
				return true
			}
			if r := called.Signature().Recv(); r != nil && types.IsInterface(r.Type()) {
				return true // what is called is not known
			}
			to := filepath.Base(fset.Position(called.Origin().Pos()).Filename)
			if _, known := calls[from][to]; from != to && !known {
				calls[from][to] = fmt.Sprintf("%s:%d calls %s of %s", from, fset.Position(id.Pos()).Line, id.Name, to)
			}
			return true
		})
	}
	return calls, err
}

// way is a shortest way of calls from a file to another, or nil.
func (g callGraph) way(from, to string) []string {
	type step struct {
		file string
		way  []string
	}
	seen := map[string]bool{}
	for queue := []step{{file: from}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, next := range slices.Sorted(maps.Keys(g[at.file])) {
			way := append(slices.Clone(at.way), g[at.file][next])
			if next == to {
				return way
			}
			if !seen[next] {
				seen[next] = true
				queue = append(queue, step{next, way})
			}
		}
	}
	return nil
}

// circles are the sets of files, in order, of which each calls each of the others, directly or
// by way of others.
func (g callGraph) circles() (found [][]string) {
	done := map[string]bool{}
	for _, f := range slices.Sorted(maps.Keys(g)) {
		circle := []string{f}
		for _, o := range slices.Sorted(maps.Keys(g)) {
			if o > f && !done[f] && g.way(f, o) != nil && g.way(o, f) != nil {
				circle = append(circle, o)
				done[o] = true
			}
		}
		if len(circle) > 1 {
			found = append(found, circle)
		}
	}
	return found
}

// explain names, for each file of a circle, the calls by which it comes back to itself.
func (g callGraph) explain(circle []string) string {
	var b strings.Builder
	for _, f := range circle {
		fmt.Fprintf(&b, "\t%s\n", strings.Join(g.way(f, f), ", "))
	}
	return b.String()
}

// The guard guards: each of these packages has the circles given, and nothing else.
func TestCallsBetween(t *testing.T) {
	for name, c := range map[string]struct {
		files []string // of a.go, b.go, ...
		want  string
	}{
		"functions":              {[]string{"func A() { B() }", "func B() { A() }"}, "[[a.go b.go]]"},
		"one way":                {[]string{"func A() { B() }", "func B() {}"}, "[]"},
		"within a file":          {[]string{"func A() { A() }"}, "[]"},
		"three":                  {[]string{"func A() { B() }", "func B() { C() }", "func C() { A() }", "func D() { A() }"}, "[[a.go b.go c.go]]"},
		"two circles":            {[]string{"func A() { B() }", "func B() { A(); C() }", "func C() { D() }", "func D() { C() }"}, "[[a.go b.go] [c.go d.go]]"},
		"method":                 {[]string{"type T int; func (t T) A() { B() }", "func B() { T(1).A() }"}, "[[a.go b.go]]"},
		"method of its own":      {[]string{"type T int; func (t *T) A() { t.B() }", "func (t *T) B() { t.A() }"}, "[[a.go b.go]]"},
		"promoted method":        {[]string{"type T struct{ U }; func A() { B(T{}) }", "type U int; func B(t T) { t.C() }", "func (U) C() { A() }"}, "[[a.go b.go c.go]]"},
		"method of a generic":    {[]string{"type T[V any] int; func (t *T[V]) A() { B() }", "func B() { new(T[int]).A() }"}, "[[a.go b.go]]"},
		"value":                  {[]string{"func A() { _ = B }", "func B() { _ = A }"}, "[[a.go b.go]]"},
		"types":                  {[]string{"type T struct{ *U }; func A(*U) {}", "type U struct{ *T }; func B(*T) {}"}, "[]"},
		"constant":               {[]string{"const a = b", "const b = 1; var _ = a"}, "[]"},
		"method of an interface": {[]string{"type I interface{ M() }; func A() { B(nil) }", "func B(i I) { i.M() }"}, "[]"},
	} {
		fset := token.NewFileSet()
		var files []*ast.File
		for i, text := range c.files {
			f, err := parser.ParseFile(fset, string(rune('a'+i))+".go", "package p\n"+text, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		calls, err := callsBetween(fset, files, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		found := calls.circles()
		if got := fmt.Sprint(found); got != c.want {
			t.Errorf("%s: circles %s, want %s", name, got, c.want)
			continue
		}
		if name == "method" {
			want := "\ta.go:2 calls B of b.go, b.go:2 calls A of a.go\n\tb.go:2 calls A of a.go, a.go:2 calls B of b.go\n"
			if got := calls.explain(found[0]); got != want {
				t.Errorf("%s: explained as\n%swant\n%s", name, got, want)
			}
		}
	}
}
