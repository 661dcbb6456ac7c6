package e2e

import (
	"testing"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// connect makes an ordinary connection with a name between two hosts.
func connect(t *testing.T, name string, from, to *lab.HostNode, size, mtu int) {
	t.Helper()
	var addr [2]orders.FlowAddr
	both := []*lab.HostNode{from, to}
	for i, h := range both {
		addr[i] = ask[orders.FlowAddr](t, h, orders.FlowEnd, orders.FlowEndArgs{Name: name, Size: size})
	}
	for i, h := range both {
		ask[any](t, h, orders.FlowJoin, orders.FlowJoinArgs{Name: name, Peer: addr[1-i], PSN: 0xfffff0, MTU: mtu})
	}
}

// The network itself: ordinary connections between hosts of a rack and across racks, with frames
// counted one by one, over links with and without loss.
func TestNamespaceUnicast(t *testing.T) {
	for name, imp := range map[string]lab.Impairment{"good": {}, "bad": {Loss: 0.01, Reorder: 0.01, Double: 0.01, Seed: 1}} {
		t.Run(name, func(t *testing.T) {
			l := startSample(t, lab.Spec{NoHosts: true, Links: imp})
			openDevices(t, l.Hosts)
			for _, to := range []string{"h2", "h3"} {
				connect(t, "flow-"+to, l.Host("h1"), l.Host(to), 1<<20, flowMTU)
				for attempt := 1; ; attempt++ {
					got, want := flowFrames(t, l, to)
					if got == want || name == "bad" && got.Frames >= want.Frames {
						break
					}
					// If other load delays bmv2, a timeout may pass.
					if !l.Spec.BMv2 || attempt == attempts {
						t.Errorf("frames to %s: %+v, want %+v", to, got, want)
						break
					}
				}
			}
		})
	}
}

const flowMTU = 4096

// flowFrames makes h1 write to another host, and returns the number of frames, and the number
// without loss and delay.
func flowFrames(t *testing.T, l *lab.Lab, to string) (got, want lab.TapCount) {
	t.Helper()
	const size, count = 100_001, 64
	h1 := l.Host("h1")
	var sent orders.FlowResult
	flows, _ := tap(t, h1, func() {
		sent = ask[orders.FlowResult](t, h1, orders.FlowRun, orders.FlowRunArgs{Name: "flow-" + to, Size: size, Depth: 8, Count: count})
	})
	if sum := ask[string](t, l.Host(to), orders.FlowSum, orders.Name{Name: "flow-" + to}); sum != sent.Sum {
		t.Errorf("%s has something else", to)
	}
	want = lab.Frames(size, flowMTU, 16)
	want = lab.TapCount{Frames: count * want.Frames, Bytes: count * want.Bytes}
	for f, c := range flows {
		if f.To == l.Host(to).Addr {
			got = c
		}
	}
	t.Logf("to %s: %v, %v in frames; want %v", to, sent.Took, got, want)
	return got, want
}
