package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// abandoned is set in a test process that starts a lab and waits to be ended.
const abandoned = "MCRDMA_E2E_ABANDONED"

// Belongings are the resources of a lab.
type belongings struct {
	Base   string
	PIDs   []int
	Spaces []string // network namespaces, as "net:[4026532345]"
}

// However the tests end, nothing is left: no process, no network namespace, and, unless the tests
// are killed, no file.
func TestNamespaceNothingLeft(t *testing.T) {
	wholeLabs(t)
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestAbandonedLab$", "-test.v")
			cmd.Env = append(os.Environ(), abandoned+"=1")
			cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
			in, err1 := cmd.StdinPipe()
			out, err2 := cmd.StdoutPipe()
			if err := errors.Join(err1, err2, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			var has belongings
			for s := bufio.NewScanner(out); has.Base == "" && s.Scan(); {
				_ = json.Unmarshal(s.Bytes(), &has) // ignore other lines
			}
			if remains(has) == "" {
				t.Error("what is there is not seen")
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if len(has.PIDs) < 10 || len(has.Spaces) < 7 {
				t.Fatalf("there was no lab: %+v", has)
			}
			eventually(t, "processes and namespaces are gone", 5*time.Second, func() bool { return remains(has) == "" })
			if left := remains(has); left != "" {
				t.Error(left)
			}
			if _, err := os.Stat(has.Base); sig != unix.SIGKILL && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is still there: %v", has.Base, err)
			}
			_ = os.RemoveAll(has.Base)
		})
	}
}

// remains returns what is left of a lab: processes of its programs, or a namespace that a mount in
// the file system keeps without a process.
func remains(b belongings) string {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err.Error()
	}
	for _, l := range lines {
		if text, err := os.ReadFile(l); err == nil && strings.Contains(string(text), b.Base) { // or the process has ended meanwhile
			return fmt.Sprintf("%s: %q", l, text)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err.Error()
	}
	for _, s := range b.Spaces {
		if strings.Contains(string(mounts), s) {
			return s + " is mounted"
		}
	}
	return ""
}

// TestAbandonedLab is the process that TestNamespaceNothingLeft ends.
func TestAbandonedLab(t *testing.T) {
	if os.Getenv(abandoned) == "" {
		t.Skip("optional: for TestNamespaceNothingLeft only")
	}
	l := startSample(t, lab.Spec{})
	has := belongings{Base: base, PIDs: l.PIDs()}
	for _, pid := range has.PIDs {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Fatal(err)
		}
		has.Spaces = append(has.Spaces, ns)
	}
	line, err := json.Marshal(has)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s\n", line)
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // for as long as the other test wants
}
