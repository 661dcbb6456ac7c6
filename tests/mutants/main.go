// Command mutants makes small mistakes in the pure cores, one at a time, drawn by a seed from
// all that its operators find in their syntax trees, and runs the tests of the package that has
// the mistake. A test that fails, or hangs, kills the mutant; one that no test kills shows what
// is not tested. Those that no test can kill are listed in equivalents.txt with the reason.
//
//	go run ./tests/mutants -seed N [-count 300] [-only pkg/qp/rc] [-json]
//
// The operators: negate a condition; < and <=; && and ||; + and -; a constant one more or
// less; a statement, or a case, left out; a result of its type's zero; two arguments of the
// same type in the other order. Text of errors and logs is left alone. The tree is not
// changed: the compiler reads the file with the mistake in place of the other (-overlay).
//
// It exits with 1 if less than 97 % of those that a test could kill have died.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// A target is a package to be mutated.
type target struct {
	dir  string
	only []string // files; nil: all
	also []string // packages that test it, besides itself
}

var targets = []target{
	{dir: "pkg/ackmerge", also: []string{"tests/model"}},
	{dir: "pkg/ackmerge/packed"},
	{dir: "pkg/qp/rc", also: []string{"tests/model"}},
	{dir: "pkg/rdmcfallback/engine"},
	{dir: "pkg/mcrdma", only: []string{"life.go", "lifejobs.go", "lifeviews.go", "memberlife.go", "queue.go"}},
	{dir: "pkg/mcrdma/internal/unicast", only: []string{"core.go"}},
	{dir: "internal/group"},
	{dir: "pkg/replica/core"},
	{dir: "internal/connmgr/health"},
	{dir: "internal/switchagent/planner"},
	{dir: "internal/routing/liveness"},
	{dir: "internal/softswitch/p4rtserver", only: []string{"arbitration.go"}},
}

// enough is which part must die.
const enough = 0.97

// Options are what a run is asked for.
type options struct {
	root    string
	targets []target
	listed  string // equivalents
	seed    uint64
	count   int
	workers int
	log     io.Writer
}

// A report is what came of a run.
type report struct {
	Seed        uint64            `json:"seed"`
	Drawn       int               `json:"drawn"`
	Killed      int               `json:"killed"`
	Survived    int               `json:"survived"`
	Equivalent  int               `json:"equivalent"`
	Died        float64           `json:"died"` // of those that are not equivalent
	Interrupted bool              `json:"interrupted,omitempty"`
	Mutants     []*mutant         `json:"mutants"`
	Operators   map[string][3]int `json:"-"` // killed, survived, equivalent
	Packages    map[string][3]int `json:"-"`
}

// A mutant is a mutation that was drawn, and what came of it.
type mutant struct {
	*mutation
	Result  string  `json:"result"` // killed, survived, equivalent
	By      string  `json:"by,omitempty"`
	Seconds float64 `json:"seconds"`
}

func main() {
	o := options{targets: targets, listed: listed, log: os.Stderr}
	flag.Uint64Var(&o.seed, "seed", 0, "draws the mutants")
	flag.IntVar(&o.count, "count", 300, "mutants to be drawn")
	flag.IntVar(&o.workers, "p", runtime.NumCPU(), "processes at the same time")
	only := flag.String("only", "", "packages to be mutated, separated by commas; default: all")
	asJSON := flag.Bool("json", false, "print the result as JSON")
	flag.Parse()
	if *only != "" {
		o.targets = nil
		for dir := range strings.SplitSeq(*only, ",") {
			i := slices.IndexFunc(targets, func(t target) bool { return t.dir == dir })
			if i < 0 {
				fail(fmt.Errorf("%s is not one of the packages: see targets in tests/mutants/main.go", dir))
			}
			o.targets = append(o.targets, targets[i])
		}
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		fail(fmt.Errorf("go list -m: %w", err))
	}
	o.root = strings.TrimSpace(string(out))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := o.run(ctx)
	stop()
	if err != nil {
		fail(err)
	}
	if *asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.print(os.Stdout)
	}
	if err != nil {
		fail(err)
	}
	if r.Died < enough || r.Interrupted {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	os.Exit(2)
}

