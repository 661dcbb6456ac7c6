package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/embedded"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
	"github.com/mcrdma/mcrdma/tests/osdmaptest"
)

// A cluster is some members, each at a loopback address of its own.
type cluster struct {
	t       *testing.T
	configs map[string]embedded.Config
	running map[string]*embedded.Member
}

// plan makes a cluster of n members that do not run yet.
func plan(t *testing.T, n int, ca *identitytest.CA) *cluster {
	c := &cluster{t, map[string]embedded.Config{}, map[string]*embedded.Member{}}
	members := map[string]string{}
	for i := range n {
		c.add(fmt.Sprintf("h%d", i+1), members, ca)
	}
	t.Cleanup(func() {
		for _, m := range c.running {
			m.Close()
		}
	})
	return c
}

func (c *cluster) add(name string, members map[string]string, ca *identitytest.CA) embedded.Config {
	at := testenv.Loopback()
	members[name] = netip.AddrPortFrom(at, 2380).String()
	cfg := embedded.Config{Name: name, Dir: filepath.Join(c.t.TempDir(), "etcd"), Client: netip.AddrPortFrom(at, 2379).String(),
		Members: members, Log: slog.New(slog.DiscardHandler)}
	if ca != nil {
		cfg.Files = ca.Host(name, at)
	}
	c.configs[name] = cfg
	return cfg
}

func (c *cluster) start(names ...string) {
	c.t.Helper()
	for _, name := range names {
		m, err := embedded.Start(c.configs[name])
		if err != nil {
			c.t.Fatal(err)
		}
		c.running[name] = m
	}
}

// TestAllStop: members that stop at the same time all end. TestCloseSoon has for how long a leader waits for another.
func TestAllStop(t *testing.T) {
	c := plan(t, 3, nil)
	c.start("h1", "h2", "h3")
	for _, m := range c.running {
		<-m.Ready()
	}
	var wg sync.WaitGroup
	for _, m := range c.running {
		wg.Go(m.Close)
	}
	wg.Wait()
}

// TestSpace: a member has all space of its database from the start, so that it goes on when the disk is full.
func TestSpace(t *testing.T) {
	c := plan(t, 1, nil)
	c.start("h1")
	<-c.running["h1"].Ready()
	var db unix.Stat_t
	if err := unix.Stat(filepath.Join(c.configs["h1"].Dir, "member", "snap", "db"), &db); err != nil {
		t.Fatal(err)
	}
	if db.Size == 0 || db.Blocks*512 < db.Size {
		t.Errorf("the database of %d bytes has %d blocks of 512", db.Size, db.Blocks)
	}
}

func (c *cluster) stop(name string) {
	c.running[name].Close()
	delete(c.running, name)
}

// store connects to some members, as the host of the first.
func (c *cluster) store(prefix string, names ...string) *etcd.Store {
	c.t.Helper()
	cfg := etcd.Config{Prefix: prefix, Files: c.configs[names[0]].Files}
	for _, name := range names {
		cfg.Endpoints = append(cfg.Endpoints, c.configs[name].Client)
	}
	return dial(c.t, cfg)
}

