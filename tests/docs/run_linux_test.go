package docs

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// patience is how long a block may take; programs are built before the first answer.
const patience = 5 * time.Minute

// TestRun runs the blocks that are marked so.
func TestRun(t *testing.T) {
	if os.Getenv("MCRDMA_E2E") != "1" {
		t.Skip("optional: the commands of the documentation are run by \"make e2e\"")
	}
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	bin, home := t.TempDir(), t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "./cmd/...")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	env := []string{"HOME=" + home, "PATH=" + bin + ":" + os.Getenv("PATH"), "GOFLAGS=-trimpath", "TERM=dumb"}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY"} { // what is built and fetched already
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(out)))
	}
	for _, page := range pages(t) {
		var marked []block
		for _, b := range blocks(read(t, page)) {
			if b.comment == "run" || runUntil.MatchString(b.comment) {
				marked = append(marked, b)
			}
		}
		if len(marked) > 0 {
			t.Run(page, func(t *testing.T) {
				t.Parallel()
				runPage(t, env, marked)
			})
		}
	}
}

// A shell runs the blocks of a page.
type shell struct {
	t     *testing.T
	dir   string
	env   []string
	space *lab.Space
	last  int // process group
}

func runPage(t *testing.T, env []string, marked []block) {
	dir, err := os.MkdirTemp("", "mcrdma-docs-") // short, as sockets' names must be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	tree := exec.CommandContext(t.Context(), "sh", "-c", `tar c --exclude=./.git --exclude=./bin --exclude=./out --exclude=./lab . | tar x -C "$1"`, "sh", dir)
	tree.Dir = top
	if out, err := tree.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := &shell{t: t, dir: dir, env: env}
	if s.space, err = lab.NewSpace("docs"); errors.Is(err, lab.ErrUnable) {
		testenv.Skip(t, "%v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.space.Close)
	for _, b := range marked {
		begun := time.Now()
		s.run(b)
		t.Logf("line %d: %v", b.line, time.Since(begun).Round(100*time.Millisecond))
	}
}

// run runs a block as its comment says.
func (s *shell) run(b block) {
	s.t.Helper()
	until := runUntil.FindStringSubmatch(b.comment)
	if until == nil {
		out, ended := s.start(b.text)
		select {
		case err := <-ended:
			if err != nil {
				s.t.Fatalf("line %d: %v\n%s\n%s", b.line, err, b.text, out)
			}
		case <-time.After(patience):
			s.t.Fatalf("line %d does not end\n%s\n%s", b.line, b.text, out)
		}
		return
	}
	parts := []string{b.text}
	if until[1] == " each until" {
		parts = strings.Split(strings.TrimSpace(b.text), "\n")
	}
	for _, text := range parts {
		out, ended := s.start(text)
		for begun := time.Now(); !says(out.String(), until[2]); time.Sleep(20 * time.Millisecond) {
			select {
			case err := <-ended:
				if err != nil || !says(out.String(), until[2]) {
					s.t.Fatalf("line %d has ended: %v, without saying %q\n%s\n%s", b.line, err, until[2], text, out)
				}
			default:
			}
			if time.Since(begun) > patience {
				s.t.Fatalf("line %d does not say %q\n%s\n%s", b.line, until[2], text, out)
			}
		}
		if until[1] == ", Ctrl-C after" {
			s.interrupt(b, out, ended)
		}
	}
}

// interrupt ends what was started last, as Ctrl-C does.
func (s *shell) interrupt(b block, out *testenv.SyncBuffer, ended <-chan error) {
	s.t.Helper()
	_ = syscall.Kill(-s.last, syscall.SIGINT)
	select {
	case err := <-ended:
		s.t.Logf("line %d, after Ctrl-C: %v", b.line, err)
	case <-time.After(20 * time.Second):
		s.t.Fatalf("line %d does not end\n%s", b.line, out)
	}
}

// says says whether all of "text | text" are in what was said.
func says(out, want string) bool {
	for text := range strings.SplitSeq(want, " | ") {
		if !strings.Contains(out, text) {
			return false
		}
	}
	return true
}

// start pastes commands into a shell. What they leave running ends with the page.
func (s *shell) start(text string) (*testenv.SyncBuffer, <-chan error) {
	s.t.Helper()
	cmd := exec.Command("bash", "-e", "-c", text)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out := &testenv.SyncBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := s.space.Do(cmd.Start); err != nil {
		s.t.Fatal(err)
	}
	s.last = cmd.Process.Pid
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() { defer close(done); ended <- cmd.Wait() }()
	s.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			s.t.Errorf("it does not end: %s", text)
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	})
	return out, ended
}
