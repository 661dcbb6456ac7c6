package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/identity/identitytest"
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
