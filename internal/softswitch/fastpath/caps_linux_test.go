package fastpath

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestVethCapabilities: the kernel takes the programs with the capabilities that errors name, and without one of them an error names them.
func TestVethCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "it takes root to have capabilities")
	}
	try := func(list ...uint) (err error) {
		done := make(chan struct{})
		go func() { // whose thread ends with it
			defer close(done)
			runtime.LockOSThread()
			h, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
			for _, c := range list {
				data[c/32].Effective |= 1 << (c % 32)
				data[c/32].Permitted |= 1 << (c % 32)
			}
			if err = unix.Capset(&h, &data[0]); err != nil {
				return
			}
			k, failed := load()
			if err = failed; err == nil {
				err = k.close()
			}
		}()
		<-done
		return err
	}
	if err := try(unix.CAP_NET_RAW, unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON); err != nil {
		t.Error(err)
	}
	for _, without := range [][]uint{{unix.CAP_NET_RAW, unix.CAP_NET_ADMIN, unix.CAP_BPF}, {unix.CAP_NET_RAW, unix.CAP_NET_ADMIN, unix.CAP_PERFMON}, {unix.CAP_BPF, unix.CAP_PERFMON}} {
		if err := try(without...); err == nil || !strings.Contains(err.Error(), capabilities) {
			t.Errorf("with %v: %v", without, err)
		}
	}
}
