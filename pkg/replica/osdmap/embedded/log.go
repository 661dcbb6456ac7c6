package embedded

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// A bridge takes etcd's messages into a slog.Handler, each a level lower: what etcd reports of its
// everyday work is for who looks for a fault in it. What keeps a member out of its cluster etcd says nowhere else.
type bridge struct {
	to      slog.Handler
	trouble *atomic.Pointer[error]
}

func level(l zapcore.Level) slog.Level {
	switch {
	case l <= zapcore.InfoLevel:
		return slog.LevelDebug
	case l == zapcore.WarnLevel:
		return slog.LevelInfo
	case l == zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

func (b bridge) Enabled(l zapcore.Level) bool {
	return l >= zapcore.WarnLevel || b.to.Enabled(context.Background(), level(l))
}

func (b bridge) With(fields []zapcore.Field) zapcore.Core {
	return bridge{b.to.WithAttrs(attrs(fields)), b.trouble}
}

func (b bridge) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(e.Level) {
		return c.AddCore(e, b)
	}
	return c
}

func (b bridge) Write(e zapcore.Entry, fields []zapcore.Field) error {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			if e.Level < zapcore.PanicLevel && (errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed)) {
				return nil // its listeners end with it
			}
			b.note(err)
		}
	}
	if !b.to.Enabled(context.Background(), level(e.Level)) {
		return nil
	}
	r := slog.NewRecord(e.Time, level(e.Level), "etcd: "+e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	if e.Level >= zapcore.PanicLevel {
		r.AddAttrs(slog.String("do", remedy(e.Message)))
	}
	return b.to.Handle(context.Background(), r)
}

// remedy says what to do when etcd ends the process with a message.
func remedy(message string) string {
	if strings.Contains(message, "Was the raft log corrupted") { // raft/log.go, commitTo
		return "this process ends with its member of etcd, whose data is older than what the others know that it had, as from a backup: " +
			"remove the directory etcd from its data; on another host mcblock etcd replace; here join: true under etcd, and start again"
	}
	return "this process ends with its member of etcd: make room on the disk or repair it, and start again; if the disk is lost: mcblock etcd replace"
}

// note keeps why the member cannot be in its cluster, by etcd's words for it.
func (b bridge) note(err error) {
	switch err.Error() {
	case "cluster ID mismatch": // rafthttp.ErrClusterIDMismatch
		b.trouble.CompareAndSwap(nil, &ErrOtherCluster)
	case "the member has been permanently removed from the cluster":
		b.trouble.Store(&ErrRemoved)
	case "cannot process message to mismatch member": // etcdserver/server.go, Process
		b.trouble.CompareAndSwap(nil, &ErrReplaced)
	}
}

func (bridge) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	enc := zapcore.NewMapObjectEncoder()
	var out []slog.Attr
	for _, f := range fields {
		f.AddTo(enc)
	}
	for _, f := range fields {
		if v, ok := enc.Fields[f.Key]; ok {
			out = append(out, slog.Any(f.Key, v))
		}
	}
	return out
}
