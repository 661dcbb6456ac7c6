package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// A progress says what is going on, once a second: on a terminal in one line.
type progress struct {
	w     io.Writer
	live  bool
	what  string
	count int
	next  time.Time
	shown bool
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, live: ok && cli.IsTerminal(f), next: time.Now().Add(time.Second)}
}

// begin tells what comes.
func (p *progress) begin(what string, round, rounds int) {
	p.what, p.count = what, 0
	if rounds > 1 {
		p.what += fmt.Sprintf(", round %d of %d", round+1, rounds)
	}
}

// step tells that another write is done.
func (p *progress) step() {
	if p.count++; p.count&15 != 0 { // looking at the clock takes time
		return
	}
	now := time.Now()
	if now.Before(p.next) {
		return
	}
	p.next, p.shown = now.Add(time.Second), true
	text := fmt.Sprintf("%s: %s", p.what, cli.Plural(p.count, "write"))
	if p.live {
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(p.w, text)
	}
}

// done takes the line away.
func (p *progress) done() {
	if p.live && p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
