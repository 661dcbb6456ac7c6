// Package packaging tests the Debian package, which build in this directory makes. "make
// deb" does both.
package packaging

import (
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// debEnv is the package that is tested.
const debEnv = "MCRDMA_DEB"

// deb is the package's file; without one the test is skipped.
func deb(t *testing.T) string {
	t.Helper()
	name := os.Getenv(debEnv)
	if name == "" {
		t.Skip("optional: no package is named by $" + debEnv + "; \"make deb\" builds one and runs this")
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join("..", name)
	}
	return name
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestContents unpacks the package and looks at what is there.
func TestContents(t *testing.T) {
	root := t.TempDir()
	command(t, "dpkg-deb", "-x", deb(t), root)
	for _, name := range []string{"usr/bin/cmd-daemon", "usr/bin/switchctl", "usr/bin/mcbench", "usr/bin/mcblock", "usr/lib/systemd/system/cmd-daemon.service", "usr/lib/systemd/system/mcblock.service",
		"usr/lib/systemd/system/switchctl-agent@.service", "usr/lib/sysusers.d/mcrdma.conf", "usr/share/man/man1/switchctl-group-show.1.gz",
		"usr/share/man/man1/mcbench-compare.1.gz", "usr/share/man/man1/mcblock-volume-allow.1.gz", "usr/share/man/man5/mcblock.yaml.5.gz", "usr/share/man/man5/cmd-daemon.yaml.5.gz",
		"usr/share/man/man5/switchctl-agent.yaml.5.gz", "usr/share/doc/mcrdma/examples/daemon.yaml", "usr/share/doc/mcrdma/examples/agent.yaml", "usr/share/doc/mcrdma/examples/mcblock.yaml", "usr/share/bash-completion/completions/mcblock", "usr/share/bash-completion/completions/switchctl", "usr/share/zsh/vendor-completions/_mcbench",
		"usr/share/fish/vendor_completions.d/cmd-daemon.fish", "usr/share/doc/mcrdma/copyright", "usr/share/doc/mcrdma/daemon.md.gz",
		"usr/share/doc/mcrdma/changelog.gz", "usr/share/doc/mcrdma/README.md.gz", "usr/share/doc/mcrdma/examples/application.conf",
		"usr/share/mcrdma/monitoring/grafana.json", "usr/share/mcrdma/monitoring/mcrdma.rules.yaml", "usr/share/mcrdma/mcrdma.json", "usr/share/mcrdma/mcrdma.p4info.txtpb", "usr/share/lintian/overrides/mcrdma", "etc/mcrdma"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil || path == root {
			return err
		}
		want := fs.FileMode(0o644)
		if d.IsDir() || filepath.Base(filepath.Dir(path)) == "bin" {
			want = 0o755
		}
		if i.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, i.Mode(), want)
		}
		if i.Mode().IsRegular() && i.Size() == 0 {
			t.Errorf("%s is empty", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, p := range []string{"cmd-daemon", "switchctl", "mcbench", "mcblock"} {
		if out := command(t, filepath.Join(root, "usr/bin", p), "--version"); !strings.HasPrefix(out, p+" version ") {
			t.Errorf("%s --version: %s", p, out)
		}
	}
	units(t, root)
	pages(t, filepath.Join(root, "usr/share/man"))
	found(t, filepath.Join(root, "usr/share/man"))
}

// found: "man -k" finds the pages, of configurations too, by what they are about.
func found(t *testing.T, dir string) {
	if _, err := exec.LookPath("mandb"); err != nil {
		t.Log("optional: there is no mandb to make an index of the pages")
		return
	}
	command(t, "mandb", "--quiet", "--create", "--user-db", dir)
	for words, want := range map[string][]string{
		"groups":        {"cmd-daemon (1)", "cmd-daemon-groups (1)", "switchctl-groups (1)", "cmd-daemon.yaml (5)", "switchctl-agent.yaml (5)"},
		"configuration": {"cmd-daemon.yaml (5)", "switchctl-agent.yaml (5)", "mcblock.yaml (5)"},
		"volumes":       {"mcblock (1)", "mcblock-serve (1)", "mcblock-doctor (1)", "mcblock.yaml (5)"},
		"mcrdma":        {"cmd-daemon (1)", "switchctl (1)", "mcbench (1)", "cmd-daemon.yaml (5)", "switchctl-agent.yaml (5)"},
		"wrong":         {"cmd-daemon-doctor (1)", "switchctl-doctor (1)", "mcblock-doctor (1)"},
		"switchctl":     {"switchctl-agent (1)", "switchctl-init (1)", "switchctl-plan (1)"},
	} {
		out := command(t, "man", "--manpath="+dir, "--apropos", words)
		for _, page := range want {
			if !strings.Contains(out, page) {
				t.Errorf("man -k %s does not find %s:\n%s", words, page, out)
			}
		}
	}
}

// units: what they start is in the package, and systemd takes them.
func units(t *testing.T, root string) {
	files, err := filepath.Glob(filepath.Join(root, "usr/lib/systemd/system/*.service"))
	if err != nil || len(files) == 0 {
		t.Fatal("no units", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if key, value, _ := strings.Cut(line, "="); strings.HasPrefix(key, "Exec") {
				if _, err := os.Stat(filepath.Join(root, strings.Fields(value)[0])); err != nil {
					t.Errorf("%s: %v", filepath.Base(f), err)
				}
			}
		}
		analyze, err := exec.LookPath("systemd-analyze")
		if err != nil || !strings.Contains(f, "@") { // the other one has a test where it is written
			continue
		}
		name := strings.Replace(filepath.Join(t.TempDir(), filepath.Base(f)), "@.", "@x.", 1) // an instance
		text = bytes.ReplaceAll(text, []byte("/usr/bin/switchctl"), []byte("/bin/true"))
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, _ := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", name).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, filepath.Base(name)) { // others' units may be as they want
				t.Error(line)
			}
		}
	}
}

// pages: groff has nothing to say against them.
func pages(t *testing.T, dir string) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("optional: there is no groff to read the pages")
		return
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.gz"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d pages, %v", len(files), err)
	}
	for _, f := range files {
		r, err := os.Open(f)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), groff, "-k", "-man", "-Tutf8", "-ww", "-Wbreak", "-P-cbu")
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = z, &out, &errs
		if err := cmd.Run(); err != nil || errs.Len() > 0 || !strings.Contains(out.String(), "SYNOPSIS") {
			t.Errorf("%s: %v, %s", filepath.Base(f), err, &errs)
		}
		_ = r.Close()
	}
}

