package cli

import (
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
)

// NotifySystemd reports a state to the service manager, if there is one (sd_notify(3)).
func NotifySystemd(state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if c, err := net.Dial("unixgram", name); err == nil { // a leading @ means an abstract name
		_, _ = io.WriteString(c, state) // there is no way to report an error
		c.Close()
	}
}

// CollectSeldom collects garbage a quarter as often, unless GOGC is set. Agents, daemons and
// switches keep a few megabytes, except very large tables of routes, so that this costs little
// memory, and a collection delays others.
func CollectSeldom() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// AddLogFlags adds --log-level and --log-json. The returned function makes the logger; its error is
// a usage error.
func AddLogFlags(cmd *cobra.Command) func(w io.Writer) (*slog.Logger, error) {
	level, asJSON := "", false
	cmd.Flags().StringVar(&level, "log-level", "info", "lowest `level` of messages: debug, info, warn or error")
	CompleteFlag(cmd, "log-level", func() []string { return []string{"debug", "info", "warn", "error"} })
	cmd.Flags().BoolVar(&asJSON, "log-json", false, "log in JSON, one object a line")
	return func(w io.Writer) (*slog.Logger, error) {
		var l slog.Level
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, Usagef("--log-level %q: want debug, info, warn or error", level)
		}
		options := &slog.HandlerOptions{Level: l}
		if asJSON {
			options.ReplaceAttr = asText
			return slog.New(slog.NewJSONHandler(w, options)), nil
		}
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
}

// asText makes the JSON log write a value as the text log does, where JSON would write its fields,
// or an empty object.
func asText(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case error, json.Marshaler, encoding.TextMarshaler, time.Time, time.Duration, slog.Level:
	case fmt.Stringer:
		a.Value = slog.StringValue(v.String())
	default:
		if k := reflect.ValueOf(v).Kind(); k == reflect.Struct || k == reflect.Pointer {
			a.Value = slog.StringValue(fmt.Sprintf("%+v", v))
		}
	}
	return a
}
