// Package plot draws diagrams of curves as SVG.
package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// A Panel is one diagram.
type Panel struct {
	Title, Label string   // of the diagram and of the x axis
	Ticks        []string // of the x axis, evenly spaced
	Series       []Series
	Absolute     bool // not ratios; the y axis is logarithmic if the values differ much
}

// A Series is a curve, with a value for each tick; 0: none.
type Series struct {
	Name   string
	Points []float64
}

// Set sets a point of a curve. It adds the tick and the curve if they are new.
func (p *Panel) Set(series, tick string, value float64) {
	x := slices.Index(p.Ticks, tick)
	if x < 0 {
		x = len(p.Ticks)
		p.Ticks = append(p.Ticks, tick)
	}
	k := slices.IndexFunc(p.Series, func(s Series) bool { return s.Name == series })
	if k < 0 {
		k = len(p.Series)
		p.Series = append(p.Series, Series{Name: series})
	}
	s := &p.Series[k]
	for len(s.Points) <= x {
		s.Points = append(s.Points, 0)
	}
	s.Points[x] = value
}

// Sizes in the drawing.
const (
	panelWidth, panelHeight  = 400, 300 // of the rectangle between the axes
	marginLeft, marginTop    = 76, 40
	marginRight, marginBelow = 30, 50
	columns                  = 2 // of panels, so that the drawing fits on a page
	headHeight               = 50
	legendLine               = 18
	muchMore                 = 20 // times the smallest value: the axis is logarithmic
)

// colors that are also distinct for the color-blind; marks differ too.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// Writable checks the file of a --plot before anything is measured. Without --plot it returns nil.
// Errors are usage errors.
func Writable(file string) error {
	dir, ext := filepath.Dir(file), filepath.Ext(file)
	at, err := os.Stat(dir)
	is, _ := os.Stat(file)
	switch {
	case file == "":
		return nil
	case err != nil || !at.IsDir():
		return cli.Usagef("--plot %s: there is no directory %s", file, dir)
	case is != nil && is.IsDir():
		return cli.Usagef("--plot %s: it is a directory: name a file", file)
	case ext != "" && ext != ".svg":
		return cli.Usagef("--plot %s: plots are SVG: name a file that ends in .svg", file)
	}
	return nil
}

// Write draws to the file of a --plot.
func Write(file, title, conditions string, panels []Panel) error {
	var b bytes.Buffer
	Draw(&b, title, conditions, panels)
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil { //nolint:gosec // all users may read the plot
		return fmt.Errorf("--plot: %w", err)
	}
	return nil
}

// Draw writes diagrams as one SVG, two per row, under a common title, conditions and legend: curves
// have the same order in each.
func Draw(b *bytes.Buffer, title, conditions string, panels []Panel) {
	var legend []string
	for _, p := range panels {
		for i, s := range p.Series {
			if i == len(legend) {
				legend = append(legend, s.Name)
			}
		}
	}
	cellX, cellY := marginLeft+panelWidth+marginRight, marginTop+panelHeight+marginBelow
	top := headHeight + legendLine*len(legend)
	width, height := cellX*columns, top+cellY*((len(panels)+columns-1)/columns)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n", escape(title))
	text(b, 10, 22, "start", `font-size="15"`, title)
	text(b, 10, 40, "start", "", conditions)
	for i, name := range legend {
		at := headHeight + legendLine*(float64(i)+0.5)
		mark(b, i, 18, at, colors[i%len(colors)])
		text(b, 30, at+4, "start", "", name)
	}
	for i, p := range panels {
		p.draw(b, float64(i%columns*cellX+marginLeft), float64(top+i/columns*cellY+marginTop))
	}
	b.WriteString("</svg>\n")
}

func (p *Panel) draw(b *bytes.Buffer, left, top float64) {
	least, most := p.bounds()
	var lines []float64 // of the y axis
	var share func(v float64) float64
	title := p.Title
	if p.Absolute && least > 0 && most > muchMore*least {
		from, to := math.Floor(math.Log10(least)+1e-9), math.Ceil(math.Log10(most)-1e-9)
		for e := from; e <= to; e++ {
			lines = append(lines, math.Pow(10, e))
		}
		share = func(v float64) float64 { return (math.Log10(v) - from) / (to - from) }
		title += ", logarithmic"
	} else {
		step := niceStep(most / 5)
		for i := 0.0; i == 0 || lines[len(lines)-1] < most-1e-9*most; i++ {
			lines = append(lines, i*step)
		}
		share = func(v float64) float64 { return v / lines[len(lines)-1] }
	}
	x := func(i int) float64 { return left + panelWidth*(float64(i)+0.5)/float64(len(p.Ticks)) }
	y := func(v float64) float64 { return top + panelHeight*(1-share(v)) }
	text(b, left+panelWidth/2, top-12, "middle", `font-weight="bold"`, title)
	for i, v := range lines {
		color := "#dddddd"
		if i == 0 || !p.Absolute && math.Abs(v-1) < 1e-9 {
			color = "#888888"
		}
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", left, y(v), left+panelWidth, y(v), color)
		text(b, left-6, y(v)+4, "end", "", axisText(v))
	}
	for i, t := range p.Ticks {
		text(b, x(i), top+panelHeight+16, "middle", `font-size="10"`, t)
	}
	text(b, left+panelWidth/2, top+panelHeight+36, "middle", "", p.Label)
	for i, s := range p.Series {
		color := colors[i%len(colors)]
		path, pen := "", "M"
		for j, v := range s.Points {
			if v <= 0 {
				pen = "M"
				continue
			}
			path += fmt.Sprintf("%s%.1f %.1f ", pen, x(j), y(v))
			pen = "L"
			mark(b, i, x(j), y(v), color)
		}
		if path != "" {
			fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.8"/>`+"\n", path[:len(path)-1], color)
		}
	}
}

// axisText returns the label of a value: four significant digits, and 20,000 instead of 2e+04.
func axisText(v float64) string {
	if v < 1000 {
		return fmt.Sprintf("%.4g", v)
	}
	text := fmt.Sprintf("%.0f", v)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// bounds returns the smallest and the largest value; for ratios, the largest is at least 1.
func (p *Panel) bounds() (least, most float64) {
	for _, s := range p.Series {
		for _, v := range s.Points {
			if v > 0 && (least == 0 || v < least) {
				least = v
			}
			most = max(most, v)
		}
	}
	if !p.Absolute || most == 0 {
		most = max(most, 1)
	}
	return least, most
}

// niceStep returns the smallest of 1, 2 and 5 times a power of ten that is not less.
func niceStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= least-1e-12 {
			return m * power
		}
	}
	return 10 * power
}

// mark draws a point: each curve has its own shape.
func mark(b *bytes.Buffer, curve int, x, y float64, color string) {
	switch curve % 4 {
	case 0:
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`+"\n", x, y, color)
	case 1:
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="7" height="7" fill="%s"/>`+"\n", x-3.5, y-3.5, color)
	case 2:
		fmt.Fprintf(b, `<path d="M%.1f %.1f l4.5 8 h-9 z" fill="%s"/>`+"\n", x, y-5, color)
	default:
		fmt.Fprintf(b, `<path d="M%.1f %.1f l4.5 4.5 l-4.5 4.5 l-4.5 -4.5 z" fill="%s"/>`+"\n", x, y-4.5, color)
	}
}

func text(b *bytes.Buffer, x, y float64, anchor, style, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, style, escape(s))
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer has no errors
	return b.String()
}
