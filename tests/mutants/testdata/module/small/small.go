// Package small has tests that miss some mistakes.
package small

import "fmt"

// Least is tested; for equal numbers both results are the same.
func Least(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// Grown is tested far from its limit only.
func Grown(n int) bool { return n > 3 }

// Sum does not end if n stays.
func Sum(n int) (sum int) {
	for n != 0 {
		sum += n
		n--
	}
	return sum
}

type tooFar int

func (t tooFar) Error() string { return fmt.Sprint(1 + int(t)) }