func dial(t *testing.T, cfg etcd.Config) *etcd.Store {
	t.Helper()
	s, err := etcd.Dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (c *cluster) all() []string { return slices.Sorted(maps.Keys(c.configs)) }

// suite runs what every store has to do, each part under keys of its own.
func suite(t *testing.T, open func(prefix string) *etcd.Store) {
	osdmaptest.Run(t, func(t *testing.T) osdmap.KV { return open("/" + t.Name() + "/") })
}

func TestSuite(t *testing.T) {
	c := plan(t, 1, nil)
	c.start("h1")
	suite(t, func(prefix string) *etcd.Store { return c.store(prefix, "h1") })
}

// patient waits longer than a cluster takes to find a leader on a busy host.
var patient = osdmap.Options{Timeout: time.Minute, Retry: 100 * time.Millisecond}

// TestMembersDie: with TLS, one of three members dies, then a second; the first call after the
// majority is back works, and the watch of all this time goes on.
func TestMembersDie(t *testing.T) {
	ctx := t.Context()
	c := plan(t, 3, identitytest.New(t))
	c.start("h1", "h2", "h3")
	store := c.store("", c.all()...)
	m := osdmap.New(store, patient)
	v := osdmaptest.Volume(7, "a")
	at := osdmap.FirstMap(v, 2)
	if err := m.Create(ctx, v, at); err != nil {
		t.Fatal(err)
	}
	states := osdmap.New(store, osdmap.Options{Timeout: 2 * time.Second, Retry: 100 * time.Millisecond, Refresh: time.Second}).Watch(ctx)
	step := func(what string) {
		t.Helper()
		next := osdmaptest.Next(at, 1, 1, 2)
		got, err := m.Propose(ctx, 7, next)
		for errors.Is(err, osdmap.ErrAway) {
			// The member that had the call has died with it.
			got, err = m.Propose(ctx, 7, next)
		}
		if err != nil || got.Epoch != next.Epoch {
			t.Fatalf("%s: %+v, %v", what, got, err)
		}
		at = got
		osdmaptest.Until(t, states, what, func(s osdmap.State) bool {
			return s.Away == nil && s.Volume(7) != nil && s.Volume(7).Map.Epoch == at.Epoch
		})
	}
	step("all three")
	c.stop(leader(t, store))
	step("the leader is gone")
	left := slices.Sorted(maps.Keys(c.running))
	c.stop(left[0])
	_, err := osdmap.New(store, osdmap.Options{Timeout: time.Second}).Propose(ctx, 7, osdmaptest.Next(at, 1, 1, 2))
	if !errors.Is(err, osdmap.ErrAway) || !strings.Contains(err.Error(), "start the missing members") {
		t.Fatalf("without a majority: %v", err)
	}
	osdmaptest.Until(t, states, "away", func(s osdmap.State) bool { return errors.Is(s.Away, osdmap.ErrAway) && s.Volume(7) != nil })
	members, err := store.Members(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	down := 0
	for _, m := range members {
		if m.Err != nil {
			down++
		}
	}
	if len(members) != 3 || down < 2 {
		t.Errorf("members %+v", members)
	}
	c.start(left[0])
	step("a majority again")
}

// until waits for what comes by the network.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for late := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("not so: ", what)
		}
	}
}

