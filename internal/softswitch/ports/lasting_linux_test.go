package ports

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// An inside port is received from by a thread that enters a network namespace.
type inside struct {
	*Lasting
	ns    int
	enter sync.Once
}

func (p *inside) Recv(bufs [][]byte) (int, error) {
	var err error
	p.enter.Do(func() {
		runtime.LockOSThread()
		err = unix.Setns(p.ns, unix.CLONE_NEWNET)
	})
	if err != nil {
		return 0, err
	}
	return p.Lasting.Recv(bufs)
}

// TestVethMadeAnew: a lasting port goes on when its interface is made anew, and its counters too.
func TestVethMadeAnew(t *testing.T) {
	inNamespace(t, func(run func(string)) {
		near := open(t, Options{}, "va", "vb")
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		l := NewLasting(near[1], Options{})
		c := collect(t, &inside{Lasting: l, ns: int(ns.Fd())}, 1600)
		for k := range 2 {
			near[0].Send([][]byte{frame(60, k)})
			if _, err := c.wait(k + 1); err != nil {
				t.Error(err)
				return
			}
			if l.Send([][]byte{frame(60, k)}) != 1 || !l.Up() {
				t.Errorf("it sends nothing: %+v", l.Stats())
			}
			if k == 1 {
				break
			}
			run("ip link del vb")
			if l.Up() || l.Send([][]byte{frame(60, k)}) != 0 {
				t.Error("alive")
			}
			run(`ip link add va type veth peer name vb
				for i in va vb; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; ip link set $i up; done`)
			if !eventually(l.Up) {
				t.Error("it stays down")
				return
			}
			near = open(t, Options{}, "va")
		}
		if s := l.Stats(); s.RxPackets != 2 || s.TxPackets != 2 || s.Drops["tx_down"] != 1 {
			t.Errorf("%+v", s)
		}
	})
}
