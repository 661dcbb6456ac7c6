package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
	"github.com/mcrdma/mcrdma/tests/osdmaptest"
)

// well returns the facts of three hosts with a volume, without findings.
func well() *facts {
	v := osdmaptest.Volume(7, "vol")
	f := &facts{now: time.Unix(1e9, 0), self: "h1", number: 1, hosts: map[core.ID]told{}}
	f.state.Volumes = []osdmap.VolumeState{{Volume: v, Map: osdmaptest.Next(osdmap.FirstMap(v, 2), 1, 1, 2, 3)}}
	for id := core.ID(1); id <= 3; id++ {
		f.members = append(f.members, etcd.Member{Name: fmt.Sprint("h", id)})
		f.state.Hosts = append(f.state.Hosts, osdmaptest.Host(id))
		f.hosts[id] = told{GetHostResponse: &replicav1.GetHostResponse{DataBytes: 100, FreeBytes: 50, CertificateUntil: timestamppb.New(f.now.Add(365 * 24 * time.Hour)),
			Volumes: []*replicav1.VolumeStatus{{Volume: 7, State: "replica", Head: 100}}}}
	}
	p := f.hosts[1].Volumes[0]
	p.State, p.Leased = "active", true
	return f
}

// TestDiagnose: each fault is found, with its severity and what to do, and nothing else; without
// faults there are no findings.
func TestDiagnose(t *testing.T) {
	part := func(f *facts, id core.ID) *replicav1.VolumeStatus { return f.hosts[id].Volumes[0] }
	away := func(f *facts, ids ...core.ID) {
		for _, id := range ids {
			f.hosts[id] = told{err: errors.New("connection refused")}
		}
	}
	acting := func(f *facts, ids ...core.ID) {
		f.state.Volumes[0].Map = osdmaptest.Next(f.state.Volumes[0].Map, ids[0], ids...)
	}
	for _, c := range []struct {
		name string
		do   func(f *facts)
		want []string
	}{
		{"nothing", func(*facts) {}, nil},
		{"daemon", func(f *facts) { f.daemon = errors.New("no such socket") }, []string{"error daemon: this host's cmd-daemon does not answer"}},
		{"another host's daemon", func(f *facts) { f.hosts[2].Daemon = "no such socket" }, []string{"error host h2: its cmd-daemon does not answer"}},
		{"certificate", func(f *facts) { f.certificate, f.secret = errors.New("expired"), errors.New("mode 0644") },
			[]string{"error certificate: other hosts", "warning certificate: its key is not secret"}},
		{"one of etcd", func(f *facts) { f.members[2].Err = errors.New("refused") }, []string{"warning etcd: 1 member down: h3; it works with 2 of 3"}},
		{"one of etcd has not started", func(f *facts) {
			f.members[2].Name, f.members[2].Peer, f.members[2].Err = "", "10.1.0.14:2380", errors.New("it has not started yet")
		}, []string{"warning etcd: 1 member down: 10.1.0.14:2380; it works with 2 of 3"}},
		{"one of etcd is full", func(f *facts) { f.members[2].Version, f.members[2].Err = "3.7.3", errors.New("NOSPACE") }, []string{"warning etcd: h3 answers that something is wrong"}},
		{"etcd's majority", func(f *facts) {
			f.members[1].Err, f.members[2].Err, f.away, f.state = errors.New("refused"), errors.New("refused"), osdmap.ErrAway, osdmap.State{}
			f.members[0].Version, f.members[0].Err = "3.7.3", errors.New("etcdserver: no leader")
		}, []string{"error etcd: it has no majority: 1 of 3 members answer, and 2 must"}},
		{"etcd wants a user", func(f *facts) { f.away, f.state = osdmap.ErrAway, osdmap.State{} }, []string{"error etcd: it serves nothing, though 3 of 3 members answer"}},
		{"a volume without a record", func(f *facts) { f.state.Volumes = nil; f.hosts[2].Volumes, f.hosts[3].Volumes = nil, nil },
			[]string{"error host h1: it has a copy of volume 0000000000000007, of which etcd has no record"}},
		{"a host that was replaced", func(f *facts) { f.state.Hosts = append(f.state.Hosts, osdmaptest.Host(4)); away(f, 4) }, []string{"note host h4: its mcblock does not answer"}},
		{"a host of a volume whose record is damaged", func(f *facts) {
			f.state.Hosts, f.state.Faults = append(f.state.Hosts, osdmaptest.Host(4)), []error{errors.New("damaged")}
			away(f, 4)
		}, []string{"error etcd: a record cannot be used", "error host h4: its mcblock does not answer"}},
		{"a host of etcd alone", func(f *facts) {
			f.members, f.state.Hosts = append(f.members, etcd.Member{Name: "h4"}), append(f.state.Hosts, osdmaptest.Host(4))
			away(f, 4)
		}, []string{"error host h4: its mcblock does not answer"}},
		{"an older map", func(f *facts) { part(f, 3).Epoch = 9; part(f, 1).Leased = false }, []string{"error volume vol: etcd has an older map of it than its hosts"}},
		{"a volume just deleted", func(f *facts) { f.state.Volumes, f.state.Deleted = nil, []uint64{7} }, nil},
		{"all of etcd", func(f *facts) { f.members, f.noMember, f.state = nil, errors.New("refused"), osdmap.State{} }, []string{"error etcd: no member answers"}},
		{"etcd is slow", func(f *facts) { f.took = 2 * time.Second }, []string{"warning etcd: it is slow: an answer takes 2.0 s"}},
		{"a record", func(f *facts) { f.state.Faults = []error{osdmap.ErrFormat} }, []string{"error etcd: a record cannot be used"}},
		{"members as configured", func(f *facts) { f.configured = []string{"h1 at a:1", "h2 at ", "h3 at "}; f.members[0].Peer = "a:1" }, nil},
		{"another member", func(f *facts) { f.configured = []string{"h1 at ", "h2 at ", "h4 at "} }, []string{"warning etcd: this host's configuration has other members than etcd"}},
		{"never run", func(f *facts) { f.self, f.number = "h9", 9 }, []string{"error host h9: no volume can have a copy here"}},
		{"another's number", func(f *facts) { f.number = 2 }, []string{"error host h1: its name and number are not"}},
		{"a number of another name", func(f *facts) { f.self = "h9" }, []string{"error host h9: its name and number are not"}},
		{"disk", func(f *facts) { f.hosts[2].FreeBytes = 10; f.hosts[3].FreeBytes = 1 },
			[]string{"error host h3: its disk is full", "warning host h2: its disk is nearly full"}},
		{"a CA that was replaced", func(f *facts) { f.hosts[2].OldCa = true }, []string{"warning host h2: its file of the CA was changed after its mcblock began"}},
		{"certificates", func(f *facts) {
			f.hosts[2].CertificateUntil = timestamppb.New(f.now.Add(24 * time.Hour))
			f.hosts[3].CertificateUntil = timestamppb.New(f.now.Add(-time.Hour))
		}, []string{"error host h3: its certificate", "warning host h2: its certificate"}},
		{"etcd from one host", func(f *facts) { f.hosts[2].Away = "timeout" }, []string{"error host h2: etcd does not answer it"}},
		{"broken", func(f *facts) {
			f.hosts[3].Broken = []*replicav1.BrokenVolume{{Volume: 7, Error: "log"}}
			part(f, 3).State, part(f, 3).Failure = "stray", "log"
			acting(f, 1, 2)
		}, []string{"error host h3: it cannot open its copy of volume vol", "error volume vol: it is degraded: h3 has no copy"}},
		{"a copy of no use", func(f *facts) {
			f.hosts[3].Broken = []*replicav1.BrokenVolume{{Volume: 7, Error: "it came with a disk"}}
			f.hosts[3].Volumes = nil
			f.state.Volumes[0].Volume.Hosts = []core.ID{1, 2}
			acting(f, 1, 2)
		}, []string{"error host h3: it has a copy of volume vol, in which it has no place"}},
		{"broken, and needed", func(f *facts) {
			f.hosts[3].Broken = []*replicav1.BrokenVolume{{Volume: 7, Error: "log"}}
			part(f, 3).State, part(f, 3).Failure = "stray", "log"
			away(f, 2)
			part(f, 1).Leased = false
		}, []string{"error host h2: its", "error host h3: it cannot open", "error volume vol: it waits: 1 of its acting hosts answer, and min_size is 2"}},
		{"a host away", func(f *facts) { away(f, 3); acting(f, 1, 2) }, []string{"error host h3: its mcblock does not answer", "error volume vol: it is degraded: h3 has no copy"}},
		{"min_size", func(f *facts) { away(f, 2, 3); part(f, 1).Leased = false },
			[]string{"error host h2: its", "error host h3: its", "error volume vol: it waits: 1 of its acting hosts answer, and min_size is 2"}},
		{"the primary", func(f *facts) { away(f, 1) }, []string{"error host h1: its", "error volume vol: it is not served"}},
		{"all have restarted, and one is not back", func(f *facts) {
			away(f, 3)
			part(f, 1).State, part(f, 2).State, part(f, 1).Leased = "stray", "stray", false
		}, []string{"error host h3: its", "error volume vol: it waits for h3"}},
		{"all have restarted, and have not opened all copies", func(f *facts) {
			f.hosts[2].Volumes, f.hosts[3].Volumes = nil, nil
			part(f, 1).State, part(f, 1).Leased = "stray", false
		}, []string{"warning volume vol: it is not served yet: h2 and h3 have not opened it yet"}},
		{"all have restarted, and two have new copies", func(f *facts) {
			for id := core.ID(1); id <= 3; id++ {
				part(f, id).State, part(f, id).Leased = "stray", false
			}
			part(f, 2).Waits = "copies are new: h1, h3"
		}, []string{"error volume vol: it waits for copies that acting hosts no longer have"}},
		{"a host has not opened its copy", func(f *facts) { f.hosts[3].Volumes = nil; acting(f, 1, 2) },
			[]string{"warning volume vol: it is degraded: h3 has not opened its copy yet"}},
		{"no primary yet", func(f *facts) {
			f.state.Volumes[0].Map = osdmap.FirstMap(f.state.Volumes[0].Volume, 2)
			part(f, 1).Leased, part(f, 1).State = false, "stray"
		}, []string{"warning volume vol: it is not served yet"}},
		{"failed", func(f *facts) { part(f, 3).Failure = "input/output error"; acting(f, 1, 2) }, []string{"error volume vol: the copy on h3 has ended"}},
		{"backfill", func(f *facts) { part(f, 3).Backfilling, part(f, 3).CopiedBytes = true, 1<<29; acting(f, 1, 2) }, []string{"warning volume vol: it is degraded, and is copied to h3: 50 %"}},
		{"a request", func(f *facts) {
			part(f, 2).OldestRequest, part(f, 3).OldestRequest = durationpb.New(5*time.Second), durationpb.New(12*time.Second)
			part(f, 1).Waits = "the ring is full: h3"
		}, []string{"error volume vol: a request of a client of h3 has waited for 12s"}},
		{"a request for a moment", func(f *facts) { part(f, 2).OldestRequest = durationpb.New(2500 * time.Millisecond) }, nil},
		{"recovery", func(f *facts) { part(f, 3).Head = 60; acting(f, 1, 2) }, []string{"warning volume vol: it is degraded: h3 is being brought up to date, 40 writes behind"}},
	} {
		f := well()
		c.do(f)
		got := diagnose(f)
		ok := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			ok = ok && strings.HasPrefix(fmt.Sprintf("%v %s: %s", got[i].Severity, got[i].Subject, got[i].What), c.want[i])
		}
		if !ok || slices.ContainsFunc(got, func(x findings.Finding) bool { return x.Do == "" || x.Why == "" }) {
			t.Errorf("%s: %+v; want %q", c.name, got, c.want)
		}
	}
}