// TestLintian: Debian's own checks find no error; what is overridden has its reason in
// the package.
func TestLintian(t *testing.T) {
	name := deb(t)
	lintian, err := exec.LookPath("lintian")
	if err != nil {
		t.Skip("optional: lintian is not installed")
	}
	command(t, lintian, "--allow-root", "--fail-on", "error", name)
}

// TestInstall has dpkg install the package below a directory, and remove it.
func TestInstall(t *testing.T) {
	name := deb(t)
	if os.Geteuid() != 0 {
		testenv.Skip(t, "dpkg takes root")
	}
	root := t.TempDir()
	for _, d := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"var/lib/dpkg/status", "etc/passwd", "etc/group"} {
		if err := os.WriteFile(filepath.Join(root, f), nil, 0o644); err != nil { //nolint:gosec // as in any system
			t.Fatal(err)
		}
	}
	dpkg := func(args ...string) string {
		return command(t, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless"}, args...)...)
	}
	dpkg("--install", name)
	listed := strings.Fields(dpkg("--listfiles", "mcrdma"))
	for _, want := range []string{"/usr/bin/mcbench", "/usr/lib/systemd/system/cmd-daemon.service", "/usr/lib/systemd/system/mcblock.service", "/etc/mcrdma"} {
		if !slices.Contains(listed, want) {
			t.Errorf("dpkg -L lacks %s", want)
		}
	}
	if out := dpkg("--verify", "mcrdma"); out != "" {
		t.Error(out)
	}
	if passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd")); err != nil || !bytes.Contains(passwd, []byte("mcrdma:")) {
		t.Errorf("there is no user mcrdma: %s, %v", passwd, err)
	}
	// It works: a lab of daemons and switches, from what was installed.
	if out := command(t, filepath.Join(root, "usr/bin/mcbench"), "lat", "--lab", "-n", "20", "--warm-up", "5", "-s", "4K", "--check", "-q"); !strings.Contains(out, " 4096    20 ") {
		t.Error(out)
	}
	state, volumes := filepath.Join(root, "var/lib/mcrdma"), filepath.Join(root, "var/lib/mcblock")
	for _, d := range []string{state, volumes} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	dpkg("--install", name) // again, as an upgrade
	dpkg("--remove", "mcrdma")
	if _, err := os.Stat(filepath.Join(root, "usr/bin/mcbench")); err == nil {
		t.Error("the programs are there still")
	}
	dpkg("--purge", "mcrdma")
	if _, err := os.Stat(state); err == nil {
		t.Error("the state is there still")
	}
	if _, err := os.Stat(volumes); err != nil {
		t.Errorf("volumes do not outlive the package: %v", err)
	}
	if out := dpkg("--audit"); out != "" {
		t.Error(out)
	}
}
