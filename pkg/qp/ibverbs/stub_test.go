//go:build !ibverbs || !cgo || !linux

package ibverbs

import (
	"errors"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

func TestStubSaysHowToGetIt(t *testing.T) {
	_, err := qp.Open("ibverbs:mlx5_0")
	if !errors.Is(err, qp.ErrDevice) || !strings.Contains(err.Error(), "-tags ibverbs") {
		t.Errorf("got %v", err)
	}
	if _, err := qp.Open("ibverbs:mlx5_0?gid=x"); !errors.Is(err, qp.ErrDevice) || !strings.Contains(err.Error(), "gid=x") {
		t.Errorf("bad option: got %v", err)
	}
}
