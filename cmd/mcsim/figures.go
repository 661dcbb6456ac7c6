package main

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/plot"
	"github.com/mcrdma/mcrdma/internal/simnet/figures"
)

// A figure is the result for a figure of a paper.
type figure struct {
	Name   string          `json:"name"`
	Title  string          `json:"title"`
	X      string          `json:"x"`
	Unit   string          `json:"unit"`
	Seed   uint64          `json:"seed"`
	Seeds  int             `json:"seeds"`
	Quick  bool            `json:"quick,omitzero"`
	Values []figures.Value `json:"values"`
}

func figuresCommand() *cobra.Command {
	var o figures.Options
	var dir string
	var quiet bool
	var seeds int
	var names []string
	long := "Repeats figures and tables of papers: the given ones, or all. Each value is shown with that of\n" +
		"the paper and the difference. The figures:\n"
	for _, f := range figures.All() {
		names = append(names, f.Name)
		long += fmt.Sprintf("\n  %-9s %s", f.Name, f.Title)
	}
	long += "\n\nThe JSON is a list of figures, with name, title, x and unit (of the axes), seed, seeds and quick;\n" +
		"and values, each with series, x, value, low and high (of several seeds), and paper and within, the\n" +
		"paper's value and the tolerance."
	cmd := &cobra.Command{
		Use: "figures [NAME…] [flags]", Short: "Repeat figures of papers", Long: long,
		Example:   "  mcsim figures mc5 rdmc1 --plot out\n  mcsim figures --quick --json",
		ValidArgs: names,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	addSeeds(fs, &o.Seed, &seeds)
	fs.BoolVar(&o.Quick, "quick", false, "simulate less time; values are less accurate")
	fs.StringVar(&dir, "plot", "", "write each figure to NAME.svg and NAME.json in a `directory`")
	fs.BoolVarP(&quiet, "quiet", "q", false, "do not show progress")
	out := cli.AddOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		chosen := figures.All()
		if len(args) > 0 {
			chosen = nil
		}
		for _, name := range args {
			f, err := figures.Find(name)
			if err != nil {
				return cli.Usage(err)
			}
			chosen = append(chosen, f)
		}
		if dir != "" {
			if i, err := os.Stat(dir); err != nil || !i.IsDir() {
				return cli.Usagef("--plot %s: there is no such directory", dir)
			}
		}
		if err := checkSeeds(seeds); err != nil {
			return err
		}
		list, err := repeat(cmd, quiet, o, seeds, chosen)
		if err != nil {
			return err
		}
		if out.IsJSON() {
			err = out.JSON(cmd.OutOrStdout(), list)
		} else {
			err = figuresText(cmd, out, list)
		}
		for i := range list {
			if err == nil && dir != "" {
				err = save(dir, out, &list[i])
			}
		}
		return err
	}
	return cmd
}

// repeat runs the simulations of figures, with that many seeds.
func repeat(cmd *cobra.Command, quiet bool, o figures.Options, seeds int, chosen []figures.Figure) ([]figure, error) {
	var jobs []job
	values := make([][][][]figures.Value, len(chosen)) // by figure, job and seed
	for i, f := range chosen {
		values[i] = make([][][]figures.Value, len(f.Jobs))
		for k, j := range f.Jobs {
			values[i][k] = make([][]figures.Value, seeds)
			for n := range seeds {
				o := o
				o.Seed += uint64(n) //nolint:gosec // checked
				jobs = append(jobs, job{name: fmt.Sprintf("%s, %s, seed %d", f.Name, j.Name, o.Seed), weight: j.Weight, run: func() (err error) {
					values[i][k][n], err = j.Run(o)
					return err
				}})
			}
		}
	}
	slices.SortStableFunc(jobs, func(a, b job) int { return cmp.Compare(b.weight, a.weight) }) // the longest first
	if err := perform(cmd.Context(), cmd, quiet, jobs); err != nil {
		return nil, err
	}
	var list []figure
	for i, f := range chosen {
		r := figure{Name: f.Name, Title: f.Title, X: f.X, Unit: f.Unit, Seed: o.Seed, Seeds: seeds, Quick: o.Quick}
		for _, of := range values[i] {
			r.Values = append(r.Values, together(of)...)
		}
		if o.Quick { // smaller messages, or shorter: other than in the paper
			for k := range r.Values {
				r.Values[k].Paper = 0
			}
		}
		list = append(list, r)
	}
	return list, nil
}

// together combines the values of several seeds: the same curves at the same points, one value
// each.
func together(seeds [][]figures.Value) []figures.Value {
	out := slices.Clone(seeds[0])
	if len(seeds) == 1 {
		return out
	}
	for i := range out {
		v := &out[i]
		v.Low, v.High, v.Value = math.Inf(1), math.Inf(-1), 0
		for _, list := range seeds {
			v.Low, v.High, v.Value = min(v.Low, list[i].Value), max(v.High, list[i].Value), v.Value+list[i].Value/float64(len(seeds))
		}
	}
	return out
}

func figuresText(cmd *cobra.Command, out *cli.Output, list []figure) error {
	w := cmd.OutOrStdout()
	for i, f := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s: %s. %s; %s\n\n", f.Name, f.Title, f.Unit, f.conditions())
		var rows [][]any
		for _, v := range f.Values {
			paper, off, verdict, ours := "", "", "", number(v.Value)
			if f.Seeds > 1 {
				ours += fmt.Sprintf(" (%s to %s)", number(v.Low), number(v.High))
			}
			if v.Paper != 0 {
				paper, off, verdict = number(v.Paper), fmt.Sprintf("%+.0f %%", 100*v.Off()), fmt.Sprintf("within %.0f %%", 100*v.Within)
				if v.Missed() {
					verdict = "missed"
				}
			}
			rows = append(rows, []any{v.X, v.Series, ours, paper, off, verdict})
		}
		if err := out.Table(w, []string{f.X, "curve", "ours", "paper", "difference", ""}, rows); err != nil {
			return err
		}
	}
	return nil
}

// number returns a value with three significant digits.
func number(v float64) string {
	if v == 0 {
		return "0"
	}
	return fmt.Sprintf("%.*f", max(0, 2-int(math.Floor(math.Log10(math.Abs(v))))), v)
}

func (f *figure) conditions() string {
	text := seedsText(f.Seed, f.Seeds)
	if f.Quick {
		text += ", quick: shorter, or with smaller messages"
	}
	return text
}

// save writes a figure's files.
func save(dir string, out *cli.Output, f *figure) error {
	var b, j bytes.Buffer
	plot.Draw(&b, f.Title, f.conditions(), []plot.Panel{panelOf(f)})
	if err := out.JSON(&j, f); err != nil {
		return err
	}
	for ending, data := range map[string][]byte{".svg": b.Bytes(), ".json": j.Bytes()} {
		if err := os.WriteFile(filepath.Join(dir, f.Name+ending), data, 0o644); err != nil { //nolint:gosec // all users may read it
			return fmt.Errorf("--plot: %w", err)
		}
	}
	return nil
}

// panelOf draws each curve, with the paper's behind.
func panelOf(f *figure) plot.Panel {
	p := plot.Panel{Title: f.Unit, Label: f.X, Absolute: true}
	for _, v := range f.Values {
		p.Set(v.Series, v.X, v.Value)
	}
	for _, v := range f.Values {
		if v.Paper != 0 {
			p.Set(v.Series+", paper", v.X, v.Paper)
		}
	}
	return p
}
