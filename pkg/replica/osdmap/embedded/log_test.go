package embedded

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
)

// TestRemedy: when etcd ends the process, the log says what to do.
func TestRemedy(t *testing.T) {
	for message, want := range map[string]string{
		"tocommit(674) is out of range [lastIndex(658)]. Was the raft log corrupted, truncated, or lost?": "older than what the others know",
		"failed to save snapshot": "make room on the disk",
	} {
		var log bytes.Buffer
		func() {
			defer func() { _ = recover() }()
			zap.New(bridge{to: slog.NewTextHandler(&log, nil)}).Panic(message)
		}()
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s; want %s", &log, want)
		}
	}
}

// TestTrouble: what keeps a member out of its cluster is kept, and that it was removed is the last word.
func TestTrouble(t *testing.T) {
	b := bridge{slog.DiscardHandler, new(atomic.Pointer[error])}
	for _, c := range []struct {
		said string
		want error
	}{
		{"cannot process message to mismatch member", ErrReplaced},
		{"cluster ID mismatch", ErrReplaced},
		{"the member has been permanently removed from the cluster", ErrRemoved},
		{"cannot process message to mismatch member", ErrRemoved},
	} {
		zap.New(b).Warn("failed", zap.Error(errors.New(c.said)))
		if got := (&Member{trouble: b.trouble}).Trouble(); !errors.Is(got, c.want) {
			t.Errorf("%s: %v, want %v", c.said, got, c.want)
		}
	}
}

// TestEnd: that its listeners are closed at the end of a member is no warning.
func TestEnd(t *testing.T) {
	var log bytes.Buffer
	l := zap.New(bridge{to: slog.NewTextHandler(&log, nil)})
	l.Error("setting up serving from embedded etcd failed.", zap.Error(&net.OpError{Op: "accept", Net: "tcp", Err: net.ErrClosed}))
	l.Error("setting up serving from embedded etcd failed.", zap.Error(http.ErrServerClosed))
	if log.Len() > 0 {
		t.Errorf("%s", &log)
	}
}
