package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A mutation replaces the text of a file between two offsets.
type mutation struct {
	Package  string `json:"package"`
	File     string `json:"file"` // from the module's root
	Line     int    `json:"line"`
	Func     string `json:"func"` // or the constant or variable
	Operator string `json:"operator"`
	Old      string `json:"old"` // the lines concerned, trimmed
	New      string `json:"new"`

	of       *source
	off, end int
	text     string
}

// A corpus is a package whose files are mutated.
type corpus struct {
	target
	path  string // the import path
	fset  *token.FileSet
	files []*source // all of the package
	info  *types.Info
	conf  types.Config
}

type source struct {
	in   *corpus
	path string // absolute
	name string // from the module's root
	text []byte
	tree *ast.File
}

// load parses and checks a package. exports has the files of its imports' export data.
func load(root string, t target, path string, files []string, exports map[string]string) (*corpus, error) {
	c := &corpus{target: t, path: path, fset: token.NewFileSet()}
	for _, name := range files {
		s := &source{in: c, name: filepath.Join(t.dir, name), path: filepath.Join(root, t.dir, name)}
		var err error
		if s.text, err = os.ReadFile(s.path); err != nil {
			return nil, err
		}
		if s.tree, err = parser.ParseFile(c.fset, s.path, s.text, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		c.files = append(c.files, s)
	}
	c.conf.Importer = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	c.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	_, err := c.conf.Check(path, c.fset, c.trees(nil, nil), c.info)
	return c, err
}

// trees are the package's files, with one of them replaced.
func (c *corpus) trees(of *source, by *ast.File) (trees []*ast.File) {
	for _, s := range c.files {
		if s == of {
			trees = append(trees, by)
		} else {
			trees = append(trees, s.tree)
		}
	}
	return trees
}

// compiles is whether the compiler takes the mutation, as far as types tell.
func (m *mutation) compiles() bool {
	c := m.of.in
	tree, err := parser.ParseFile(c.fset, m.of.path, m.mutated(), parser.SkipObjectResolution)
	if err != nil {
		return false
	}
	_, err = c.conf.Check(c.path, c.fset, c.trees(m.of, tree), nil)
	return err == nil
}

func (m *mutation) mutated() []byte {
	return slices.Concat(m.of.text[:m.off], []byte(m.text), m.of.text[m.end:])
}

// A finder collects what may be mutated in a function, or in a declaration of constants or
// variables.
type finder struct {
	*source
	fn    string
	begin int // of the declaration
	found []*mutation
}

// mutations are all that the operators yield in the files that the target names.
func (c *corpus) mutations() (all []*mutation) {
	for _, s := range c.files {
		if c.only != nil && !slices.Contains(c.only, filepath.Base(s.path)) {
			continue
		}
		for _, d := range s.tree.Decls {
			f := finder{source: s, begin: s.off(d.Pos())}
			switch d := d.(type) {
			case *ast.FuncDecl:
				if f.fn = d.Name.Name; d.Recv != nil {
					f.fn = strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*") + "." + f.fn
				}
				if d.Body == nil || slices.Contains([]string{"String", "Error", "GoString", "LogValue"}, d.Name.Name) {
					continue
				}
				f.function(d.Body)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok {
						f.fn, f.begin = v.Names[0].Name, s.off(v.Pos())
						ast.Inspect(v, f.visit)
					}
				}
			}
			all = append(all, f.found...)
		}
	}
	return all
}

// function looks at a function's body. To leave out a return at its end would change nothing.
func (f *finder) function(b *ast.BlockStmt) {
	list := b.List
	if n := len(list); n > 0 {
		if r, ok := list[n-1].(*ast.ReturnStmt); ok && r.Results == nil {
			list = list[:n-1]
		}
	}
	f.dropStatements(list)
	for _, s := range b.List {
		ast.Inspect(s, f.visit)
	}
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncLit:
		f.function(n.Body)
		return false
	case *ast.BlockStmt:
		f.dropStatements(n.List)
	case *ast.IfStmt:
		f.negate(n.Cond)
	case *ast.ForStmt:
		f.negate(n.Cond)
	case *ast.SwitchStmt:
		for _, s := range n.Body.List {
			c := s.(*ast.CaseClause)
			f.dropCase(c)
			if n.Tag == nil && len(c.List) == 1 {
				f.negate(c.List[0])
			}
		}
	case *ast.TypeSwitchStmt:
		for _, s := range n.Body.List {
			f.dropCase(s.(*ast.CaseClause))
		}
	case *ast.BinaryExpr:
		f.swapToken("comparison", n.OpPos, n.Op, token.LSS, token.LEQ)
		f.swapToken("comparison", n.OpPos, n.Op, token.GTR, token.GEQ)
		f.swapToken("and, or", n.OpPos, n.Op, token.LAND, token.LOR)
		if b, ok := f.in.info.TypeOf(n).Underlying().(*types.Basic); ok && b.Info()&types.IsString == 0 {
			f.swapToken("plus, minus", n.OpPos, n.Op, token.ADD, token.SUB)
		}
	case *ast.IncDecStmt:
		f.swapToken("plus, minus", n.TokPos, n.Tok, token.INC, token.DEC)
	case *ast.AssignStmt:
		if b, ok := f.in.info.TypeOf(n.Lhs[0]).(*types.Basic); !ok || b.Info()&types.IsString == 0 {
			f.swapToken("plus, minus", n.TokPos, n.Tok, token.ADD_ASSIGN, token.SUB_ASSIGN)
		}
	case *ast.BasicLit:
		if n.Kind == token.INT {
			f.add("constant", n.Pos(), n.End(), "("+n.Value+" + 1)")
			if n.Value != "0" {
				f.add("constant", n.Pos(), n.End(), "("+n.Value+" - 1)")
			}
		}
	case *ast.ReturnStmt:
		for _, r := range n.Results {
			f.zero(r)
		}
	case *ast.CallExpr:
		if f.isText(n) {
			return false
		}
		f.swapArguments(n)
	}
	return true
}

