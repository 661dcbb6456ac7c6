package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// previous is the commit of the previous release, with which this one must work. MCRDMA_PREVIOUS
// names another commit, or a directory with the programs of one.
const previous = "0a774d8dc2b370369e83312bfe83db215a599259"

// A mixture is a lab with programs of two releases.
type mixture struct {
	*lab.Lab
	releases map[bool]lab.Programs // by whether they are of the previous release
	old      map[string]bool       // processes that are of the previous release
	groups   int
}

// mix starts a lab with only the previous release.
func mix(t *testing.T, spec lab.Spec) *mixture {
	t.Helper()
	wholeLabs(t)
	now, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	old, err := lab.BuildRelease(t.Context(), cmp.Or(os.Getenv("MCRDMA_PREVIOUS"), previous), filepath.Join(base, "previous"))
	if errors.Is(err, lab.ErrNoRelease) {
		t.Skipf("optional: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	m := &mixture{releases: map[bool]lab.Programs{false: now, true: old}, old: map[string]bool{}}
	spec.Prepare = func(p *lab.Process) {
		if len(p.Args) == 0 { // a switch, which agents know by P4Runtime only
			return
		}
		if _, ok := m.old[p.Name]; !ok {
			m.old[p.Name] = true
		}
		m.choose(p)
	}
	m.Lab = startLab(t, spec)
	return m
}

// choose selects the release with which a process is next started.
func (m *mixture) choose(p *lab.Process) {
	from := m.releases[m.old[p.Name]]
	for _, program := range []string{from.Switchctl, from.Daemon, from.Member} {
		if filepath.Base(program) == filepath.Base(p.Args[0]) {
			p.Args[0] = program
		}
	}
}

// swap restarts processes with another release, with the state of the previous one.
func (m *mixture) swap(t *testing.T, old bool, list ...*lab.Process) {
	t.Helper()
	for _, p := range list {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		m.old[p.Name] = old
		m.choose(p)
		start(t, p)
	}
}

// application starts an application of a release on a host.
func (m *mixture) application(t *testing.T, old bool, h *lab.HostNode) {
	t.Helper()
	h.Member.Kill()
	m.old[h.Member.Name] = old
	if err := h.NewMember(t.Context()); err != nil {
		t.Fatal(err)
	}
	dial(t, h)
	listen(t, small, h)
}

// cycle is the life of a group from h3 to h2, h5 and h6: work, perhaps a swap, the death of h6's
// application, work, the end.
func (m *mixture) cycle(t *testing.T, mode string, senderOld, victimOld bool, swaps ...*lab.Process) {
	t.Helper()
	m.groups++
	name := fmt.Sprintf("%d: %s, applications of the previous release: h3 %v, h6 %v", m.groups, mode, senderOld, victimOld)
	begun := time.Now()
	from, victim := m.Host("h3"), m.Host("h6")
	m.application(t, senderOld, from)
	m.application(t, victimOld, victim)
	to := []*lab.HostNode{m.Host("h2"), m.Host("h5"), victim}
	for _, h := range to { // its daemon may have restarted just now
		eventually(t, h.Name+" listens", 10*time.Second, func() bool { return h.Listens(t.Context(), "small") })
	}
	args := orders.CreateArgs{Name: name, Service: "small", Mode: mode, Regions: []uint64{1 << 20}}
	if mode == "off" && !(senderOld && victimOld) { // h2 and h5 have applications of the previous release
		args.Receivers, args.Millis = addrs(to), 2000 // for the previous release, which waits
		_, err := lab.Ask[orders.GroupInfo](t.Context(), from.Member, orders.Create, args)
		if err == nil || !strings.Contains(err.Error(), "another version of the protocol") {
			t.Errorf("%s: %v", name, err)
		}
		return
	}
	tm := gather(t, from, to, args)
	tm.on(t, map[string]string{"require": "switch", "off": "relay"}[mode])
	tm.workFor(t, 48, tm.to...)
	m.swap(t, false, swaps...)
	victim.Member.Kill()
	tm.told(t, "removed", victim)
	if info := ask[orders.GroupInfo](t, from, orders.Info, orders.Name{Name: name}); mode == "require" && info.Formation != 1 {
		t.Errorf("%s: to take a receiver out, the group was formed anew: %+v", name, tm.events(t))
	}
	tm.workFor(t, 48, tm.to[:2]...)
	tm.close(t)
	t.Logf("%s: %v", name, time.Since(begun))
}

// during does something during a group's work.
func (m *team) during(t *testing.T, f func()) {
	t.Helper()
	args := busy
	args.Millis = 0
	args.Count = 500
	done := make(chan error, 1)
	go func() {
		res, err := m.try(t.Context(), args)
		if err == nil {
			err = m.compare(t.Context(), res, m.to...)
		}
		done <- err
	}()
	f()
	if err := <-done; err != nil {
		t.Errorf("%s: %v; %+v", m.name, err, m.events(t))
	}
	if info := ask[orders.GroupInfo](t, m.from, orders.Info, orders.Name{Name: m.name}); len(info.Members) != len(m.to) {
		t.Errorf("%s: members are %v; %+v", m.name, info.Members, m.events(t))
	}
}

// refused checks that a process does not start with the previous release, for these reasons, and
// starts again with its own.
func (m *mixture) refused(t *testing.T, p *lab.Process, words ...string) {
	t.Helper()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	m.old[p.Name] = true
	m.choose(p)
	err := p.Start(t.Context())
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s of the previous release does not say %q: %v", p.Name, w, err)
		}
	}
	m.swap(t, false, p)
}

