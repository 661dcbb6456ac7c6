package p4rt

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/tests/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const device = 3

// A rig is an embedded switch on loopback, with one port.
type rig struct {
	sw     *softswitch.Switch
	target string
	port   ports.Port // the other end of port 1
	close  func()
}

func embedded(t testing.TB, o ...grpc.ServerOption) *rig {
	t.Helper()
	return embeddedAt(t, "127.0.0.1:0", o...)
}

func embeddedAt(t testing.TB, addr string, o ...grpc.ServerOption) *rig {
	t.Helper()
	sw, err := softswitch.New(softswitch.Config{CPUPort: bmv2.CPUPort})
	if err != nil {
		t.Fatal(err)
	}
	return embeddedWith(t, addr, sw, o...)
}

func embeddedWith(t testing.TB, addr string, sw *softswitch.Switch, o ...grpc.ServerOption) *rig {
	t.Helper()
	near, far := memnet.Pair("switch", "test")
	if err := sw.Attach(1, near); err != nil {
		t.Fatal(err)
	}
	server := p4rtserver.New(sw, p4rtserver.Options{DeviceID: device, FastPath: sw.FastPath, Problems: sw.Problems})
	g := grpc.NewServer(append(p4rtserver.ServerOptions(), o...)...)
	server.Register(g)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(l) }()
	closed := false
	r := &rig{sw: sw, target: l.Addr().String(), port: far}
	r.close = func() {
		if closed {
			return
		}
		closed = true
		server.Close()
		g.Stop()
		<-served
		_ = sw.Close()
		_ = far.Close()
	}
	t.Cleanup(r.close)
	return r
}

