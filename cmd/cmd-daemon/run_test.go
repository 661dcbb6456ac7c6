package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// A host is a daemon that a test runs.
type host struct {
	*started
	dir, socket, config string
}

// runHosts makes a lab and runs its daemons, with these flags.
func runHosts(t testing.TB, n int, flags ...string) (list []*host) {
	t.Helper()
	lab := makeLab(t, n)
	for i := range n {
		h := &host{dir: filepath.Join(lab, fmt.Sprintf("h%d", i+1))}
		h.socket, h.config = filepath.Join(h.dir, "daemon.sock"), filepath.Join(h.dir, "daemon.yaml")
		h.run(t, flags...)
		list = append(list, h)
	}
	return list
}

// run starts the daemon, perhaps again.
func (h *host) run(t testing.TB, flags ...string) {
	t.Helper()
	h.started = start(t, append([]string{"run", "--config", h.config, "--log-level", "warn"}, flags...)...)
	h.waitFor(t, "ready: daemon of host h")
}

// TestTwoHosts: a lab made by init works without changes, and all commands work with it.
func TestTwoHosts(t *testing.T) {
	hosts := runHosts(t, 2)
	receiver := start(t, "cmtime", "--serve", "--service", "bench", "--socket", hosts[1].socket)
	receiver.waitFor(t, "ready: host h2 receives for service bench")

	code, stdout, stderr := call("cmtime", "--service", "bench", "--receivers", "h2", "-n", "5", "--warm-up", "1", "--write", "5000", "--socket", hosts[0].socket)
	// Commands of more than a second show progress.
	stderr = regexp.MustCompile(`(?m)^\d of 6 groups\n`).ReplaceAllString(stderr, "")
	if code != cli.ExitOK || stderr != "" || !strings.HasPrefix(stdout, "5 groups of service bench, receivers h2; 5 groups by hosts\n\nPHASE ") {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = call("cmtime", "--service", "bench", "--receivers", "h2", "-n", "3", "--warm-up", "0", "--mode", "off", "--json", "--socket", hosts[0].socket)
	var r timingReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != cli.ExitOK || r.Groups != 3 || r.Paths["relay"] != 3 {
		t.Errorf("%d, %v, %s%s", code, err, stdout, stderr)
	}
	phases := map[string]phaseTimes{}
	for _, s := range r.Phases {
		phases[s.Phase] = s
	}
	for _, name := range []string{"prepare", "commit", "create", "close"} {
		if s := phases[name]; s.Times != 3 || s.Min <= 0 || s.Min > s.P50 || s.P50 > s.P99 || s.P99 > s.Max || s.Avg < s.Min || s.Avg > s.Max {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if phases["prepare"].Max > phases["create"].Max {
		t.Errorf("a part is longer than the whole: %+v", phases)
	}
	for args, want := range map[string]string{
		"--receivers h2 --service none":                    "none",
		"--receivers h7 --service bench":                   "h7",
		"--receivers h2 --service bench --mode require":    "no switch",
		"--receivers h2,h2 --service bench":                "h2",
		"--receivers h2 --service bench --timeout 1ns -n1": "deadline",
	} {
		code, stdout, stderr := call(append([]string{"cmtime", "--socket", hosts[0].socket}, strings.Fields(args)...)...)
		if code != cli.ExitFailure || stdout != "" || !strings.Contains(strings.ToLower(stderr), want) {
			t.Errorf("%s: %d, %s%s", args, code, stdout, stderr)
		}
	}

	if code, stdout, stderr := call("status", "--socket", hosts[0].socket); code != cli.ExitOK || !strings.Contains(stdout, "none: hosts relay") || !strings.Contains(stdout, "h2 ") {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := call("doctor", "--config", hosts[0].config); code != cli.ExitOK || strings.Contains(stdout, "ERROR") {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
	// The receiver has the device.
	if code, stdout, _ := call("doctor", "--config", hosts[1].config); code != cli.ExitOK || !strings.Contains(stdout, "is in use") {
		t.Errorf("%d, %s", code, stdout)
	}
	if code := receiver.stop(t); code != cli.ExitOK || !strings.Contains(receiver.out.String(), "groups\n") {
		t.Errorf("%d, %s%s", code, receiver.out.String(), receiver.errs.String())
	}
	if code := hosts[1].stop(t); code != cli.ExitOK {
		t.Errorf("%d, %s", code, hosts[1].errs.String())
	}
	code, stdout, stderr = call("doctor", "--no-device", "--config", hosts[0].config)
	if code != cli.ExitFailure || !strings.Contains(stdout, "ERROR    daemon of host h2: cannot be reached") || !strings.Contains(stderr, "not all is well") {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
}

// couple creates a group of host 0 with a member on host 1, through the daemons.
func couple(t *testing.T, hosts []*host) (*mcrdma.Group, *mcrdma.Member) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := func(h *host) *mcrdma.Client {
		c, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: h.socket})
		must(t, err)
		t.Cleanup(func() { _ = c.Close() }) // its groups may have ended
		return c
	}
	from, to := dial(hosts[0]), dial(hosts[1])
	l, err := to.Listen(ctx, mcrdma.ListenConfig{Service: "s", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) { return &mcrdma.Grant{}, nil }})
	must(t, err)
	g, err := from.Create(ctx, mcrdma.GroupConfig{Service: "s", Receivers: []string{"h2"}})
	must(t, err)
	m, err := l.Accept(ctx)
	must(t, err)
	return g, m
}

// ended waits for the end of a group or membership, and returns why.
func ended(t *testing.T, events <-chan mcrdma.Event, err func() error) error {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return err()
			}
		case <-late:
			t.Fatal("it does not end")
		}
	}
}