// isText is whether a call makes text, for errors or logs.
func (f *finder) isText(call *ast.CallExpr) bool {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name == "panic"
	case *ast.SelectorExpr:
		obj := f.in.info.Uses[fun.Sel]
		return obj != nil && obj.Pkg() != nil && slices.Contains([]string{"fmt", "errors", "log", "log/slog", "github.com/mcrdma/mcrdma/internal/failure"}, obj.Pkg().Path())
	}
	return false
}

func (f *finder) negate(cond ast.Expr) {
	if cond == nil {
		return
	}
	if u, ok := cond.(*ast.UnaryExpr); ok && u.Op == token.NOT {
		f.add("negation", u.Pos(), u.X.Pos(), "")
		return
	}
	f.add("negation", cond.Pos(), cond.End(), "!("+f.between(cond.Pos(), cond.End())+")")
}

func (f *finder) swapToken(operator string, at token.Pos, is, a, b token.Token) {
	switch is {
	case a:
		f.add(operator, at, at+token.Pos(len(is.String())), b.String())
	case b:
		f.add(operator, at, at+token.Pos(len(is.String())), a.String())
	}
}

func (f *finder) dropStatements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || types.ExprString(s.Lhs[0]) == "_" {
				continue
			}
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok && f.isText(call) {
				continue
			}
		case *ast.IncDecStmt, *ast.ReturnStmt, *ast.BranchStmt, *ast.DeferStmt:
		default:
			continue
		}
		f.drop("statement", s)
	}
}

func (f *finder) dropCase(c *ast.CaseClause) {
	f.dropStatements(c.Body)
	if len(c.Body) > 0 {
		f.drop("case", c)
	}
}

// drop leaves the lines, so that all others keep their numbers.
func (f *finder) drop(operator string, n ast.Node) {
	f.add(operator, n.Pos(), n.End(), strings.Repeat("\n", strings.Count(f.between(n.Pos(), n.End()), "\n")))
}

func (f *finder) zero(r ast.Expr) {
	tv := f.in.info.Types[r]
	zero := ""
	switch t := tv.Type.Underlying().(type) {
	case *types.Basic:
		switch {
		case t.Info()&types.IsBoolean != 0:
			zero = "false"
		case t.Info()&types.IsNumeric != 0:
			zero = "0"
		case t.Info()&types.IsString != 0:
			zero = `""`
		}
	case *types.Pointer, *types.Slice, *types.Map, *types.Interface, *types.Signature:
		zero = "nil"
	case *types.Struct, *types.Array:
		zero = types.TypeString(tv.Type, func(p *types.Package) string {
			if p.Path() == f.in.path {
				return ""
			}
			return p.Name()
		}) + "{}"
	}
	if zero == "" || zero == types.ExprString(r) || tv.IsNil() || tv.Value != nil && tv.Value.ExactString() == zero {
		return
	}
	f.add("zero", r.Pos(), r.End(), zero)
}

// symmetric matches names of functions for which it does not matter what comes first.
var symmetric = regexp.MustCompile(`^(?i:min|max|equal|same)`)

func (f *finder) swapArguments(call *ast.CallExpr) {
	name := types.ExprString(call.Fun)
	if symmetric.MatchString(name[strings.LastIndexByte(name, '.')+1:]) {
		return
	}
	for i := 1; i < len(call.Args); i++ {
		a, b := call.Args[i-1], call.Args[i]
		if !types.Identical(f.in.info.TypeOf(a), f.in.info.TypeOf(b)) || types.ExprString(a) == types.ExprString(b) {
			continue
		}
		f.add("arguments", a.Pos(), b.End(), f.between(b.Pos(), b.End())+f.between(a.End(), b.Pos())+f.between(a.Pos(), a.End()))
	}
}

func (s *source) off(p token.Pos) int { return s.in.fset.Position(p).Offset }

func (s *source) between(a, b token.Pos) string { return string(s.text[s.off(a):s.off(b)]) }

func (f *finder) add(operator string, from, to token.Pos, text string) {
	m := &mutation{Package: f.in.dir, File: f.name, Line: f.in.fset.Position(from).Line, Func: f.fn, Operator: operator,
		of: f.source, off: f.off(from), end: f.off(to), text: text}
	first := strings.LastIndexByte(string(f.text[:m.off]), '\n') + 1
	end := m.end + strings.IndexByte(string(f.text[m.end:])+"\n", '\n')
	m.Old = trim(string(f.text[first:end]))
	m.New = trim(string(f.text[first:m.off]) + text + string(f.text[m.end:end]))
	if before := strings.Count(string(f.text[min(f.begin, first):first]), string(f.text[first:end])); before > 0 {
		m.Func += fmt.Sprintf("#%d", before+1) // the function has these lines more than once
	}
	f.found = append(f.found, m)
}

// trim takes spaces from the lines of a text, and those without anything.
func trim(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
