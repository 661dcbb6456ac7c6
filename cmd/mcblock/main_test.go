package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/embedded"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
	"github.com/mcrdma/mcrdma/tests/osdmaptest"
)

// call runs a command line that ends by itself.
func call(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs testenv.SyncBuffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code = run(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestUsage: errors of command lines are reported, with exit code 2.
func TestUsage(t *testing.T) {
	t.Setenv(configEnv, "/no/such.yaml")
	for _, c := range []struct{ args, want string }{
		{"walk", `no subcommand "walk"; the subcommands are: `},
		{"serve x", `unexpected argument "x"`},
		{"serve --log-level loud", `--log-level "loud": want debug`},
		{"init", "0 arguments: name the directory that cmd-daemon init has made"},
		{"init x --reference", `unexpected argument "x"`},
		{"volume", ""},
		{"volume create", "0 arguments: name one volume"},
		{"volume create v", "a size is needed: --size 10G"},
		{"volume create v --size 0", "--size 0: a volume has at least one block, of 4096 bytes"},
		{"volume create v --size 8E", "out of range: a number of bytes is below 8E"},
		{"volume create v --size 1G --hosts h1,h2,h1", `--hosts: "h1" is there twice`},
		{"volume create v --size 1G --hosts h1,,h3", `--hosts "h1,,h3": a name is empty`},
		{"volume list --timeout 5", "--timeout 5: the unit is missing: 5s, for seconds, or 5ms"},
		{"bench --runtime x", `--runtime "x" is not a time, such as 5s`},
		{"volume create v --size 10X", "--size"},
		{"volume create v --size 10G --timeout 0s", "--timeout 0s"},
		{"volume create v --size 10G --allow=", "no client is named"},
		{"volume create v --size 10G --hosts=", "no host is named"},
		{"volume create v --size 10G --min-size 0", "want 1 or more"},
		{"volume delete v", "confirm with --yes"},
		{"volume replace v h1", "2 arguments: name a volume, the lost host and the new host"},
		{"volume promote v", "1 argument: name a volume and a host"},
		{"volume lost v", "1 argument: name a volume and a host"},
		{"volume min-size v -1", "-1: no number here is negative"},
		{"volume min-size v x", `"x": want a number of copies`},
		{"volume scrub", "0 arguments: name one volume"},
		{"volume list -o yaml", "formats are text or json"},
		{"etcd replace h3", "1 argument: name the lost member and the new one"},
		{"etcd replace h3 h4", `"h4": want NAME=HOST:PORT`},
		{"etcd add h4=x", `"h4=x": want NAME=HOST:PORT`},
	} {
		code, stdout, stderr := call(t, strings.Fields(c.args)...)
		if c.want == "" {
			if code != cli.ExitOK || !strings.Contains(stdout, "Available Commands") {
				t.Errorf("%s: %d, %s%s", c.args, code, stdout, stderr)
			}
		} else if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d, %s, %s; want %q", c.args, code, stdout, stderr, c.want)
		}
	}
	if code, _, stderr := call(t, "status"); code != cli.ExitFailure || !strings.Contains(stderr, "/no/such.yaml") {
		t.Errorf("%d, %s", code, stderr)
	}
}

// TestInit: the files of init can be loaded, match the daemon's lab, and are not overwritten.
func TestInit(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"a", "b", "c", "d"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("name: %s\naddress: 127.1.0.%d\nsocket: daemon.sock\nstate: daemon.db\ntls: {cert: host.crt, key: host.key, ca: ca.crt}\n", name, i+1)
		if err := os.WriteFile(filepath.Join(dir, name, "daemon.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := call(t, "init", dir)
	if code != cli.ExitOK || strings.Count(stdout, "made ") != 4 {
		t.Fatalf("%d, %s%s", code, stdout, stderr)
	}
	c, err := loadConfig(filepath.Join(dir, "d", configuration))
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, "d", name) }
	if c.Name != "d" || c.ID != 4 || c.Member() != nil || len(c.EtcdClients()) != 3 || c.Data != at("data") || c.Socket != at("daemon.sock") || c.TLS.Key != at("host.key") {
		t.Errorf("%+v", c)
	}
	for args, want := range map[string]string{dir: "nothing is overwritten", t.TempDir(): "cmd-daemon init"} {
		if code, _, stderr := call(t, "init", args); code != cli.ExitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%d, %s; want %q", code, stderr, want)
		}
	}
	if err := os.Remove(filepath.Join(dir, "b", configuration)); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := call(t, "init", dir); code != cli.ExitOK || stdout != "made "+filepath.Join(dir, "b", configuration)+"\n" {
		t.Errorf("one is missing: %d, %s%s", code, stdout, stderr)
	}
	added, err := loadConfig(filepath.Join(dir, "b", configuration))
	if err != nil || added.ID != 5 || !slices.Equal(added.Etcd.Members, c.Etcd.Members) { // 2 may have been another host's
		t.Errorf("%+v, %v", added, err)
	}
	if code, stdout, _ := call(t, "init", "--reference"); code != cli.ExitOK || !strings.Contains(stdout, "min") && !strings.Contains(stdout, "etcd:") {
		t.Errorf("%d, %s", code, stdout)
	}
}

