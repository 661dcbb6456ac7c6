package cli

import (
	"io"
	"os"
)

// Colored reports whether text may have colors: on a terminal, unless NO_COLOR is set.
func Colored(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && IsTerminal(f) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
