package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestInitText: the output of init, for a lab on this machine and for one on several.
func TestInitText(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct{ args, want string }{
		{"init lab --host h1=127.0.0.1 --host h2=127.0.0.2 --switch torA=127.0.0.1:9560 --admin me", `made in lab: ca.crt, ca.key, h1/, h2/, torA/, me/

Next:
- run the daemons, each in its own terminal or under a service manager:
    cmd-daemon run --config lab/h1/daemon.yaml
    cmd-daemon run --config lab/h2/daemon.yaml
- see how one does: cmd-daemon status --socket lab/h1/daemon.sock
- in the configuration of the agent of torA (switchctl agent), which listens at 127.0.0.1:9560, set
    tls: {cert: switch.crt, key: switch.key, ca: ca.crt}   # of lab/torA
- as me: switchctl status --agent 127.0.0.1:9560 --peers --tls-cert lab/me/admin.crt --tls-key lab/me/admin.key --tls-ca lab/me/ca.crt
- keep lab/ca.key to yourself: its holder can act as any host
`},
		{"init racks --host h1=10.1.0.11", `made in racks: ca.crt, ca.key, h1/

Next:
- copy each host's directory to it as /etc/mcrdma (host.key is for its daemon only), for example
    ssh root@10.1.0.11 mkdir -p /etc/mcrdma; scp -r racks/h1/* root@10.1.0.11:/etc/mcrdma
- there, check it and run it (as user mcrdma: chown -R mcrdma: /etc/mcrdma first):
    cmd-daemon doctor --config /etc/mcrdma/daemon.yaml
    cmd-daemon run --config /etc/mcrdma/daemon.yaml
- keep racks/ca.key to yourself: its holder can act as any host
`},
		{"init racks --add --host h2=10.1.0.12 --local", `made in racks: h2/
added the new hosts to h1/daemon.yaml; restart those daemons

Next:
- run the daemons, each in its own terminal or under a service manager:
    cmd-daemon run --config racks/h2/daemon.yaml
- see how one does: cmd-daemon status --socket racks/h2/daemon.sock
- keep racks/ca.key to yourself: its holder can act as any host
`},
		{"init racks --renew --days 30", `renewed for 30 days: h1, h2
Copy host.crt and host.key (switch.crt and switch.key) to their places; daemons and agents
take them up with the next connection.
`},
	} {
		code, stdout, stderr := call(strings.Fields(c.args)...)
		if d := cmp.Diff(c.want, stdout); d != "" || code != cli.ExitOK || stderr != "" {
			t.Errorf("%s: %d, %s\n%s", c.args, code, stderr, d)
		}
	}
	for args, want := range map[string]string{
		"init lab --host h1=10.0.0.1":       "lab exists already; add to it (--add), or name another directory",
		"init none --add --host h=10.0.0.1": "there is no lab in none",
		"init lab --add --host h1=10.0.0.9": "another host has that name",
	} {
		if code, stdout, stderr := call(strings.Fields(args)...); code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s, %s", args, code, stdout, stderr)
		}
	}
}

// TestInitTopology: the next steps are printed for each switch.
func TestInitTopology(t *testing.T) {
	fabric, err := filepath.Abs("../../examples/twoswitches/fabric.yaml")
	must(t, err)
	t.Chdir(t.TempDir())
	code, stdout, stderr := call("init", "lab", "--topology", fabric)
	for _, want := range []string{"agent of left, which listens at 10.255.0.1:9560:\n    switchctl init left --topology " + fabric + " --write lab/left/agent.yaml\n",
		"switchctl init right --topology " + fabric + " --write lab/right/agent.yaml\n"} {
		if code != cli.ExitOK || !strings.Contains(stdout, want) {
			t.Errorf("%d, no %q in %s%s", code, want, stdout, stderr)
		}
	}
}

// lab makes a lab on this machine with hosts h1, h2, …, and returns its directory.
func makeLab(t testing.TB, hosts int, more ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "lab")
	args := append([]string{"init", dir}, more...)
	for i := range hosts {
		args = append(args, "--host", "h"+string(rune('1'+i))+"="+testenv.Loopback().String())
	}
	if code, _, stderr := call(args...); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	return dir
}