// records starts etcd with n members, records hosts, and writes the configuration of the first.
func records(t *testing.T, n, hosts int) (m *osdmap.Manager, config string, members []*embedded.Member) {
	t.Helper()
	peers, text, first := map[string]string{}, "name: h1\nid: 1\naddress: 127.0.0.1\netcd:\n  members:\n", ""
	var at []netip.Addr
	for i := range n {
		at = append(at, testenv.Loopback())
		peers[fmt.Sprintf("h%d", i+1)] = netip.AddrPortFrom(at[i], 2380).String()
		text += fmt.Sprintf("    - {name: h%d, address: %v}\n", i+1, at[i])
	}
	for i := range n {
		name := fmt.Sprintf("h%d", i+1)
		x, err := embedded.Start(embedded.Config{Name: name, Dir: filepath.Join(t.TempDir(), name), Client: netip.AddrPortFrom(at[i], 2379).String(),
			Members: peers, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.Close)
		members = append(members, x)
	}
	first = netip.AddrPortFrom(at[0], 2379).String()
	kv, err := etcd.Dial(etcd.Config{Endpoints: []string{first}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kv.Close() })
	m = osdmap.New(kv, osdmap.Options{Timeout: time.Minute})
	for i := range hosts {
		if err := m.PutHost(t.Context(), osdmaptest.Host(core.ID(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	config = filepath.Join(t.TempDir(), configuration)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return m, config, members
}

// TestVolumes: a volume is created, shown and deleted.
func TestVolumes(t *testing.T) {
	m, config, _ := records(t, 1, 4)
	t.Setenv(configEnv, config)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"volume list", 0, "VOLUME  BYTES  EPOCH  PRIMARY  ACTING  HOSTS  MIN_SIZE"},
		{"volume create vol --size 10G", 2, "there are 4 hosts: choose with --hosts from h1, h2, h3, h4"},
		{"volume create vol --size 10G --hosts h1,h9", 2, `there is no host "h9"; there are h1, h2, h3 and h4: a host is known when`},
		{"volume create vol --size 10G --hosts h1,h1", 2, "there twice"},
		{"volume create vol --size 1000 --hosts h1", 2, "a multiple of 4096"},
		{"volume create a/b --size 10G --hosts h1", 2, "name of the volume"},
		{"volume create vol --size 10G --hosts h1,h2 --min-size 3", 2, "min_size 3"},
		{"volume create vol --size 10G --hosts h1,h2 --block-size 1000", 2, "power of two"},
		{"volume create vol --size 10G --hosts h1,h3,h4", 0, "epoch 1, min_size 2"}, // and the line about hosts that do not answer, which depends on the network
		{"volume create vol --size 1G --hosts h1", 1, "exists already"},
		{"volume show vol", 0, "h3    acting"},
		{"volume show wal", 1, `there is no volume "wal"; the volumes are: vol`},
		{"volume delete wal --yes", 1, `there is no volume "wal"`},
		{"status", 0, "10.1.0.14:10809"},
		{"etcd members", 0, "leader"},
	} {
		code, stdout, stderr := call(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) || (code == 0) != (stderr == "" || c.code == 0 && strings.HasPrefix(c.args, "volume create")) {
			t.Errorf("%s: %d, %s, %s; want %d, %q", c.args, code, stdout, stderr, c.code, c.want)
		}
	}
	s, err := m.Read(t.Context())
	if err != nil || len(s.Volumes) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	v := s.Volumes[0]
	if _, err := m.Propose(t.Context(), v.Volume.ID, osdmaptest.Next(v.Map, 3, 3, 4)); err != nil {
		t.Fatal(err)
	}
	var got []volumeView
	code, stdout, stderr := call(t, "volume", "list", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || len(got) != 1 {
		t.Fatalf("%d, %s%s, %v", code, stdout, stderr, err)
	}
	if g := got[0]; g.Name != "vol" || g.Size != 10<<30 || g.Primary != "h3" || strings.Join(g.Acting, ",") != "h3,h4" || strings.Join(g.Hosts, ",") != "h1,h3,h4" ||
		g.Epoch != 2 || g.ID != fmt.Sprintf("%016x", v.Volume.ID) {
		t.Errorf("%+v", g)
	}
	if _, stdout, _ := call(t, "volume", "show", "vol"); !strings.Contains(stdout, "h1    not acting") || !strings.Contains(stdout, "h3    primary ") {
		t.Error(stdout)
	}
	if code, stdout, stderr := call(t, "volume", "delete", "vol", "--yes"); code != 0 || stdout != "deleted vol\n" {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
	if _, stdout, _ := call(t, "volume", "list", "-o", "json"); strings.TrimSpace(stdout) != "[]" {
		t.Error(stdout)
	}
}

// TestSilent: "create" prints which of its hosts do not answer, and that the volume waits for them.
func TestSilent(t *testing.T) {
	v := osdmaptest.Volume(7, "vol")
	s := osdmap.State{Hosts: []osdmap.Host{osdmaptest.Host(1), osdmaptest.Host(2), osdmaptest.Host(3)}}
	down := told{err: failure.Plain(status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 10.1.0.13:9570: connect: connection refused"`))}
	old := told{err: status.Error(codes.Unimplemented, "unknown service")} // it answers
	const h3 = "h3 has no copy yet: its mcblock does not answer at 10.1.0.13:9570 (connection refused): start it\n"
	for i, c := range []struct {
		hosts map[core.ID]told
		want  string
	}{
		{map[core.ID]told{1: {}, 2: old, 3: {}}, ""},
		{map[core.ID]told{1: {}, 2: {}, 3: down}, h3},
		{map[core.ID]told{1: {}, 2: {err: status.FromContextError(context.DeadlineExceeded).Err()}, 3: down}, h3 + "the volume waits until 2 of its hosts are there\n"},
	} {
		var out strings.Builder
		if silent(&out, &s, v, 2, c.hosts); !strings.HasSuffix(out.String(), c.want) || (c.want == "") != (out.Len() == 0) {
			t.Errorf("%d: %s; want %s", i, &out, c.want)
		}
	}
}

// TestFits: a volume that a host cannot hold is not created; one larger than a disk only if the user insists.
func TestFits(t *testing.T) {
	v := osdmaptest.Volume(7, "vol")
	s := osdmap.State{Hosts: []osdmap.Host{osdmaptest.Host(1), osdmaptest.Host(2), osdmaptest.Host(3)}}
	size := uint64(v.Size)
	host := func(longest, disk uint64) told {
		return told{GetHostResponse: &replicav1.GetHostResponse{LargestBytes: longest, DataBytes: disk, FreeBytes: disk}}
	}
	left := func(free uint64) told {
		return told{GetHostResponse: &replicav1.GetHostResponse{DataBytes: 40 * size, FreeBytes: free}}
	}
	for i, c := range []struct {
		h3   told
		over bool
		want string
	}{
		{told{err: errors.New("away")}, false, ""},
		{host(0, 0), false, ""}, // it is older, or does not know
		{host(size, size), false, ""},
		{host(size-1, size), true, "no file on h3, where the copy would be, can have more than 1073741823 bytes"},
		{host(size, size-1), false, "the disk of h3 has 1073741823 bytes in all"},
		{host(size, size-1), true, ""},
		{left(size - 1), false, "the disk of h3 is full, or will be at any moment"},
		{left(0), false, "the disk of h3 is full, or will be at any moment"},
		{left(0), true, ""},
		{left(size), false, ""}, // that is as much as it needs
		{left(2*size - 1), false, ""},
		{told{GetHostResponse: &replicav1.GetHostResponse{DataBytes: 4 * size, FreeBytes: size / 2}}, false, ""}, // not full
	} {
		o := createOptions{overcommit: c.over}
		err := o.fits(&s, v, map[core.ID]told{1: host(size, size), 3: c.h3})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d: %v; want %q", i, err, c.want)
		}
	}
}

// TestNoMajority: without a majority of etcd, status fails, and still shows which members are down.
func TestNoMajority(t *testing.T) {
	_, config, members := records(t, 3, 1)
	for _, m := range members {
		<-m.Ready() // all have published their names
	}
	members[1].Close()
	members[2].Close()
	plain := func(command string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if raw := regexp.MustCompile(`rpc error|desc =|context |etcdserver`).FindString(text); raw != "" {
				t.Errorf("%s: %q in %s", command, raw, text)
			}
		}
	}
	defer func() {
		for _, command := range []string{"status", "doctor", "volume list", "volume show vol", "volume create vol --size 1G", "etcd members", "etcd add h4=127.0.0.1:1", "bench"} {
			code, stdout, stderr := call(t, append(strings.Fields(command), "--config", config, "--timeout", "300ms")...)
			if plain(command, stdout, stderr); code != cli.ExitFailure || !strings.Contains(stdout+stderr, "start") {
				t.Errorf("%s: %d, %s%s", command, code, stdout, stderr)
			}
		}
	}()
	for late := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // the leader notices after an election timeout
		if _, stdout, _ := call(t, "etcd", "members", "--config", config); strings.Contains(stdout, "it has no leader") {
			break
		} else if time.Now().After(late) {
			t.Fatal(stdout)
		}
	}
	code, stdout, stderr := call(t, "status", "--config", config, "--timeout", "3s")
	plain("status", stdout, stderr)
	for _, command := range []string{"doctor", "volume list", "volume create vol --size 1G"} {
		_, stdout, stderr := call(t, append(strings.Fields(command), "--config", config, "--timeout", "300ms")...)
		plain(command, stdout, stderr)
	}
	if code != cli.ExitFailure || strings.Count(stdout, "refused") != 2 || !strings.Contains(stderr, "volumes go on with their current maps") {
		t.Errorf("%d, %s, %s", code, stdout, stderr)
	}
	members[0].Close()
	if code, stdout, stderr := call(t, "status", "--config", config, "--timeout", "1s"); code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, "no member of etcd answers") {
		t.Errorf("%d, %s, %s", code, stdout, stderr)
	}
}

// TestReplaceMember: the command prints the lines for the configurations.
func TestReplaceMember(t *testing.T) {
	_, config, members := records(t, 3, 1)
	for _, m := range members {
		<-m.Ready()
	}
	at := netip.AddrPortFrom(testenv.Loopback(), 2380).String()
	if code, _, stderr := call(t, "etcd", "replace", "h3", "h4="+at, "--config", config); code != cli.ExitFailure || !strings.Contains(stderr, `"h3"`) || !strings.Contains(stderr, "answers") {
		t.Errorf("%d, %s", code, stderr)
	}
	members[2].Close()
	code, stdout, stderr := call(t, "etcd", "replace", "h3", "h4="+at, "--config", config)
	if code != cli.ExitOK || !strings.Contains(stdout, "join: true") || !strings.Contains(stdout, `{name: h4, address: `+strings.TrimSuffix(at, ":2380")) || strings.Contains(stdout, "name: h3") {
		t.Errorf("%d, %s, %s", code, stdout, stderr)
	}
}
