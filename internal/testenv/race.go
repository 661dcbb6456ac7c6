//go:build race

package testenv

// Race says that the race detector is on, which makes everything some ten times
// slower. Tests that are long by nature then take a sample.
const Race = true