func leader(t *testing.T, store *etcd.Store) string {
	t.Helper()
	members, err := store.Members(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(members, func(m etcd.Member) bool { return m.Leader })
	if i < 0 {
		t.Fatalf("no leader: %+v", members)
	}
	return members[i].Name
}

// TestReplace: a member loses its disk, and another takes its place; then one more may die.
func TestReplace(t *testing.T) {
	ctx := t.Context()
	c := plan(t, 3, nil)
	c.start("h1", "h2", "h3")
	store := c.store("", "h1", "h2")
	m := osdmap.New(store, patient)
	if err := m.PutHost(ctx, osdmaptest.Host(1)); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.running {
		<-m.Ready() // all have said their names
	}
	fresh := c.add("h4", map[string]string{}, nil)
	peer := fresh.Members["h4"]
	if _, err := store.Replace(ctx, "h3", "h4", peer); err == nil || !strings.Contains(err.Error(), "answers") {
		t.Fatalf("a member that lives: %v", err)
	}
	if _, err := store.Replace(ctx, "h9", "h4", peer); err == nil || !strings.Contains(err.Error(), "h1, h2, h3") {
		t.Fatalf("a member that is not there: %v", err)
	}
	c.stop("h3")
	for name, at := range map[string]string{"h1": peer, "h9": c.configs["h1"].Members["h1"]} {
		_, replacing := store.Replace(ctx, "h3", name, at)
		_, adding := store.Add(ctx, name, at)
		for _, err := range []error{replacing, adding} {
			if err == nil || !strings.Contains(err.Error(), `etcd has the member "h1" at `) {
				t.Fatalf("a new member %s at %s: %v", name, at, err)
			}
		}
	}
	if _, err := store.Replace(ctx, "h3", "h1", c.configs["h1"].Members["h1"]); err == nil || !strings.Contains(err.Error(), `would only lose "h3"`) {
		t.Fatalf("a new member that is there: %v", err)
	}
	var err error
	for range 2 { // again: the answer was lost
		if fresh.Members, err = store.Replace(ctx, "h3", "h4", peer); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"h1", "h2", "h4"}; !slices.Equal(slices.Sorted(maps.Keys(fresh.Members)), want) {
		t.Fatalf("members %v, want %v", fresh.Members, want)
	}
	c.configs["h4"] = fresh
	c.start("h4")
	until(t, "it is of another cluster, as it does not join", func() bool { return errors.Is(c.running["h4"].Trouble(), embedded.ErrOtherCluster) })
	c.stop("h4")
	if err := os.RemoveAll(fresh.Dir); err != nil {
		t.Fatal(err)
	}
	fresh.Join = true
	c.configs["h4"] = fresh
	c.start("h4")
	<-c.running["h4"].Ready()
	if err := c.running["h4"].Trouble(); err != nil {
		t.Error(err)
	}
	c.start("h3")
	if err := <-c.running["h3"].Err(); err == nil || !errors.Is(c.running["h3"].Trouble(), embedded.ErrRemoved) {
		t.Errorf("the member that was replaced: %v, %v", err, c.running["h3"].Trouble())
	}
	c.stop("h3")
	c.stop("h1")
	s, err := osdmap.New(c.store("", "h4", "h2"), patient).Read(ctx)
	if err != nil || s.Host(1) == nil {
		t.Fatalf("%+v, %v", s, err)
	}
}

// TestLost: a member whose directory is empty does not start as if it were new, and says why, also one that replaced another.
func TestLost(t *testing.T) {
	c := plan(t, 3, identitytest.New(t))
	c.start("h1", "h2", "h3")
	for _, m := range c.running {
		<-m.Ready()
	}
	c.stop("h3")
	if err := os.RemoveAll(c.configs["h3"].Dir); err != nil {
		t.Fatal(err)
	}
	for _, join := range []bool{true, false} {
		cfg := c.configs["h3"]
		cfg.Join = join
		if m, err := embedded.Start(cfg); !errors.Is(err, embedded.ErrLost) {
			if err == nil {
				m.Close()
			}
			t.Errorf("join: %v: %v, want %v", join, err, embedded.ErrLost)
		}
		if _, err := os.Stat(cfg.Dir); join && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("something is left in the directory: %v", err)
		}
	}
}

