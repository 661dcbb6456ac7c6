package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// The possible values of --on-stop depend on the configuration.
func TestAgentOnStop(t *testing.T) {
	const text = `name: sw1
address: 10.255.0.1
mac: "02:00:00:00:00:01"
prefixes: [10.1.0.0/24]
routing: {source: kernel}
ports: [{port: 1}]
`
	dir := t.TempDir()
	leaves, holds := filepath.Join(dir, "leaves.yaml"), filepath.Join(dir, "holds.yaml")
	must(t, os.WriteFile(leaves, []byte(text), 0o600))
	must(t, os.WriteFile(holds, []byte(text+"restart: {hold: 30s}\n"), 0o600))
	lost, strange := filepath.Join(dir, "lost.yaml"), filepath.Join(dir, "strange.yaml")
	static := strings.Replace(text, "{source: kernel}", "{source: static, topology: nowhere.yaml}", 1)
	must(t, os.WriteFile(lost, []byte(static), 0o600))
	must(t, os.WriteFile(strange, []byte(text+"tls: {cert: a.crt, key: a.key, ca: ca.crt}\n"), 0o600))
	tls, foreign := identitytest.New(t).Switch("sw1"), filepath.Join(dir, "foreign.yaml")
	must(t, os.WriteFile(foreign, fmt.Appendf(nil, "%stls: {cert: %s, key: %s, ca: %s}\n", text, tls.Cert, tls.Key, identitytest.New(t).Switch("sw1").CA), 0o600))
	for _, c := range []struct {
		file, on string
		code     int
		want     string
	}{
		{foreign, "leave", 1, foreign + ": tls: the CA in "},
		{lost, "leave", 1, "nowhere.yaml"},
		{strange, "leave", 1, strange + ": tls: identity: bad certificate files: open " + dir + "/a.crt"},
		{leaves, "leave", 0, "is right"},
		{holds, "leave", 0, "is right"},
		{holds, "hold", 0, "is right"},
		{leaves, "hold", 2, "restart.hold in " + leaves + " says for how long"},
		{holds, "drop", 2, "neither hold nor leave"},
	} {
		code, out, errs := call("agent", "--config", c.file, "--check", "--on-stop", c.on)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("--on-stop %s with %s: %d, %s%s", c.on, filepath.Base(c.file), code, out, errs)
		}
	}
	if _, out, _ := call("agent", "--help"); !strings.Contains(out, "--on-stop hold") || !strings.Contains(out, "restart.hold") {
		t.Errorf("help:\n%s", out)
	}
}

// TestAgentLeaves: with --on-stop leave the neighbors use other paths as soon as the agent is stopped, although the configuration
// has them wait.
func TestAgentLeaves(t *testing.T) {
	dir := t.TempDir()
	ends := make([]netip.AddrPort, 2) // of the tunnel between the switches
	for i := range ends {
		c, err := net.ListenPacket("udp", netip.AddrPortFrom(testenv.Loopback(), 0).String())
		must(t, err)
		ends[i] = netip.MustParseAddrPort(c.LocalAddr().String())
		must(t, c.Close())
	}
	var agents [2]*running
	for i, name := range []string{"left", "right"} {
		sw := startSwitch(t, "--no-p4", "--cpu-port", "510", "--grpc-server-addr", "127.0.0.1:0", "-i", fmt.Sprintf("9@udp:%v,%v", ends[i], ends[1-i]))
		file := filepath.Join(dir, name+".yaml")
		must(t, os.WriteFile(file, fmt.Appendf(nil, `name: %[1]s
address: 10.255.0.%[2]d
mac: "02:00:00:00:00:0%[2]d"
p4runtime: {target: %[3]s}
listen: 127.0.0.1:0
state: %[1]s.db
routing: {source: kernel}
ports: [{port: 9, name: swp9, to: %[4]s}]
switches: [{name: %[4]s, agent: "127.0.0.1:9"}]
restart: {hold: 2m}
`, name, i+1, sw.addr, []string{"right", "left"}[i]), 0o600))
		agents[i] = start(t, "ready: agent of switch "+name+" at %s", "agent", "--config", file, "--on-stop", "leave")
	}
	says := func(what string) {
		t.Helper()
		for limit := time.Now().Add(patience); !strings.Contains(agents[0].stderr.String(), what); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("no %s in %s", what, agents[0].stderr)
			}
		}
	}
	says("msg=link port=9 up=true")
	agents[1].end(t)
	says("msg=link port=9 up=false")
}
