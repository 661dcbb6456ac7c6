package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/chaos/history"
)

// wait returns a context that ends after some milliseconds.
func wait(millis int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(millis)*time.Millisecond)
}

// A journal is a file that entries are appended to.
type journal struct {
	log *slog.Logger
	mu  sync.Mutex
	f   *os.File
}

func (a *app) journal(name string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(a.args.Dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{log: a.log, f: f}, err
}

// put writes an entry. When put returns, the entry survives the process.
func (j *journal) put(e history.Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var now unix.Timespec // the fault matrix changes time.Now
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &now)
	e.At = now.Nano() / 1000
	line, err := e.Line()
	if err == nil {
		_, err = j.f.Write(line)
	}
	if err != nil {
		j.log.Error("journal", "error", err)
	}
}
