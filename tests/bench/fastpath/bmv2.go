package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"regexp"
	"syscall"
	"time"

	"github.com/mcrdma/mcrdma/internal/p4rt"
	"github.com/mcrdma/mcrdma/internal/switchspec"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
	"github.com/mcrdma/mcrdma/tests/dataplane"
)

// bmv2Window is the number of frames in flight to bmv2, whose ports hold 64. Making so few at a
// time takes longer than bmv2 takes to process them, so only its own processor time counts, which
// favors it.
const bmv2Window = 48

// startBMv2 starts bmv2 between the veths, with the same routes and the first group, and returns a
// function that reads its processor time. bmv2 ends with this process, which shares its own network
// namespace with it.
func startBMv2(launcher string) (cpu func() (time.Duration, error), err error) {
	args := []string{"--mount", "sh", "-c", `mount -t sysfs sysfs /sys && ip link set lo up && exec "$@" 2>&1`, "sh", launcher}
	for n := 1; n <= hosts; n++ {
		args = append(args, "-i", fmt.Sprintf("%d@s%d", n, n))
	}
	cmd := exec.Command("unshare", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	said := ""
	ready := regexp.MustCompile(`ready: P4Runtime on (\S+), .* process (\d+)`)
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			return nil, fmt.Errorf("bmv2 did not start: %s", said)
		}
		said += lines.Text() + "\n"
		if m := ready.FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			cpu = func() (time.Duration, error) { return threads(m[2]) }
			return cpu, program(m[1])
		}
	}
}

// program gives a switch the same entries as the embedded one.
func program(target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := p4rt.New(p4rt.Config{Target: target})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := errors.Join(s.WaitPrimary(ctx), s.PushPipeline(ctx)); err != nil {
		return err
	}
	have, err := s.Read(ctx)
	if err != nil {
		return err
	}
	want := have.Clone()
	if err := want.Put(rackEntities()...); err != nil {
		return err
	}
	return s.Apply(ctx, switchspec.Diff(have, want))
}

// rackEntities are the entries of a dataplane.Rack with the first group, without merging.
func rackEntities() []switchspec.Entity {
	addr := func(h int) netip.Addr { return netip.AddrFrom4(dataplane.HostIP(h)) }
	list := []switchspec.Entity{switchspec.Settings{ICRC: switchspec.ICRCNeutral}, switchspec.RouterMAC{MAC: dataplane.RouterMAC}}
	for n := uint16(1); n <= hosts; n++ {
		list = append(list,
			switchspec.Route{Dst: netip.PrefixFrom(addr(int(n)), 32), To: switchspec.ToNextHop, Number: n},
			switchspec.NextHop{ID: n, Port: n},
			switchspec.Neighbor{NextHop: n, Src: dataplane.RouterMAC, Dst: dataplane.HostMAC(int(n))})
	}
	g := theGroup(0)
	group := switchspec.PREGroup{ID: 1}
	for i, h := range g.Receivers {
		rid, to := uint16(i+1), g.Targets[i]                                                           //nolint:gosec // few
		group.Replicas = append(group.Replicas, switchspec.PREReplica{Port: uint16(h), Instance: rid}) //nolint:gosec // few
		list = append(list,
			switchspec.Replica{Group: 1, Rewrite: bifurcation.Rewrite{RID: rid, NextHop: uint16(h), Dst: addr(h), Last: true, QPN: uint32(to.QPN), //nolint:gosec // few
				Neutral: uint32(g.Neutral(h, to.QPN))}}, //nolint:gosec // 32 bits
			switchspec.Region{Group: 1, Translation: bifurcation.Translation{RID: rid, RKey: dataplane.SenderRKey, NewRKey: to.RKey,
				First: dataplane.SenderVA, Last: dataplane.SenderVA + dataplane.RegionLen - 1, Neutral: uint32(dataplane.NeutralRegion(to))}}) //nolint:gosec // 32 bits
	}
	return append(list, group, switchspec.Match{Src: addr(g.Sender), MCID: uint32(g.MCID), Dst: addr(g.Receivers[0]), Group: 1, FirstPRE: 1, PREGroups: 1})
}
