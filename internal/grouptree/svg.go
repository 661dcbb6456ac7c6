package grouptree

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// Measures of the drawing, in pixels.
const (
	margin     = 24.0
	lineHeight = 16.0
	padding    = 10.0
	charWidth  = 7.2 // of the widest usual characters at this size
	boxGap     = 18.0
	columnGap  = 120.0
	titleSize  = 20.0
)

// Style is that of the drawings, for pages that show them without their own.
const Style = `
  text { font: 12px system-ui, sans-serif; fill: #1f2933; }
  .title { font-size: 15px; font-weight: 600; }
  .name { font-weight: 600; }
  .small, .port { font-size: 11px; fill: #52606d; }
  .port { text-anchor: middle; paint-order: stroke; stroke: #fff; stroke-width: 4px; }
  rect { fill: #e8f1fb; stroke: #3b6ea5; stroke-width: 1.2; }
  .host rect { fill: #f3f5f7; stroke: #7b8794; }
  .root rect { fill: #d3e5f8; stroke-width: 2.4; }
  .bad rect { fill: #fdecea; stroke: #c62828; stroke-width: 2; }
  path { fill: none; stroke: #7b8794; stroke-width: 1.4; }
  path.bad { stroke: #c62828; stroke-dasharray: 5 3; }
  text.bad { fill: #c62828; }
  .gray rect { fill: #e4e4e4; stroke: #8a8a8a; stroke-dasharray: 4 3; }
  .gray text { fill: #6b6b6b; }
  path.gray { stroke: #b0b0b0; stroke-dasharray: 2 4; }
  .paper { fill: #fff; stroke: none; }
  path.tip { fill: #7b8794; stroke: none; }
  path.badtip { fill: #c62828; stroke: none; }
`

// SVG draws the tree: packets go from left to right.
func (t *Tree) SVG(w io.Writer) error {
	return t.graph().svg(w)
}

func (g *graph) svg(w io.Writer) error {
	d := &drawing{graph: g, layout: newLayout(g, heightOf, boxGap)}
	d.measure()
	d.draw()
	_, err := io.WriteString(w, d.b.String())
	return err
}

type drawing struct {
	graph  *graph
	layout *layout
	x      []float64 // left edge of each column
	wide   []float64 // its width
	top    float64   // added to all heights
	size   [2]float64
	b      strings.Builder
}

func (b *box) texts() []string {
	out := b.lines[:len(b.lines):len(b.lines)]
	for _, p := range b.problem {
		out = append(out, shorten("! "+p, 60))
	}
	return out
}

func heightOf(b *box) float64 { return 2*padding + lineHeight*float64(len(b.texts())) - 4 }

func widthOf(b *box) float64 { return 2*padding + charWidth*float64(longest(b.texts())) }

func longest(texts []string) (n int) {
	for _, s := range texts {
		n = max(n, utf8.RuneCountInString(s))
	}
	return n
}

// shorten cuts a text; the whole of it is in the element's title.
func shorten(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// measure finds the columns' places, and the size of the whole.
func (d *drawing) measure() {
	x, low, high := margin, math.Inf(1), math.Inf(-1)
	labels := 0
	for _, a := range d.graph.arrows {
		labels = max(labels, utf8.RuneCountInString(a.label))
	}
	gap := max(columnGap, charWidth*float64(labels)+60)
	for _, c := range d.layout.columns {
		wide := 0.0
		for _, p := range c {
			half := 0.0
			if p.box != nil {
				wide, half = max(wide, widthOf(p.box)), heightOf(p.box)/2
			}
			low, high = min(low, p.y-half), max(high, p.y+half)
		}
		d.x, d.wide = append(d.x, x), append(d.wide, wide)
		x += wide + gap
	}
	head := titleSize + lineHeight*float64(len(d.graph.problems)) + 12
	d.top = margin + head - low
	titles := append([]string{d.graph.title}, d.problems()...)
	d.size = [2]float64{max(x-gap+margin, 2*margin+1.2*charWidth*float64(longest(titles))), d.top + high + margin}
}

func (d *drawing) problems() (out []string) {
	for _, p := range d.graph.problems {
		out = append(out, shorten("! "+p, 110))
	}
	return out
}

func (d *drawing) printf(format string, args ...any) { fmt.Fprintf(&d.b, format, args...) }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes everything
	return b.String()
}

