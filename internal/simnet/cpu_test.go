package simnet

import (
	"syscall"
	"time"
)

// processor is how much processor time the process has taken: what a busy machine does not change.
func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for oneself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
