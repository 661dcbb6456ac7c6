package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// levels are bmv2's names of levels.
var levels = map[string]slog.Level{"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo,
	"warn": slog.LevelWarn, "error": slog.LevelError, "off": slog.LevelError + 4}

func (o *softswitchOptions) checkLogging() error {
	if o.logConsole && o.logFile != "" {
		return cli.Usagef("--log-console and --log-file exclude each other")
	}
	if o.logLevel == "" {
		o.logLevel = "info"
		if o.detailed() {
			o.logLevel = "debug"
		}
	}
	if _, ok := levels[o.logLevel]; !ok {
		return cli.Usagef("--log-level %q: levels are trace, debug, info, warn, error and off", o.logLevel)
	}
	return nil
}

// detailed reports whether the program's own messages are logged.
func (o *softswitchOptions) detailed() bool { return o.logConsole || o.logFile != "" }

// logger returns the log, and a function that closes its file.
func (o *softswitchOptions) logger(stderr io.Writer) (*slog.Logger, func() error, error) {
	w, done := stderr, func() error { return nil }
	if o.logFile != "" {
		f, err := os.OpenFile(o.logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return nil, nil, fmt.Errorf("--log-file: %w", err)
		}
		w, done = f, f.Close
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: levels[o.logLevel]})), done, nil
}

// nonZero returns the members of a struct of counters that are not 0.
func nonZero(counters any) map[string]uint64 {
	m := map[string]uint64{}
	v := reflect.ValueOf(counters)
	for i := range v.NumField() {
		if n := v.Field(i).Uint(); n != 0 {
			m[v.Type().Field(i).Name] = n
		}
	}
	return m
}
