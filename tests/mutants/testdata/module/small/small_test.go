package small

import "testing"

func TestLeast(t *testing.T) {
	if Least(1, 2) != 1 || Least(2, 1) != 1 {
		t.Error("not the least")
	}
}

func TestGrown(t *testing.T) {
	if Grown(0) || !Grown(10) {
		t.Error("far from the limit")
	}
}

func TestSum(t *testing.T) {
	if Sum(4) != 10 {
		t.Error("not the sum")
	}
}
