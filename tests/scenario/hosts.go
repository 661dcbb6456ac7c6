package scenario

import (
	"log/slog"
	"os"
	"path/filepath"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) log(name string) *slog.Logger {
	if os.Getenv("SCENARIO_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("at", name)
}

func (h *host) mac() (m switchspec.MAC) {
	a := h.addr.As4()
	return switchspec.MAC{2, 0, a[0], a[1], a[2], a[3]}
}

func (h *host) socket() string  { return filepath.Join(h.l.dir, h.name+".sock") }
func (h *host) process() string { return h.name + "/daemon" }