// edit changes a file.
func edit(t testing.TB, file string, change func(string) string) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, []byte(change(string(data))), 0o644))
}

// TestCheck: run --check reports on a configuration, and on the errors in it and in its files.
func TestCheck(t *testing.T) {
	dir := makeLab(t, 2, "--switch", "torA=127.0.0.1:9560,h1")
	foreign := filepath.Join(makeLab(t, 1), "ca.crt")
	one, two := filepath.Join(dir, "h1", "daemon.yaml"), filepath.Join(dir, "h2", "daemon.yaml")
	for file, want := range map[string]string{one: ", 1 other host, switch torA, TLS\n", two: ", 1 other host, no switch, TLS\n"} {
		if code, stdout, stderr := call("run", "--check", "-c", file); code != cli.ExitOK || stderr != "" || !strings.HasPrefix(stdout, file+" is right: host h") || !strings.HasSuffix(stdout, want) {
			t.Errorf("%d, %s%s", code, stdout, stderr)
		}
	}
	for _, c := range []struct {
		old, new, want string
	}{
		{"name: h1", "name: h9", "is the certificate of host:h1 127"},
		{"host.crt", "none.crt", "daemon.yaml: tls: identity: bad certificate files"},
		{"ca: ca.crt", "ca: " + foreign, "daemon.yaml: tls: the CA in " + foreign + " does not vouch for "},
		{"hosts:", "hots:", ": hots: unknown field"},
		{"hosts:", "direct: none.yaml\nhosts:", "daemon.yaml: direct: config: reading the agent's configuration"},
	} {
		edit(t, one, func(s string) string { return strings.Replace(s, c.old, c.new, 1) })
		if code, stdout, stderr := call("run", "--check", "-c", one); code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d, %s%s", c.new, code, stdout, stderr)
		}
		edit(t, one, func(s string) string { return strings.Replace(s, c.new, c.old, 1) })
	}
	must(t, os.WriteFile(filepath.Join(dir, "h1", "sw.yaml"), []byte(`name: sw1
address: 10.255.0.1
mac: "02:00:00:00:00:01"
routing: {source: kernel}
ports: [{port: 1}]
`), 0o600))
	for with, want := range map[string]string{
		"direct: sw.yaml": `is the configuration of switch sw1, and "switch" is torA`,
		"direct: sw.yaml\nswitch: {name: sw1, agent: \"127.0.0.1:9560\"}": "has no tls, and the daemon has: give both certificates, or neither",
	} {
		edit(t, one, func(s string) string {
			if strings.Contains(with, "switch:") {
				s = strings.Replace(s, "switch: {name: torA", "# switch: {name: torA", 1)
			}
			return with + "\n" + s
		})
		if code, stdout, stderr := call("run", "--check", "-c", one); code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s%s", with, code, stdout, stderr)
		}
		edit(t, one, func(s string) string {
			return strings.Replace(strings.TrimPrefix(s, with+"\n"), "# switch: {name: torA", "switch: {name: torA", 1)
		})
	}
	edit(t, one, func(s string) string {
		s = strings.Replace(s, "tls:", "# tls:", 1)
		return "direct: sw.yaml\n" + strings.Replace(s, "switch:", "# switch:", 1)
	})
	if code, stdout, stderr := call("run", "--check", "-c", one); code != cli.ExitOK || !strings.HasSuffix(stdout, "switch sw1, whose agent runs here, plain text\n") {
		t.Errorf("%d, %s%s", code, stdout, stderr)
	}
}

// TestExpired: a daemon with an expired certificate does not start: no peer would accept it.
func TestExpired(t *testing.T) {
	s, err := loadSetup(filepath.Join(makeLab(t, 1), "h1", "daemon.yaml"))
	must(t, err)
	if err := checkCertificate(s.cfg, time.Now().Add(366*24*time.Hour)); err == nil || !strings.Contains(err.Error(), "was valid until") {
		t.Error(err)
	}
}

// free returns an address with a free port.
func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}