// TestDoctor: with hosts that serve, the only finding is that no daemon answers at the configured
// socket; a stopped host is named, and the volume that lacks it; the exit code is 1.
func TestDoctor(t *testing.T) {
	r := newRig(t, 2)
	r.must("volume create vol --size 16M --min-size 1")
	type finding struct{ Severity, Subject, What string }
	type view struct{ Findings []finding }
	look := func() (v view) {
		code, out, errs := call(t, "doctor", "-o", "json")
		if err := json.Unmarshal([]byte(out), &v); err != nil || code != 1 {
			t.Fatalf("%d, %s%s, %v", code, out, errs, err)
		}
		v.Findings = slices.DeleteFunc(v.Findings, func(x finding) bool { return strings.HasPrefix(x.What, "its disk is") }) // of this machine
		return v
	}
	r.until("only the daemon is missing", func() error {
		if v := look(); len(v.Findings) != 1 || v.Findings[0].Subject != "daemon" {
			return fmt.Errorf("%+v", v)
		}
		return nil
	})
	r.until("status has both parts", func() error {
		if out := r.must("status"); !strings.Contains(out, "  replica ") || !strings.Contains(out, "  active ") {
			return errors.New(out)
		}
		return nil
	})
	var shown struct {
		Parts []map[string]any
	}
	if err := json.Unmarshal([]byte(r.must("volume show vol -o json")), &shown); err != nil || len(shown.Parts) != 2 || shown.Parts[0]["oldest_request_seconds"] != 0.0 {
		t.Errorf("%v, %v", shown, err)
	}
	r.hosts[1].stop()
	r.until("h2 is named", func() error {
		v := look()
		text := fmt.Sprint(v)
		if !strings.Contains(text, "{error host h2 its mcblock does not answer}") || !strings.Contains(text, "{error volume vol it is degraded: h2 has no copy that counts}") || len(v.Findings) != 3 {
			return errors.New(text)
		}
		return nil
	})
	if code, out, _ := call(t, "doctor"); code != 1 || !strings.Contains(out, "do:  see whether it runs and can be reached") || !strings.Contains(out, "; looked at this host, etcd, 2 hosts and 1 volume") {
		t.Errorf("%d, %s", code, out)
	}
}

