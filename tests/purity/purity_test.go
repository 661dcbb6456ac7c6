// Package purity holds the tests of the repository's architecture: that the
// pure cores are pure (pureDirs), and that no import points against the direction
// that docs/architecture.md lays down (limits and monopolies), and that no files of a package
// call each other. These tables are the only place of these rules.
//
// It reads source with go/parser and asks go list.
package purity

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the module's root, seen from this directory.
const root = "../.."

// pureDirs are the pure cores, with all that lies below them. Those that do
// not exist yet are bound from their first file on.
var pureDirs = []string{
	"pkg/rocev2",
	"pkg/qp/rc",
	"pkg/ackmerge",
	"pkg/bifurcation",
	"pkg/rdmcfallback/schedule",
	"pkg/rdmcfallback/engine",
	"internal/switchspec",
	"internal/routing/liveness",
	"internal/softswitch/program",
	"internal/softswitch/match",
	"internal/softswitch/pre",
	"internal/softswitch/pipeline",
	"internal/softswitch/traffic",
	"internal/switchagent/unicast",
	"internal/switchagent/links",
	"internal/switchagent/planner",
	"internal/connmgr/health",
	"internal/group",
	"internal/simnet",
	"internal/nbd/option.go",
	"internal/nbd/request.go",
	"pkg/replica/core",
	"pkg/collective/core",
	"pkg/collective/model",
	"pkg/mcrdma/life.go",
	"pkg/mcrdma/lifejobs.go",
	"pkg/mcrdma/lifeviews.go",
	"pkg/mcrdma/memberlife.go",
	"pkg/mcrdma/queue.go",
	"pkg/mcrdma/wire.go",
	"pkg/mcrdma/header.go",
	"pkg/mcrdma/op.go",
	"pkg/mcrdma/internal/unicast/core.go",
}

// impureImports are the packages, with all below them, that reach for the
// outside world or for concurrency. net/netip holds values only.
var impureImports = []string{"C", "context", "log", "net", "os", "runtime", "sync", "syscall", "testing"}

// impureCalls are the functions of otherwise harmless packages that a pure
// core must not use: clocks, timers, and printing.
var impureCalls = map[string][]string{
	"time": {"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"},
	"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// randConstructors are what math/rand may be used for: a generator that the
// caller seeds. Every other function of it draws from the global one.
var randConstructors = []string{"New", "NewSource", "NewZipf", "NewPCG", "NewChaCha8",
	"Rand", "Source", "Source64", "Zipf", "PCG", "ChaCha8"}

func TestPureCores(t *testing.T) {
	files := 0
	for _, dir := range pureDirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.Name() == "testdata" && d.IsDir() {
				return fs.SkipDir
			}
			if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			files++
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, v := range impurities(fset, f) {
				t.Error(v)
			}
			return nil
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if files == 0 {
		t.Fatal("no source files found: is the test run from its own directory?")
	}
	t.Logf("%d files", files)
}

// TestSerial: what the Makefile runs without the race detector is the pure cores and tests
// without goroutines.
func TestSerial(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(strings.ReplaceAll(string(text), "\\\n", ""), "\nSERIAL = ")
	list, _, _ = strings.Cut(list, "\n")
	serial := strings.Fields(list)
	for _, dir := range pureDirs {
		if !strings.HasSuffix(dir, ".go") && !slices.Contains(serial, dir) {
			t.Errorf("%s is pure, and not in SERIAL", dir)
		}
	}
	for _, dir := range serial {
		if slices.Contains(pureDirs, dir) {
			continue
		}
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: %d files, %v", dir, len(files), err)
		}
		for _, path := range files {
			if at := concurrency(t, path); at != "" {
				t.Errorf("%s runs something at the same time, and is in SERIAL", at)
			}
		}
	}
}

// concurrency is where a file starts a goroutine, or has a test run beside others.
func concurrency(t *testing.T, path string) (at string) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at = fset.Position(n.Pos()).String()
		case *ast.SelectorExpr:
			if n.Sel.Name == "Go" || n.Sel.Name == "Parallel" || n.Sel.Name == "AfterFunc" {
				at = fset.Position(n.Pos()).String()
			}
		}
		return true
	})
	return at
}

