package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
)

// threads is the processor time of all threads of a process.
func threads(pid string) (sum time.Duration, err error) {
	names, err := filepath.Glob(filepath.Join("/proc", pid, "task/*/schedstat"))
	if err != nil || len(names) == 0 {
		return 0, fmt.Errorf("processor time of process %s: %w", pid, errors.Join(err, os.ErrProcessDone))
	}
	for _, name := range names {
		n, err := strconv.ParseInt(report.FirstWord(name), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time of process %s: %w", pid, err)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

// softirqd is the processor time of the kernel threads for the remaining network work.
func softirqd() (sum time.Duration, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if !strings.HasPrefix(report.FirstWord(name), "ksoftirqd/") {
			continue
		}
		n, err := strconv.ParseInt(report.FirstWord(filepath.Join(filepath.Dir(name), "schedstat")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time of the kernel's threads: %w", err)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}
