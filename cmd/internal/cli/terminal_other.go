//go:build !linux

package cli

import "os"

// IsTerminal says whether a file is one; what cannot be known is none.
func IsTerminal(*os.File) bool { return false }

// TerminalSize is the traditional 80 by 24.
func TerminalSize(*os.File) (columns, rows int) { return 80, 24 }
