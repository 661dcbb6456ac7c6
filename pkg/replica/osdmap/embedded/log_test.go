package embedded

import (
	"bytes"
	"log/slog"
	"strings"
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