// Programs of this and the previous release in one lab: each daemon and each agent is replaced by
// that of the other release, with its state, during work in groups. Groups of each mixture live and
// die. What is impossible is refused, and the error says why.
func TestNamespaceUpgrade(t *testing.T) {
	hold := lab.Switch{Agent: "restart: {hold: 30s}\n"}
	m := mix(t, lab.Spec{Racks: []int{3, 3}, Switches: map[string]lab.Switch{"torA": hold, "spine": hold, "torB": hold}})
	h := func(n int) *lab.HostNode { return m.Hosts[n-1] }
	dial(t, m.Hosts...)
	listen(t, small, m.Hosts...)
	standing := []*team{
		gather(t, h(1), []*lab.HostNode{h(2), h(4), h(5)}, orders.CreateArgs{Name: "switched", Service: "small", Mode: "require", Regions: []uint64{1 << 20}}),
		gather(t, h(2), []*lab.HostNode{h(1), h(4), h(5)}, orders.CreateArgs{Name: "relayed", Service: "small", Mode: "off", Regions: []uint64{1 << 20}}),
	}
	swap := func(old bool, list ...*lab.Process) {
		t.Helper()
		for _, p := range list {
			standing[0].during(t, func() { standing[1].during(t, func() { m.swap(t, old, p) }) })
		}
	}
	m.cycle(t, "require", true, true)
	// Old daemons of senders, with new ones of receivers.
	swap(false, h(5).Daemon, h(6).Daemon)
	m.cycle(t, "require", true, false)
	m.cycle(t, "off", true, true)
	swap(false, m.Switch("torA").Agent)
	m.cycle(t, "require", false, true)
	// New daemons of senders, with an old one of a receiver. An application that knows views gets a
	// daemon that does.
	m.cycle(t, "require", false, true, h(3).Daemon)
	swap(false, h(1).Daemon)
	m.cycle(t, "require", true, true)
	m.cycle(t, "require", false, false)
	m.cycle(t, "off", true, true)
	m.cycle(t, "off", false, false)
	swap(false, m.Switch("spine").Agent, m.Switch("torB").Agent, h(2).Daemon, h(4).Daemon)
	m.cycle(t, "require", true, false)
	m.cycle(t, "off", true, false)

	// And back: agents replace each other with groups, daemons without.
	swap(true, m.Switch("torA").Agent)
	fresh := gather(t, h(1), []*lab.HostNode{h(4), h(5)}, orders.CreateArgs{Name: "fresh", Service: "small", Mode: "require", Regions: []uint64{1 << 20}})
	for _, x := range []*lab.HostNode{h(1), h(4)} {
		fresh.during(t, func() {
			m.refused(t, x.Daemon, m.StateFile(x.Name), "in a form that this program does not know", "run the program that wrote it")
		})
	}
	for _, tm := range append(standing, fresh) {
		tm.close(t)
	}
	nothingLeft(t, m.Lab, 10*time.Second)
	m.swap(t, true, h(3).Daemon, h(5).Daemon)
	m.cycle(t, "require", true, true)
	nothingLeft(t, m.Lab, 10*time.Second)
}
