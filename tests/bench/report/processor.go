package report

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Used is the processor time of this process so far, including the kernel's.
func Used() (time.Duration, error) { return used(unix.RUSAGE_SELF) }

// UsedByThread is that of the calling thread.
func UsedByThread() (time.Duration, error) { return used(unix.RUSAGE_THREAD) }

func used(who int) (time.Duration, error) {
	var u unix.Rusage
	err := unix.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), os.NewSyscallError("getrusage", err)
}

// Tick is the unit of processor time in /proc: USER_HZ is 100 on all architectures that Go
// supports.
const Tick = time.Second / 100

// UsedBy is the processor time of a process so far, in ticks.
func UsedBy(pid int) (sum time.Duration, err error) {
	name := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest) // from the state on, proc_pid_stat(5)
	const utime, stime = 11, 12
	if len(fields) <= stime {
		return 0, fmt.Errorf("%s has %d fields", name, len(fields))
	}
	for _, f := range fields[utime : stime+1] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		sum += time.Duration(n) * Tick
	}
	return sum, nil
}