// impurities lists what in f has no place in a pure core, with positions.
func impurities(fset *token.FileSet, f *ast.File) []string {
	var found []string
	report := func(n ast.Node, format string, args ...any) {
		found = append(found, fmt.Sprintf("%v: %s", fset.Position(n.Pos()), fmt.Sprintf(format, args...)))
	}
	names := map[string]string{} // local name → import path
	for _, imp := range f.Imports {
		path, _ := strconv.Unquote(imp.Path.Value)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if name == "v2" {
			name = "rand" // math/rand/v2 is the only one of the standard library's
		}
		if imp.Name != nil {
			name = imp.Name.Name
		}
		names[name] = path
		if name == "." {
			report(imp, "dot import of %s hides where names come from", path)
		}
		if path != "net/netip" && slices.ContainsFunc(impureImports, func(p string) bool { return within(path, p) }) {
			report(imp, "imports %s", path)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report(n, "starts a goroutine")
		case *ast.ChanType:
			report(n, "uses a channel")
		case *ast.SendStmt:
			report(n, "sends on a channel")
		case *ast.SelectStmt:
			report(n, "selects on channels")
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				report(n, "receives from a channel")
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
				report(n, "prints")
			}
		case *ast.SelectorExpr:
			id, ok := n.X.(*ast.Ident)
			if !ok {
				return true
			}
			path := names[id.Name]
			isRand := path == "math/rand" || path == "math/rand/v2"
			if slices.Contains(impureCalls[path], n.Sel.Name) || isRand && !slices.Contains(randConstructors, n.Sel.Name) {
				report(n, "uses %s.%s", path, n.Sel.Name)
			}
		}
		return true
	})
	return found
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// Each line of source must be found guilty for exactly the reason given: the
// guard guards.
func TestImpurities(t *testing.T) {
	for _, c := range []struct{ imports, body, want string }{
		{"", `go f()`, "goroutine"},
		{"", `var c chan int; _ = c`, "channel"},
		{"", `c <- 1`, "sends"},
		{"", `_ = <-c`, "receives"},
		{"", `select {}`, "selects"},
		{"", `println(1)`, "prints"},
		{`"time"`, `_ = time.Now()`, "time.Now"},
		{`clock "time"`, `f := clock.Sleep; f(1)`, "time.Sleep"},
		{`. "time"`, `_ = Now()`, "dot import"},
		{`"fmt"`, `fmt.Println()`, "fmt.Println"},
		{`"math/rand"`, `_ = rand.Int()`, "math/rand.Int"},
		{`"math/rand/v2"`, `_ = rand.N(3)`, "math/rand/v2.N"},
		{`_ "net"`, ``, "imports net"},
		{`_ "net/http"`, ``, "imports net/http"},
		{`_ "log/slog"`, ``, "imports log/slog"},
		{`_ "sync/atomic"`, ``, "imports sync/atomic"},
		{`_ "os"`, ``, "imports os"},
		{`_ "syscall"`, ``, "imports syscall"},

		{`"time"`, `_ = time.Second`, ""},
		{`"fmt"`, `_ = fmt.Errorf("%d", 1)`, ""},
		{`"math/rand/v2"`, `_ = rand.New(rand.NewPCG(1, 2)).IntN(3)`, ""},
		{`_ "net/netip"`, ``, ""},
		{`_ "slices"`, `for range 3 {}`, ""},
	} {
		imports := c.imports
		if imports != "" {
			imports = "import " + imports
		}
		src := "package p\n" + imports + "\nfunc _() { " + c.body + " }\n"
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "p.go", src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatalf("%v in\n%s", err, src)
		}
		got := impurities(fset, f)
		switch {
		case c.want == "" && len(got) > 0:
			t.Errorf("harmless, yet found %q in\n%s", got, src)
		case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
			t.Errorf("want one finding %q, got %q in\n%s", c.want, got, src)
		}
	}
}
