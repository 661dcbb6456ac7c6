package hostload

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Batch has Linux schedule this process as SCHED_BATCH (sched(7)): a thread that wakes up does not interrupt the
// one that runs, and waits for the end of its time slice unless a processor is idle. Programs that hand packets to
// one another on few processors get more done in each turn. It takes no privilege and keeps the nice value; where
// it is not permitted nothing changes. Threads and processes inherit it, so call it before others are started.
func Batch() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if attr, err := unix.SchedGetAttr(id, 0); err == nil && attr.Policy == unix.SCHED_NORMAL {
			attr.Policy = unix.SCHED_BATCH
			_ = unix.SchedSetAttr(id, attr, 0)
		}
	}
}