// corpora loads the packages to be mutated.
func (o *options) corpora(ctx context.Context) (list []*corpus, err error) {
	args := []string{"list", "-deps", "-export", "-json=ImportPath,Dir,GoFiles,Export"}
	for _, t := range o.targets {
		args = append(args, "./"+t.dir)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = o.root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	type listing struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
	}
	byDir, exports := map[string]listing{}, map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listing
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		byDir[l.Dir], exports[l.ImportPath] = l, l.Export
	}
	for _, t := range o.targets {
		l := byDir[filepath.Join(o.root, t.dir)]
		c, err := load(o.root, t, l.ImportPath, l.GoFiles, exports)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// draw chooses mutants by the seed. What does not compile is drawn anew.
func (o *options) draw(list []*corpus) (drawn []*mutant) {
	var all []*mutation
	for _, c := range list {
		all = append(all, c.mutations()...)
	}
	r := rand.New(rand.NewPCG(o.seed, 0))
	for _, i := range r.Perm(len(all)) {
		if len(drawn) == o.count {
			break
		}
		if all[i].compiles() {
			drawn = append(drawn, &mutant{mutation: all[i]})
		}
	}
	return drawn
}

func (o *options) run(ctx context.Context) (*report, error) {
	reasons, err := readEquivalents(o.listed)
	if err != nil {
		return nil, err
	}
	list, err := o.corpora(ctx)
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	suites := map[string][]*suite{}
	shared := map[string]*suite{}
	for _, t := range o.targets {
		for _, dir := range append([]string{t.dir}, t.also...) {
			if shared[dir] == nil {
				shared[dir] = &suite{root: o.root, dir: dir, tmp: tmp}
			}
			suites[t.dir] = append(suites[t.dir], shared[dir])
		}
	}

	drawn := o.draw(list)
	fmt.Fprintf(o.log, "seed %d: %d mutants\n", o.seed, len(drawn))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	todo := make(chan *mutant)
	var wait sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for range o.workers {
		wait.Go(func() {
			for m := range todo {
				start := time.Now()
				var err error
				if m.By = reasons[m.key()]; m.By != "" {
					m.Result = "equivalent"
				} else if m.By, err = m.try(ctx, tmp, suites[m.Package]); err != nil {
					stop(err)
					continue
				} else if m.Result = "killed"; m.By == "" {
					m.Result = "survived"
				}
				m.Seconds = time.Since(start).Seconds()
				mu.Lock()
				done++
				fmt.Fprintf(o.log, "%d/%d %s:%d %s: %s %s (%.1fs)\n", done, len(drawn), m.File, m.Line, m.Operator, m.Result, m.By, m.Seconds)
				if m.Result == "survived" {
					fmt.Fprintln(o.log, m.block())
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range drawn {
		if ctx.Err() != nil {
			break
		}
		todo <- m
	}
	close(todo)
	wait.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return nil, err
	}
	return summary(o.seed, drawn), nil
}

func summary(seed uint64, drawn []*mutant) *report {
	r := &report{Seed: seed, Operators: map[string][3]int{}, Packages: map[string][3]int{}}
	for _, m := range drawn {
		i := slices.Index([]string{"killed", "survived", "equivalent"}, m.Result)
		if i < 0 {
			r.Interrupted = true
			continue
		}
		r.Mutants = append(r.Mutants, m)
		of, in := r.Operators[m.Operator], r.Packages[m.Package]
		of[i]++
		in[i]++
		r.Operators[m.Operator], r.Packages[m.Package] = of, in
		*[]*int{&r.Killed, &r.Survived, &r.Equivalent}[i]++
		r.Drawn++
	}
	r.Died = 1
	if n := r.Killed + r.Survived; n > 0 {
		r.Died = float64(r.Killed) / float64(n)
	}
	return r
}

// print writes what has survived, what is equivalent, and a table.
func (r *report) print(to io.Writer) error {
	for _, result := range []string{"survived", "equivalent"} {
		for _, m := range r.Mutants {
			if m.Result == result {
				fmt.Fprintf(to, "%s:%d: %s: %s\n%s\n", m.File, m.Line, result, m.Operator, m.block())
				if m.By != "" {
					fmt.Fprintln(to, "=", m.By)
				}
				fmt.Fprintln(to)
			}
		}
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, table := range []map[string][3]int{r.Packages, r.Operators} {
		fmt.Fprint(w, "\tkilled\tsurvived\tequivalent\t\n")
		for _, name := range slices.Sorted(maps.Keys(table)) {
			n := table[name]
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t\n", name, n[0], n[1], n[2])
		}
	}
	err := w.Flush()
	fmt.Fprintf(to, "seed %d: %d drawn, %d equivalent; of the others %d died and %d survived: %.1f %%\n",
		r.Seed, r.Drawn, r.Equivalent, r.Killed, r.Survived, 100*r.Died)
	if r.Interrupted {
		fmt.Fprintln(to, "interrupted: not all that were drawn have been tested")
	}
	return err
}