// TestOnStop: a daemon that ends leaves groups alone, and the next one has them; with --on-stop
// close it ends them everywhere, as the sender's and as a receiver's.
func TestOnStop(t *testing.T) {
	hosts := runHosts(t, 2, "--on-stop", "close")
	g, m := couple(t, hosts)
	if code := hosts[0].stop(t); code != cli.ExitOK {
		t.Errorf("%d, %s", code, hosts[0].errs.String())
	}
	if err := ended(t, m.Events(), m.Err); !errors.Is(err, mcrdma.ErrSenderLost) {
		t.Errorf("the member: %v", err)
	}
	if err := ended(t, g.Events(), g.Err); err == nil {
		t.Error("the sender's group is fine")
	}

	hosts = runHosts(t, 2, "--on-stop", "close")
	g, m = couple(t, hosts)
	if code := hosts[1].stop(t); code != cli.ExitOK {
		t.Errorf("%d, %s", code, hosts[1].errs.String())
	}
	if err := ended(t, m.Events(), m.Err); !errors.Is(err, mcrdma.ErrRemoved) {
		t.Errorf("the member: %v", err)
	}
	if err := ended(t, g.Events(), g.Err); !errors.Is(err, mcrdma.ErrMinSize) {
		t.Errorf("the sender's group: %v", err)
	}

	hosts = runHosts(t, 2)
	g, m = couple(t, hosts)
	if code := hosts[0].stop(t); code != cli.ExitOK {
		t.Errorf("%d, %s", code, hosts[0].errs.String())
	}
	hosts[0].run(t)
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // the library connects again by itself
		_, stdout, _ := call("groups", "--socket", hosts[0].socket)
		_, there, _ := call("members", "--socket", hosts[1].socket)
		if strings.Contains(stdout, g.Info().ID.String()) && strings.Contains(there, g.Info().ID.String()) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the group is gone: %s%s", stdout, there)
		}
	}
	_, stdout, _ := call("group", "show", g.Info().ID.String(), "--socket", hosts[0].socket)
	if !strings.Contains(stdout, "path      relay") || !strings.Contains(stdout, "h2") {
		t.Error(stdout)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := g.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := ended(t, m.Events(), m.Err); !errors.Is(err, mcrdma.ErrClosed) {
		t.Errorf("the member: %v", err)
	}
}

// TestHealth: metrics and health are served, and readiness is that of the daemon.
func TestHealth(t *testing.T) {
	lab := makeLab(t, 1)
	h := &host{dir: filepath.Join(lab, "h1")}
	h.config = filepath.Join(h.dir, "daemon.yaml")
	at := free(t)
	edit(t, h.config, func(s string) string { return "metrics: " + at + "\n" + s })
	h.run(t)
	get := func(path string) (int, string) {
		t.Helper()
		client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Get("http://" + at + path)
		must(t, err)
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		must(t, err)
		return r.StatusCode, string(b)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n", "/metrics": "mcrdma_daemon_groups 0\n"} {
		if code, body := get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %s", path, code, body)
		}
	}
	if code, _ := get("/"); code != http.StatusNotFound {
		t.Errorf("/: %d", code)
	}
	if code, _, stderr := call("run", "--config", h.config); code != cli.ExitFailure || stderr == "" {
		t.Errorf("a second daemon: %d, %s", code, stderr)
	}
	socket := filepath.Join(h.dir, "daemon.sock")
	must(t, os.RemoveAll(socket))
	must(t, os.Mkdir(socket, 0o700))
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, socket+" is there and is not a socket") {
		t.Errorf("without its socket: %d, %s", code, body)
	}
	must(t, os.Remove(socket))
	if code, body := get("/readyz"); code != http.StatusOK || body != "ready\n" {
		t.Errorf("with a place for its socket: %d, %s", code, body)
	}
	if code, _, stderr := call("status", "--socket", socket); code != cli.ExitOK {
		t.Errorf("by the new socket: %d, %s", code, stderr)
	}
	h.stop(t)
}