// TestSlowEtcd: if connecting to etcd takes longer than an answer may take, the doctor waits longer,
// and says that etcd is slow.
func TestSlowEtcd(t *testing.T) {
	r := newRig(t, 1)
	at := r.hosts[0].cfg
	l, err := net.Listen("tcp", netip.AddrPortFrom(at.Etcd.Members[0].Address, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", at.Etcd.Members[0].Client)
			if err != nil {
				_ = from.Close()
				return
			}
			go late(from, to)
			go late(to, from)
		}
	}()
	path := filepath.Join(t.TempDir(), configuration)
	text := fmt.Sprintf("name: h1\nid: 1\naddress: %v\nnbd: %s\nsocket: none.sock\ntls: {cert: %s, key: %s, ca: %s}\netcd: {endpoints: [\"%v\"]}\n",
		at.Address, at.NBD, at.TLS.Cert, at.TLS.Key, at.TLS.CA, l.Addr())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, said := call(t, "volume", "list", "--timeout", "300ms", "--config", path); !strings.Contains(said, "if it is only slow (mcblock doctor): --timeout 1m") {
		t.Error(said)
	}
	code, out, errs := call(t, "doctor", "--timeout", "1s", "--config", path)
	if code != 1 || !strings.Contains(out, "it is slow: an answer takes 0.") || !strings.Contains(out, "1 host and 0 volumes") || strings.Contains(out, "no member answers") {
		t.Errorf("%d, %s%s", code, out, errs)
	}
}