// real starts bmv2's own switch, if the machine has it.
func real(t *testing.T) string {
	t.Helper()
	target := freePort(t)
	realAt(t, target)
	return target
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func realAt(t *testing.T, target string) (stop func()) {
	t.Helper()
	program := os.Getenv("SIMPLE_SWITCH_GRPC")
	if program == "" {
		program = "simple_switch_grpc"
	}
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skip("optional: bmv2's simple_switch_grpc is not in PATH, and SIMPLE_SWITCH_GRPC does not name it")
	}
	_, thrift, _ := net.SplitHostPort(freePort(t))
	cmd := exec.Command(path, "--no-p4", "--device-id", fmt.Sprint(device), "--thrift-port", thrift,
		"--notifications-addr", "ipc://"+filepath.Join(t.TempDir(), "n.ipc"),
		"--", "--grpc-server-addr", target, "--cpu-port", fmt.Sprint(bmv2.CPUPort))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func client(t testing.TB, cfg Config) *Client {
	t.Helper()
	cfg.DeviceID = device
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func open(t testing.TB, c *Client) *Session {
	t.Helper()
	var s *Session
	ctx := within(t)
	for { // the switch may just be starting
		var err error
		if s, err = c.Open(ctx); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		c.conn.ResetConnectBackoff()
	}
	t.Cleanup(s.Close)
	return s
}

// ready opens a session that is the primary of a switch with the program.
func ready(t testing.TB, target string) *Session {
	t.Helper()
	s := open(t, client(t, Config{Target: target}))
	if err := s.WaitPrimary(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.EnsurePipeline(within(t)); err != nil {
		t.Fatal(err)
	}
	return s
}

func ip(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }

// group puts group number n of three receivers into a state that has neighbor 1.
func group(s *switchspec.State, n uint16) error {
	pre := switchspec.PREGroup{ID: n}
	err := s.Put(
		switchspec.MergeGroup{Slot: n % 16384, Members: 7, Epoch: 1, InitialPSN: 5, Source: ip(1), SenderQPN: 17},
		switchspec.Match{Src: ip(9), MCID: uint32(n), Dst: ip(1), Group: n, FirstPRE: n, PREGroups: 1})
	for i := range uint16(3) {
		pre.Replicas = append(pre.Replicas, switchspec.PREReplica{Port: i + 1, Instance: i + 1})
		if err == nil {
			err = s.Put(
				switchspec.Replica{Group: n, Rewrite: bifurcation.Rewrite{RID: i + 1, Last: true, Dst: ip(int(i) + 1), QPN: 100 + uint32(i), NextHop: 1}},
				switchspec.Region{Group: n, Translation: bifurcation.Translation{RID: i + 1, RKey: 7, First: 1 << 40, Last: 1<<40 + 4095, Offset: 1 << 63, NewRKey: 8}},
				switchspec.MergeMember{Src: ip(int(i) + 1), Dst: ip(9), DestQP: uint32(n), Slot: n % 16384, Index: uint8(i)})
		}
	}
	if err == nil {
		err = s.Put(pre)
	}
	return err
}

// everything is a state with all kinds of entities, and values at their limits.
func everything(t testing.TB) *switchspec.State {
	t.Helper()
	s := &switchspec.State{}
	all := netip.MustParsePrefix("0.0.0.0/0")
	err := s.Put(
		switchspec.Settings{ICRC: switchspec.ICRCNeutral, HashSeed: 1<<32 - 1, Owner: 1<<64 - 1, Numbers: 1 << 40},
		switchspec.Bypass{Src: ip(2), Dst: ip(1), QPN: 1<<24 - 1},
		switchspec.PREGroup{ID: 4095, Replicas: []switchspec.PREReplica{{Port: 1, Instance: 1}, {Port: 2, Instance: 1}, {Port: 3, Instance: 1}, {Port: 3, Instance: 9}}},
		switchspec.BridgePort{Port: 3, FloodGroup: 4095}, switchspec.BridgePort{Port: 0},
		switchspec.GuardedPort{Port: 3}, switchspec.PortHost{Port: 3, Addr: ip(11), MAC: switchspec.MAC{2, 0, 0, 0, 1, 11}},
		switchspec.RouterMAC{MAC: switchspec.MAC{2, 0, 0, 0, 0, 1}}, switchspec.ARPTarget{Addr: ip(254)},
		switchspec.BridgeMAC{MAC: switchspec.MAC{2, 0, 0, 0, 0, 2}, Port: 3},
		switchspec.Neighbor{NextHop: 1, Src: switchspec.MAC{2}, Dst: switchspec.MAC{5: 3}}, switchspec.Neighbor{NextHop: 2},
		switchspec.NextHop{ID: 1, Port: 510}, switchspec.NextHop{ID: 2},
		switchspec.ECMPGroup{ID: 4, Hops: []switchspec.ECMPHop{{NextHop: 1, Weight: 1}, {NextHop: 2, Weight: 3}}},
		switchspec.Route{Dst: all, To: switchspec.ToECMP, Number: 4},
		switchspec.Route{Dst: netip.PrefixFrom(ip(0), 8), To: switchspec.ToNextHop, Number: 2},
		switchspec.Route{Dst: netip.PrefixFrom(ip(254), 32), To: switchspec.ToAgent},
		switchspec.Route{Dst: netip.PrefixFrom(ip(253), 32), To: switchspec.ToNowhere},
		switchspec.ECNPort{Port: 1, KMin: 50, KMax: 1<<19 - 1, PMax: 655},
		switchspec.Replica{Group: 1, Rewrite: bifurcation.Rewrite{RID: 9, Dst: ip(3), NextHop: 2}},
		switchspec.Region{Group: 1, Translation: bifurcation.Translation{RID: 3, RKey: 9, First: 0, Last: 1<<64 - 1, Offset: 3, NewRKey: 1<<32 - 1}},
	)
	if err == nil {
		err = group(s, 1)
	}
	if err == nil {
		err = s.Check()
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// EnsurePipeline gives the switch the program, unless it has it already. The
// program is known by its cookie, or if the switch does not keep cookies, by
// itself. A switch that is given it loses all other state. Only the primary can.
func (s *Session) EnsurePipeline(ctx context.Context) (pushed bool, err error) {
	have, err := s.HasPipeline(ctx)
	if err != nil || have {
		return false, err
	}
	if err := s.PushPipeline(ctx); err != nil {
		return false, err
	}
	return true, nil
}
