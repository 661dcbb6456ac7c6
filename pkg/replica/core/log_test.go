package core

import (
	"slices"
	"testing"
)

// TestTrimmed: a history forgets the epochs of what was trimmed, and knows the rest as before.
func TestTrimmed(t *testing.T) {
	h := history{}
	for _, v := range []Version{{1, 1}, {1, 2}, {2, 3}, {4, 4}, {4, 5}, {4, 6}} {
		h.add(v)
	}
	h.trim(9) // it has none
	if want := []Version{{}, {1, 2}, {2, 3}, {4, 6}}; !slices.Equal(h.list(), want) {
		t.Fatal(h.list())
	}
	h.trim(3)
	if want := []Version{{2, 3}, {4, 6}}; !slices.Equal(h.list(), want) {
		t.Error(h.list())
	}
	h.trim(5)
	if want := []Version{{4, 5}, {4, 6}}; !slices.Equal(h.list(), want) {
		t.Error(h.list())
	}
	if v, ok := h.at(5); !ok || v != (Version{4, 5}) {
		t.Error(v, ok)
	}
	if _, ok := h.at(4); ok {
		t.Error("it has what was trimmed")
	}
}