// TestForeignData: a member with a copy of another's data does not start, and so neither votes nor acknowledges in its name.
// Data of an older version, which has no name, is taken.
func TestForeignData(t *testing.T) {
	c := plan(t, 3, nil)
	c.start("h1", "h2", "h3")
	for _, m := range c.running {
		<-m.Ready()
	}
	c.stop("h1")
	c.stop("h3")
	if err := os.RemoveAll(c.configs["h3"].Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(c.configs["h3"].Dir, os.DirFS(c.configs["h1"].Dir)); err != nil {
		t.Fatal(err)
	}
	m, err := embedded.Start(c.configs["h3"])
	if err == nil {
		m.Close()
	}
	if !errors.Is(err, embedded.ErrForeign) || !strings.Contains(err.Error(), `"h1"`) {
		t.Errorf("h3 with the data of h1: %v, want %v", err, embedded.ErrForeign)
	}
	if err := os.Remove(filepath.Join(c.configs["h1"].Dir, "name")); err != nil {
		t.Fatal(err)
	}
	c.start("h1")
	<-c.running["h1"].Ready()
	if name, err := os.ReadFile(filepath.Join(c.configs["h1"].Dir, "name")); err != nil || string(name) != "h1" {
		t.Errorf("the data has the name %q, %v", name, err)
	}
}

// TestCompacted: a watch from a revision that is compacted reads anew.
func TestCompacted(t *testing.T) {
	ctx := t.Context()
	c := plan(t, 1, nil)
	c.start("h1")
	store := c.store("", "h1")
	m := osdmap.New(store, patient)
	for id := range 3 {
		h := osdmaptest.Host(1)
		h.NBD = fmt.Sprintf("10.1.0.11:%d", id+1)
		if err := m.PutHost(ctx, h); err != nil {
			t.Fatal(err)
		}
	}
	_, now, err := store.Get(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{c.configs["h1"].Client}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	if _, err := raw.Compact(ctx, now); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := store.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
}

// TestClose: a member stops although another host watches, and starts again with what it had.
func TestClose(t *testing.T) {
	ctx := t.Context()
	c := plan(t, 1, nil)
	c.start("h1")
	store := c.store("", "h1")
	m := osdmap.New(store, patient)
	if err := m.PutHost(ctx, osdmaptest.Host(1)); err != nil {
		t.Fatal(err)
	}
	_, now, err := store.Get(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- store.Wait(ctx, now) }()
	started := make(chan error, 1)
	go func() { started <- store.Wait(ctx, now-1) }() // by the same stream, after the other
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	c.stop("h1")
	c.start("h1")
	s, err := m.Read(ctx)
	if err != nil || s.Host(1) == nil {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := m.PutHost(ctx, osdmaptest.Host(2)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the watch ended: %v", err)
	}
}

// TestCloseAlone: a member that waits for a majority can be stopped.
func TestCloseAlone(t *testing.T) {
	c := plan(t, 3, nil)
	c.start("h1")
	stopped := make(chan struct{})
	go func() {
		c.stop("h1")
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("it does not stop")
	}
}

func TestStartRefused(t *testing.T) {
	c := plan(t, 1, nil)
	good := c.configs["h1"]
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*embedded.Config){
		"not among the members": func(c *embedded.Config) { c.Name = "x" },
		"not a directory":       func(c *embedded.Config) { c.Dir = filepath.Join(file, "etcd") },
		"assign":                func(c *embedded.Config) { c.Client = "203.0.113.1:2379" },
		"certificate":           func(c *embedded.Config) { c.Files = identity.Files{Cert: file, Key: file, CA: file} },
	} {
		bad := good
		change(&bad)
		m, err := embedded.Start(bad)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestUntrusted: only who has a certificate of the CA gets anything, and the error says why.
func TestUntrusted(t *testing.T) {
	ca := identitytest.New(t)
	c := plan(t, 1, ca)
	c.start("h1")
	read := func(files identity.Files) error {
		_, err := osdmap.New(dial(t, etcd.Config{Endpoints: []string{c.configs["h1"].Client}, Files: files}), osdmap.Options{Timeout: 3 * time.Second}).Read(t.Context())
		return err
	}
	<-c.running["h1"].Ready()
	if err := read(ca.Host("h2")); err != nil {
		t.Fatal(err)
	}
	foreign := identitytest.New(t).Host("h2")
	trusting := foreign
	trusting.CA = c.configs["h1"].Files.CA
	for why, files := range map[string]identity.Files{"signed by unknown authority": foreign, "it may speak TLS": {}, "remote error: tls|may not trust": trusting} {
		if err := read(files); !errors.Is(err, osdmap.ErrAway) || !regexp.MustCompile(why).MatchString(err.Error()) {
			t.Errorf("%v does not say %q", err, why)
		}
	}
}

// TestForeign: Debian's etcd, older than ours, does as well.
func TestForeign(t *testing.T) {
	bin, err := exec.LookPath("etcd")
	if err != nil {
		testenv.Skip(t, "no etcd (Debian: etcd-server)")
	}
	at := testenv.Loopback()
	client, peer := "http://"+netip.AddrPortFrom(at, 2379).String(), "http://"+netip.AddrPortFrom(at, 2380).String()
	cmd := exec.CommandContext(t.Context(), bin, "--name=x", "--data-dir="+t.TempDir(), "--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=x="+peer)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test has killed it
	suite(t, func(prefix string) *etcd.Store {
		return dial(t, etcd.Config{Endpoints: []string{netip.AddrPortFrom(at, 2379).String()}, Prefix: prefix})
	})
}
