package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"sync"

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

// logger returns the log, and its file; nil: it is standard error.
func (o *softswitchOptions) logger(stderr io.Writer) (*slog.Logger, *logFile, error) {
	w, file := stderr, (*logFile)(nil)
	if o.logFile != "" {
		file = &logFile{name: o.logFile}
		if err := file.reopen(); err != nil {
			return nil, nil, err
		}
		w = file
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: levels[o.logLevel]})), file, nil
}

// A logFile is appended to. Its methods may be called concurrently; those of nil do nothing.
type logFile struct {
	name string
	mu   sync.Mutex
	f    *os.File
}

func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Write(b)
}

// reopen opens the file by its name, after it was moved away. If that fails, the one before stays in use.
func (l *logFile) reopen() error {
	if l == nil {
		return nil
	}
	f, err := os.OpenFile(l.name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("--log-file: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		err = l.f.Close()
	}
	l.f = f
	return err
}

func (l *logFile) close() error {
	if l == nil {
		return nil
	}
	return l.f.Close()
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
