//go:build interop

package rxe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/tests/interop/rxe/guestexec"
)

// TestFastPathInGuest has the guest's kernel load the data plane's programs (package bpf), and runs what tests them: the scripts
// of pkg/ackmerge, requests copied over veths, unicast, tests/dataplane, and internal/softswitch/fastpath.
func TestFastPathInGuest(t *testing.T) {
	l := getLab(t, 4200, 1)
	img, err := image()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("Linux %s", img.Kernel)
	g := l.guests[0]
	// Files are where the tests look for them from the guest's directory, which is /.
	for _, pattern := range []string{"pkg/ackmerge/testdata/*", "pkg/rocev2/testdata/*.pcap"} {
		files, err := filepath.Glob("../../../" + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Put(t.Context(), strings.TrimPrefix(name, "../../.."), data); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A guest without KVM is slow, so most tests run there in the long mode only: the programs are those that the host's kernel
	// runs in all tests, and these here load each of them.
	for _, c := range []struct{ program, tests, long string }{
		{"bpf.test", "^Test(Scripts|Paths|Counts|VethCopies|VethMixed|VethAnswers)$",
			"^Test(Scripts|Random|HalfAnUpdate|Counts|Climbs|Paths|UnicastHalfAnUpdate|VethCopies|VethMixed|VethStrays|VethAnswers)$"},
		{"dataplane.test", "^TestVethKernel$/^Test(Copies|MergedAnswer|BadICRC|Bypass|Neutral(Flow|Branch|Answers))$", "^TestVethKernel$"},
		{"fastpath.test", "^TestVeth(Adds|News|Fails)$", "^TestVeth(Owner|Adds|Floods|News|Others|Refuses|Sets|Fails)$"},
	} {
		tests := c.tests
		if os.Getenv("MCRDMA_LONG") != "" {
			tests = c.long
		}
		t.Run(c.program, func(t *testing.T) {
			out, err := g.Run(t.Context(), guestexec.Request{
				Argv:    []string{"/bin/" + c.program, "-test.v", "-test.short", "-test.timeout=100s", "-test.run=" + tests},
				Env:     []string{"MCRDMA_MUST_RUN=1"},
				Timeout: 2 * time.Minute,
			})
			t.Logf("%s", out)
			if err != nil || !strings.Contains(out, "--- PASS") || strings.Contains(out, "--- SKIP") {
				t.Errorf("not all tests have run: %v", err)
			}
		})
	}
}
