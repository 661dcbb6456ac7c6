package ibverbs

import (
	"errors"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

func TestParseTarget(t *testing.T) {
	for arg, want := range map[string]target{
		"":                    {"", 1, autoGID},
		"rxe0":                {"rxe0", 1, autoGID},
		"mlx5_0?gid=3":        {"mlx5_0", 1, 3},
		"mlx5_0?gid=0&port=2": {"mlx5_0", 2, 0},
		"?port=255":           {"", 255, autoGID},
		"mlx5_0?gid=65535":    {"mlx5_0", 1, 65535},
		"mlx5_0?":             {"mlx5_0", 1, autoGID},
		"rocep1s0f0?port=1":   {"rocep1s0f0", 1, autoGID},
	} {
		if got, err := parseTarget(arg); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", arg, got, err, want)
		}
	}
	for _, arg := range []string{
		"rxe0?gid=-1", "rxe0?gid=65536", "rxe0?gid=", "rxe0?gid=x", "rxe0?port=0", "rxe0?port=256",
		"rxe0?port=1&port=2", "rxe0?mtu=5", "rxe0?%zz", "a/b", "gid=3", "a&b",
	} {
		if got, err := parseTarget(arg); !errors.Is(err, qp.ErrDevice) {
			t.Errorf("%q: %+v, %v; want ErrDevice", arg, got, err)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"", "rxe0", "mlx5_0?gid=3&port=1", "?", "a?port=0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		got, err := parseTarget(arg)
		if err != nil && !errors.Is(err, qp.ErrDevice) {
			t.Errorf("%q: %v is not ErrDevice", arg, err)
		}
		if err == nil && (got.port == 0 || got.gid < autoGID || got.gid > 65535) {
			t.Errorf("%q: accepted as %+v", arg, got)
		}
	})
}