// late passes bytes on, each after a delay.
func late(to, from net.Conn) {
	type piece struct {
		b  []byte
		at time.Time
	}
	queue := make(chan piece, 1000)
	go func() {
		for p := range queue {
			time.Sleep(time.Until(p.at))
			_, _ = to.Write(p.b)
		}
		_ = to.Close()
	}()
	for {
		b := make([]byte, 64<<10)
		n, err := from.Read(b)
		if err != nil {
			close(queue)
			return
		}
		queue <- piece{b[:n], time.Now().Add(300 * time.Millisecond)}
	}
}

// TestParts: the status of a copy that cannot be opened says why.
func TestParts(t *testing.T) {
	f := well()
	f.hosts[3].Volumes, f.hosts[3].Broken = nil, []*replicav1.BrokenVolume{{Volume: 7, Error: "the log is damaged"}}
	if list := parts(&f.state, f.hosts); len(list) != 3 || list[2].Error != "the log is damaged" || list[1].Error != "" {
		t.Errorf("%+v", list)
	}
}

// TestDiagnoseDo: what to do depends on who runs etcd, on whether a certificate is the reason, and on whether a host that has no
// copy runs.
func TestDiagnoseDo(t *testing.T) {
	expired := errors.New("tls: failed to verify certificate: x509: certificate has expired")
	const renew, replace = "renew or replace the certificate", "mcblock etcd replace"
	broken := func(f *facts) {
		f.hosts[3].Broken = []*replicav1.BrokenVolume{{Volume: 7, Error: "log"}}
		f.hosts[3].Volumes = nil
	}
	for _, c := range []struct {
		name, subject string
		do            func(f *facts)
		says, not     string // of what to do, or why
	}{
		{"own etcd", "etcd", func(f *facts) { f.members[2].Err = errors.New("refused") }, replace, renew},
		{"another's etcd", "etcd", func(f *facts) { f.configured, f.members[2].Err = nil, errors.New("refused") }, "start etcd there", replace},
		{"a member's certificate", "etcd", func(f *facts) { f.members[2].Err = expired }, renew, "start"},
		{"all members' certificates", "etcd", func(f *facts) { f.noMember, f.state = expired, osdmap.State{} }, renew, "start"},
		{"no member of another's etcd", "etcd", func(f *facts) { f.configured, f.noMember, f.state = nil, errors.New("refused"), osdmap.State{} }, "start etcd on", "mcblock"},
		{"a host's certificate", "host h3", func(f *facts) { f.hosts[3] = told{err: fmt.Errorf("host h3: %w", identity.ErrUntrusted)} }, renew, "whether it runs"},
		{"a copy that cannot be opened", "volume vol", func(f *facts) {
			broken(f)
			f.state.Volumes[0].Map = osdmaptest.Next(f.state.Volumes[0].Map, 1, 1, 2)
		}, "it cannot open its copy as for host h3", "start mcblock"},
		{"a copy that has ended", "volume vol", func(f *facts) { f.hosts[3].Volumes[0].Failure = "no space left on device" }, "make room on a full disk), and then on h3: systemctl restart mcblock", ""},
		{"one that is needed", "volume vol", func(f *facts) {
			broken(f)
			f.hosts[2].Volumes, f.hosts[1].Volumes[0].Leased = nil, false
		}, "do as for that host", ""},
	} {
		f := well()
		f.configured = []string{"h1 at ", "h2 at ", "h3 at "}
		c.do(f)
		all := diagnose(f)
		i := slices.IndexFunc(all, func(x findings.Finding) bool { return x.Subject == c.subject })
		if i < 0 {
			t.Errorf("%s: nothing is found of %s: %+v", c.name, c.subject, all)
			continue
		}
		if text := all[i].Why + " " + all[i].Do; !strings.Contains(text, c.says) || c.not != "" && strings.Contains(all[i].Do, c.not) {
			t.Errorf("%s: %q, want %q and not %q", c.name, text, c.says, c.not)
		}
	}
}
