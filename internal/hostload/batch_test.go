package hostload_test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/hostload"
)

// TestBatch: all threads of a program have the policy, also later ones, and its nice value stays. It is another process,
// as the rest of this one would keep the policy.
func TestBatch(t *testing.T) {
	const child = "HOSTLOAD_BATCH"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBatch$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	hostload.Batch()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			runtime.LockOSThread() // a thread of its own, which ends
			a, err := unix.SchedGetAttr(0, 0)
			if err != nil || a.Policy != unix.SCHED_BATCH || a.Nice != before.Nice {
				t.Errorf("policy %d, nice %d, %v; want %d, %d", a.Policy, a.Nice, err, unix.SCHED_BATCH, before.Nice)
			}
		})
	}
	wg.Wait()
}