// TestSignals: the service manager is notified; SIGTERM and SIGINT end the daemon
// cleanly.
func TestSignals(t *testing.T) {
	lab := makeLab(t, 1)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		name := filepath.Join(t.TempDir(), "notify")
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		must(t, err)
		p := startProcess(t, []string{"NOTIFY_SOCKET=" + name}, "run", "-c", filepath.Join(lab, "h1", "daemon.yaml"), "--json-logs")
		if !strings.HasPrefix(p.ready, "ready: daemon of host h1 at 127.") {
			t.Fatalf("%q, %s", p.ready, p.stderr)
		}
		told := func() string {
			b := make([]byte, 100)
			must(t, l.SetReadDeadline(time.Now().Add(patience)))
			n, err := l.Read(b)
			must(t, err)
			return string(b[:n])
		}
		if s := told(); s != "READY=1" {
			t.Errorf("told %q", s)
		}
		must(t, p.Process.Signal(sig))
		if err := p.Wait(); err != nil {
			t.Errorf("%v: %v: %s", sig, err, p.stderr)
		}
		if s := told(); s != "STOPPING=1" {
			t.Errorf("told %q", s)
		}
		must(t, l.Close())
		for line := range strings.Lines(p.stderr.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
		}
		if _, err := os.Stat(filepath.Join(lab, "h1", "daemon.sock")); !os.IsNotExist(err) {
			t.Errorf("the socket is still there: %v", err)
		}
	}
}

// TestRunErrors: errors that prevent a start of the daemon.
func TestRunErrors(t *testing.T) {
	lab := makeLab(t, 1)
	config := filepath.Join(lab, "h1", "daemon.yaml")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer busy.Close()
	file := filepath.Join(lab, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	good, err := os.ReadFile(config)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(lab, "h1", "sw.yaml"), []byte(`name: sw1
address: 10.255.0.1
mac: "02:00:00:00:00:01"
state: sw.db
routing: {source: kernel}
ports: [{port: 1}]
listen: `+busy.Addr().String()+"\n"), 0o600))
	for with, want := range map[string]string{
		"direct: sw.yaml\ntls: {}":           "agent of switch sw1: ",
		"listen: " + busy.Addr().String():    "address already in use",
		"metrics: " + busy.Addr().String():   "another program listens there (ss -ltnp says which); end it, or choose another address for metrics",
		"socket: " + file + "/daemon.sock":   "socket: ",
		"state: " + file + "/daemon.db":      "state: ",
		"device: ibverbs:mlx5_0\nrack: what": "rack: \"what\"",
	} {
		var kept []string
		for line := range strings.Lines(string(good)) {
			if key, _, _ := strings.Cut(line, ":"); !strings.Contains(with, key+":") {
				kept = append(kept, line)
			}
		}
		must(t, os.WriteFile(config, []byte(with+"\n"+strings.Join(kept, "")), 0o600))
		if code, stdout, stderr := call("run", "-c", config, "--log-level", "error"); code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s%s", with, code, stdout, stderr)
		}
	}
}

