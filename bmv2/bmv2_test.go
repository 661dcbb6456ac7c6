package bmv2_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/internal/made"
)

const sources = "../p4src"

// TestArtifactsAreCurrent fails when p4src has changed and was not compiled.
func TestArtifactsAreCurrent(t *testing.T) {
	want, err := made.HashSources(os.DirFS(sources), "*.p4")
	if err != nil {
		t.Fatal(err)
	}
	if got := bmv2.Origin().Sources; got != want {
		t.Errorf("bmv2/ was compiled from other sources than those in p4src/ (%s, now %s); run: make p4", got, want)
	}
	if got, want := bmv2.HashArtifacts(bmv2.JSON, bmv2.P4Info), bmv2.Origin().Artifacts; got != want {
		t.Errorf("bmv2/mcrdma.json or bmv2/mcrdma.p4info.txtpb was edited (%s, compiled as %s); run: make p4", got, want)
	}
}

func source(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(sources + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDropReasonsMatchTheProgram(t *testing.T) {
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^const bit<32> DROP_(\w+) *= *(\d+);`).FindAllStringSubmatch(source(t, "drops.p4"), -1) {
		if m[1] == "REASONS" {
			continue
		}
		if i, _ := strconv.Atoi(m[2]); i != len(names) {
			t.Errorf("%s is number %d, expected %d", m[1], i, len(names))
		}
		names = append(names, strings.ToLower(m[1]))
	}
	if d := cmp.Diff(names, bmv2.DropReasons); d != "" {
		t.Errorf("drops.p4 (-) and DropReasons (+) differ:\n%s", d)
	}
}

func TestCPUPortMatchesTheProgram(t *testing.T) {
	m := regexp.MustCompile(`CPU_PORT *= *(\d+);`).FindStringSubmatch(source(t, "headers.p4"))
	if m == nil || m[1] != strconv.Itoa(bmv2.CPUPort) {
		t.Errorf("headers.p4 says %q, CPUPort is %d", m, bmv2.CPUPort)
	}
}
