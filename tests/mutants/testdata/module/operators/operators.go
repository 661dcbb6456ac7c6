// Package operators has something for each operator.
package operators

import (
	"errors"
	"strings"
)

const most = 7

type pair struct{ a, b int }

func before(a, b pair) bool { return a.a <= b.a && !errors.Is(nil, nil) }

func all(list []pair, word string) (pair, error) {
	for i, p := range list {
		if !before(p, list[0]) {
			continue
		}
		word += "x" + word
		list[i].a += 2
	}
	switch {
	case len(list) > most:
		list = nil
	default:
		panic("too few " + strings.Repeat(word, 0))
	}
	if len(list) == 0 {
		return pair{}, errors.New("none" + word)
	}
	return list[len(list)-1], nil
}
