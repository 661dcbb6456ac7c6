package cli

import (
	"io"
	"log/slog"
	"net"
	"os"
)

// NotifySystemd reports a state to the service manager, if there is one
// (sd_notify(3)).
func NotifySystemd(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if c, err := net.Dial("unixgram", name); err == nil { // a leading @ is an abstract name
		_, _ = io.WriteString(c, state) // there is no way to report an error
		c.Close()
	}
}

// Logger logs as text, or in JSON, one object a line. level is that of --log-level; the
// error is a usage error.
func Logger(w io.Writer, level string, asJSON bool) (*slog.Logger, error) {
	options := &slog.HandlerOptions{}
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, Usagef("--log-level %q is none of debug, info, warn, error", level)
	}
	options.Level = l
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}
