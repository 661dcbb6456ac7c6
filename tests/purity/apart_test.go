package purity

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// borrowed are the names of a package's other files that its pure files use: what a package of their
// own would have to import, or to take along.
var borrowed = map[string]string{
	"internal/nbd": "EINVAL ENOSPC EOVERFLOW Errno Extent Info",
	"pkg/mcrdma": "Departure ErrClosed ErrDaemon ErrFailed ErrInvalid ErrLimit ErrMinSize ErrNoSwitch ErrRemoved ErrSenderLost ErrVersion Error" +
		" Event EventAdded EventRecovered EventReformed EventRemoved EventResumed EventRoute EventSuspected EventType EventWaiting" +
		" GroupID Info MaxPieces MaxUnicastMessage Path PathRelay PathSwitch Peer Phase Piece Region Stats View" +
		" addition clipText endpoint inRange inbound lastEvent maxNudges newError ring timeoutOf",
}

// TestPureFilesApart: pure files of a package that is not pure are like a package of their own. What
// they use of the others is listed, so that none of it can reach for the outside world unseen.
func TestPureFilesApart(t *testing.T) {
	dirs := map[string]bool{}
	for _, path := range pureDirs {
		if strings.HasSuffix(path, ".go") {
			dirs[filepath.Dir(path)] = true
		}
	}
	for dir := range dirs {
		used, others := map[string]bool{}, map[string]bool{}
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			if name, _ := filepath.Rel(root, path); slices.Contains(pureDirs, name) {
				for _, id := range f.Unresolved {
					used[id.Name] = true
				}
			} else {
				maps.Copy(others, declared(f))
			}
		}
		maps.DeleteFunc(used, func(name string, _ bool) bool { return !others[name] })
		if got := strings.Join(slices.Sorted(maps.Keys(used)), " "); got != borrowed[dir] {
			t.Errorf("%s: its pure files use of the others\n%s\nand not\n%s", dir, got, borrowed[dir])
		}
	}
}

// declared are the names of a file's declarations, methods apart.
func declared(f *ast.File) map[string]bool {
	names := map[string]bool{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names[d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, id := range s.Names {
						names[id.Name] = true
					}
				}
			}
		}
	}
	return names
}
