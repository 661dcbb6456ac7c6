package cli

import (
	"fmt"
	"io"
	"os"
	"time"
)

// A Progress shows the progress of something that takes more than a second, once a second: on a
// terminal in one line.
type Progress struct {
	w     io.Writer
	live  bool
	last  time.Time
	shown bool
}

// NewProgress shows progress at w.
func NewProgress(w io.Writer) *Progress {
	f, ok := w.(*os.File)
	return &Progress{w: w, live: ok && IsTerminal(f), last: time.Now()}
}

// Say shows a text if a second has passed.
func (p *Progress) Say(text func() string) {
	if time.Since(p.last) < time.Second {
		return
	}
	p.last, p.shown = time.Now(), true
	if p.live {
		fmt.Fprintf(p.w, "\r\x1b[K%s", text())
	} else {
		fmt.Fprintln(p.w, text())
	}
}

// Done removes the line.
func (p *Progress) Done() {
	if p.live && p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
