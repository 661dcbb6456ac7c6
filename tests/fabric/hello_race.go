//go:build race

package fabric

import "time"

// The race detector makes everything some ten times slower: with short hellos a
// busy machine would take links down.
const defaultHello = 400 * time.Millisecond
