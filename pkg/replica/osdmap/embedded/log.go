package embedded

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// A bridge takes etcd's messages into a slog.Handler, each a level lower: what etcd reports of its
// everyday work is for who looks for a fault in it.
type bridge struct{ to slog.Handler }

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

func (b bridge) Enabled(l zapcore.Level) bool { return b.to.Enabled(context.Background(), level(l)) }

func (b bridge) With(fields []zapcore.Field) zapcore.Core {
	return bridge{b.to.WithAttrs(attrs(fields))}
}

func (b bridge) Check(e zapcore.Entry, c *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(e.Level) {
		return c.AddCore(e, b)
	}
	return c
}

func (b bridge) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, level(e.Level), "etcd: "+e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return b.to.Handle(context.Background(), r)
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