// TestCheckImpossible: what is impossible or forbidden on this host is reported before the daemon
// starts.
func TestCheckImpossible(t *testing.T) {
	lab := makeLab(t, 1)
	config := filepath.Join(lab, "h1", "daemon.yaml")
	good, err := os.ReadFile(config)
	must(t, err)
	file := filepath.Join(lab, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	check := func() (int, string, string) { return call("run", "-c", config, "--check") }
	if code, stdout, stderr := check(); code != cli.ExitOK || !strings.Contains(stdout, "is right: host h1") {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
	for with, want := range map[string]string{
		"device: mlx5:mlx5_0":                          `there is no driver "mlx5", but ibverbs or softroce`,
		"device: softroce:10.9.9.9":                    `daemon.yaml:1: device: "softroce:10.9.9.9" cannot have the address`,
		"socket: " + file:                              "is there and is not a socket",
		"state: " + lab:                                "is there and is not a file of data",
		"socket: " + file + "/daemon.sock":             "socket: " + file + " is not a directory",
		"state: " + file + "/a/daemon.db":              "state: ",
		"socket: " + strings.Repeat("long/", 20) + "d": "the name of a unix socket at most 107",
	} {
		key, _, _ := strings.Cut(with, ":")
		var kept []string
		for line := range strings.Lines(string(good)) {
			if !strings.HasPrefix(line, key+":") {
				kept = append(kept, line)
			}
		}
		must(t, os.WriteFile(config, []byte(with+"\n"+strings.Join(kept, "")), 0o600))
		if code, stdout, stderr := check(); code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s%s", with, code, stdout, stderr)
		}
	}
	must(t, os.WriteFile(config, good, 0o600))
	must(t, os.Chmod(filepath.Join(lab, "h1", "host.key"), 0o644))
	if code, _, stderr := check(); code != cli.ExitFailure || !strings.Contains(stderr, "all users of this host can read the key") {
		t.Errorf("%d, %s", code, stderr)
	}
}

// TestCheckDevice: the whole name of a device is checked, by the rules of its driver, and whether
// it has a route to the other hosts.
func TestCheckDevice(t *testing.T) {
	config := filepath.Join(t.TempDir(), "daemon.yaml")
	const tunnel = "softroce:10.1.0.11/24,tunnel=127.0.0.1:19611-127.0.0.1:19601"
	for device, want := range map[string]string{
		tunnel + ",gw=10.1.0.1":        "",
		tunnel:                         "10.2.0.11 is outside 10.1.0.0/24 and there is no gateway (gw=…)",
		tunnel + ",gw=10.2.0.1":        "gateway 10.2.0.1 is not another host in 10.1.0.0/24",
		tunnel + ",gw=10.1.0.12":       "gw=10.1.0.12 is the address of a host",
		tunnel + ",gw=10.1.0.1,color=": `unknown option "color"`,
		tunnel + ",gw=10.1.0.1?clor=1": "unknown options [clor]",
		"softroce:10.1.0.11":           "",
		"softroce:10.1.0.11?rx=all":    "rx=all",
		"softroce:10.1.0.11/24":        "want an IPv4 address, as in softroce:10.0.0.1, or softroce:ADDRESS/LENGTH,tunnel=LOCAL-REMOTE[,gw=ADDRESS]",
		"ibverbs:mlx5_0?prt=1":         `unknown option "prt", have port and gid`,
	} {
		must(t, os.WriteFile(config, []byte(`{name: h1, address: 10.1.0.11, device: "`+device+`", socket: d.sock, state: d.db, listen: "127.0.0.1:19671", bootstrap: 127.0.0.1,
hosts: [{name: h2, address: 10.1.0.12, daemon: "127.0.0.1:19672"}, {name: h3, address: 10.2.0.11, daemon: "127.0.0.1:19673"}]}`), 0o600))
		code, stdout, stderr := call("run", "-c", config, "--check")
		if want == "" && (code != cli.ExitOK || !strings.Contains(stdout, "is right")) ||
			want != "" && (code != cli.ExitFailure || !strings.Contains(stderr, "daemon.yaml: device: ") || !strings.Contains(stderr, want)) {
			t.Errorf("%s: %d, %s%s; want %q", device, code, stdout, stderr, want)
		}
	}
}

// TestAbsent: the error about a missing device has its name, and those of the existing ones.
func TestAbsent(t *testing.T) {
	none, two := filepath.Join(t.TempDir(), "none"), t.TempDir()
	for _, name := range []string{"mlx5_0", "rxe0"} {
		must(t, os.Mkdir(filepath.Join(two, name), 0o700))
	}
	here, elsewhere := netip.MustParseAddr("127.0.77.9"), netip.MustParseAddr("192.0.2.9")
	for _, c := range []struct {
		device  string
		address netip.Addr
		list    string
		want    string
	}{
		{"ibverbs:mlx5_0", here, two, ""},
		{"ibverbs:rxe0?port=1", here, two, ""},
		{"ibverbs:mlx5_9", here, two, `no RDMA device "mlx5_9" now, but mlx5_0, rxe0 (`},
		{"ibverbs:mlx5_9", here, none, `no RDMA device "mlx5_9" now, nor any other (`},
		{"softroce:127.0.77.9", here, none, ""},
		{"softroce:192.0.2.9", elsewhere, none, "no interface of this host has the address 192.0.2.9 now"},
		{"softroce:192.0.2.9/24,tunnel=127.0.0.1:1-127.0.0.1:2", elsewhere, none, ""},
	} {
		if got := absent(&config.Config{Device: c.device, Address: c.address}, c.list); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", c.device, got, c.want)
		}
	}
}
