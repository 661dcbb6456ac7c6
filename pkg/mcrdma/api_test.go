package mcrdma

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var updateAPI = flag.Bool("api.update", false, "write testdata/api.txt")

// TestAPI: what the package exports is what testdata/api.txt says. A change of it needs a line in
// docs/api.md.
func TestAPI(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	fset := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(f)
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
				continue
			}
			if fn, ok := d.(*ast.FuncDecl); ok {
				fn.Body = nil
			}
			var b bytes.Buffer
			if err := printer.Fprint(&b, fset, d); err != nil {
				t.Fatal(err)
			}
			if s := b.String(); strings.HasPrefix(s, "func (") && !ast.IsExported(strings.TrimLeft(strings.SplitN(s[6:], " ", 2)[1], "*")) {
				continue // of a type that is not exported
			}
			list = append(list, b.String()+"\n")
		}
	}
	slices.Sort(list)
	got, file := strings.Join(list, ""), filepath.Join("testdata", "api.txt")
	if *updateAPI {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := strings.Split(string(want), "\n"), strings.Split(got, "\n"); got != string(want) {
		for _, line := range a {
			if !slices.Contains(b, line) {
				t.Errorf("- %s", line)
			}
		}
		for _, line := range b {
			if !slices.Contains(a, line) {
				t.Errorf("+ %s", line)
			}
		}
		t.Error("the API has changed: write into docs/api.md what programs have to do, and go test ./pkg/mcrdma -run TestAPI -api.update")
	}
}