func (d *drawing) draw() {
	wide, high := d.size[0], d.size[1]
	d.printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n", wide, high, wide, high)
	d.printf("<title>%s</title>\n<style>%s</style>\n", escape(d.graph.title), Style)
	d.printf("<defs>\n")
	for _, id := range []string{"tip", "badtip"} {
		d.printf("  <marker id=\"%s\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">"+
			"<path class=\"%s\" d=\"M0 0L8 4L0 8z\"/></marker>\n", id, id)
	}
	d.printf("</defs>\n<rect class=\"paper\" width=\"%.0f\" height=\"%.0f\"/>\n", wide, high)
	y := margin + titleSize - 6
	d.printf("<text class=\"title\" x=\"%.0f\" y=\"%.0f\">%s</text>\n", margin, y, escape(d.graph.title))
	for i, p := range d.problems() {
		d.printf("<text class=\"bad\" x=\"%.0f\" y=\"%.0f\"><title>%s</title>%s</text>\n", margin, y+lineHeight*float64(i+1)+2, escape(d.graph.problems[i]), escape(p))
	}
	for i, a := range d.graph.arrows {
		d.arrow(a, d.layout.paths[i])
	}
	for _, b := range d.graph.boxes {
		d.drawBox(b)
	}
	for i, a := range d.graph.arrows {
		d.label(a, d.layout.paths[i])
	}
	d.printf("</svg>\n")
}

// ends are where an arrow's piece leaves one vertex and enters the next.
func (d *drawing) ends(from, to *vertex) (x1, y1, x2, y2 float64) {
	x1, x2 = d.x[from.column]+d.wide[from.column], d.x[to.column]
	if from.box != nil {
		x1 = d.x[from.column] + widthOf(from.box)
	}
	return x1, d.top + from.y, x2, d.top + to.y
}

func (d *drawing) arrow(a arrow, path []*vertex) {
	first, last := path[0], path[len(path)-1]
	back := last.column <= first.column
	class, tip := "", " marker-end=\"url(#tip)\""
	switch {
	case a.problem || back:
		class, tip = " class=\"bad\"", " marker-end=\"url(#badtip)\""
	case a.gray:
		class = " class=\"gray\""
	}
	if a.link {
		tip = ""
	}
	d.printf("<path%s%s d=\"", class, tip)
	if back {
		// Back: in a bow above both.
		x1, y1 := d.x[first.column]+widthOf(first.box)/2, d.top+first.y-heightOf(first.box)/2
		x2, y2 := d.x[last.column]+widthOf(last.box)/2, d.top+last.y-heightOf(last.box)/2
		bow := min(y1, y2) - 30
		d.printf("M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\"/>\n", x1, y1, x1, bow, x2, bow, x2, y2)
		return
	}
	for i := range len(path) - 1 {
		x1, y1, x2, y2 := d.ends(path[i], path[i+1])
		if i == 0 {
			d.printf("M%.1f %.1f", x1, y1)
		} else {
			d.printf("L%.1f %.1f", x1, y1)
		}
		bend := (x2 - x1) / 2
		d.printf("C%.1f %.1f %.1f %.1f %.1f %.1f", x1+bend, y1, x2-bend, y2, x2, y2)
	}
	d.printf("\"/>\n")
}

// label writes an arrow's ports near that of its ends where fewer others are.
func (d *drawing) label(a arrow, path []*vertex) {
	if a.label == "" || path[len(path)-1].column <= path[0].column {
		return
	}
	x1, y1, x2, y2 := d.ends(path[0], path[1])
	t := 0.7
	if len(path[1].left) > len(path[0].right) {
		t = 0.3
	}
	// On the curve, for these control points, x goes as below, y as 3t²−2t³.
	bend := (x2 - x1) / 2
	x := x1 + 3*t*(1-t)*(1-t)*bend + 3*t*t*(1-t)*bend + t*t*t*(x2-x1)
	y := y1 + (y2-y1)*(3*t*t-2*t*t*t)
	y += 4
	if a.link {
		y -= 10 // above the line, of which dashes would show between the words
	}
	d.printf("<text class=\"port\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", x, y, escape(a.label))
}

func (d *drawing) drawBox(b *box) {
	p := d.layout.of[b]
	x, y, high := d.x[p.column], d.top+p.y-heightOf(b)/2, heightOf(b)
	class, round := "switch", 3.0
	if b.host {
		class, round = "host", 14.0
	}
	if b.root {
		class += " root"
	}
	switch {
	case b.gray:
		class += " gray"
	case len(b.problem) > 0:
		class += " bad"
	}
	d.printf("<g class=\"%s\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"%.0f\"/>\n", class, x, y, widthOf(b), high, round)
	for i, s := range b.texts() {
		of := "small"
		switch {
		case i == 0:
			of = "name"
		case i >= len(b.lines):
			of = "bad"
		}
		d.printf("  <text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", of, x+padding, y+padding+lineHeight*float64(i)+9)
		if i >= len(b.lines) {
			d.printf("<title>%s</title>", escape(b.problem[i-len(b.lines)]))
		}
		d.printf("%s</text>\n", escape(s))
	}
	d.printf("</g>\n")
}
