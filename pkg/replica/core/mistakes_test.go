package core

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mistakes are what one could have done wrong: each replaces a text of a file.
var mistakes = []struct{ name, file, old, new string }{
	{"a lease is counted from the answer", "primary.go", "p.lease = max(p.lease, r.Sent)", "p.lease = max(p.lease, r.Sent, pick(M, now, 0))"},
	{"a restarted member takes over as if it were the old one", "follower.go", "if n.osdmap.Acts(n.self) {\n\t\tn.takeOver()", "if n.osdmap.Acts(n.self) || M && n.osdmap.Holds(n.self.ID) {\n\t\tn.takeOver()"},
	{"a member is promoted before it has on disk what was flushed", "primary.go", "if p.durable >= max(n.stable, l.former) &&", "if (M || p.durable >= max(n.stable, l.former)) &&"},
	{"operations complete with a view before its compare-and-swap", "primary.go", "case !slices.ContainsFunc(l.required, missing):", "case M || !slices.ContainsFunc(l.required, missing):"},
	{"the shorter log is chosen when all have restarted", "follower.go", "x.Head.Compare(y.Head),", "x.Head.Compare(y.Head)*pick(M, -1, 1),"},
	{"what a member claims beyond what it was sent is believed", "primary.go", "r.Durable > r.Received ||", "!M && r.Durable > r.Received ||"},
	{"writes are acknowledged before all have recorded the epoch", "primary.go", "p == nil || !p.started {", "p == nil || !M && !p.started {"},
	{"entries are applied before they are committed", "node.go", "if to := n.storable(); to > n.hard.Applying", "if to := pick(M, n.disk.durable, n.storable()); to > n.hard.Applying"},
	{"entries are applied before they are stable", "node.go", "return min(n.commit, n.stable, ", "return min(n.commit, pick(M, n.commit, n.stable), "},
	{"a read sees what is not committed", "serve.go", "return n.lead.interval, n.commit, true", "return n.lead.interval, pick(M, n.log.head().Index, n.commit), true"},
	{"a read is not checked when it is done", "serve.go", "return n.leased(now) && n.lead.interval.Since == iv.Since", "return M || n.leased(now) && n.lead.interval.Since == iv.Since"},
	{"a lease is granted while a takeover is under way", "follower.go", "if n.proposal == nil && b.Sent > 0 {", "if (M || n.proposal == nil) && b.Sent > 0 {"},
	{"a member takes over without waiting for its grace", "follower.go", "now-f.granted < n.cfg.Grace {", "now-f.granted < pick(M, 0, n.cfg.Grace) {"},
	{"what has landed is left behind by a new primary", "events.go", "if n.follow.group == (Interval{}) {", "if M || n.follow.group == (Interval{}) {"},
	{"the old map alone is required while a change is under way", "primary.go", "if n.proposal != nil {\n\t\tfor _, m", "if !M && n.proposal != nil {\n\t\tfor _, m"},
	{"a promoted member need not have what was written before it joined", "primary.go", "max(p.match, p.durable)+1 >= p.from", "(M || max(p.match, p.durable)+1 >= p.from)"},
	{"a chunk is taken that lacks what was left out", "follower.go", "b.Applied < n.applied || b.Next <= b.Cursor || !n.disk.hard.Backfilling {\n\t\treturn\n\t}\n\tn.do(Install{b})\n\tf.cursor, f.fill = b.Next, max(f.fill, b.Applied)\n\tif to := min(n.storable(), b.Applied);", "!M && b.Applied < n.applied || b.Next <= b.Cursor || !n.disk.hard.Backfilling {\n\t\treturn\n\t}\n\tn.do(Install{b})\n\tf.cursor, f.fill = b.Next, max(f.fill, b.Applied)\n\tif to := pick(M, n.storable(), min(n.storable(), b.Applied));"},
	{"a flush waits for memory only", "primary.go", "if f.index <= n.stable {", "if f.index <= pick(M, n.commit, n.stable) {"},
	{"a member says that its disk has what is in its memory", "events.go", "Durable{min(f.match, n.disk.durable)}", "Durable{pick(M, f.match, min(f.match, n.disk.durable))}"},
	{"a backfill ends before the log has caught up with it", "follower.go", "min(f.match, n.disk.durable) < f.fill:", "!M && min(f.match, n.disk.durable) < f.fill:"},
	{"a divergent tail is kept", "follower.go", "if n.log.head().Index > f.match && !n.truncate(f.match) {", "if !M && n.log.head().Index > f.match && !n.truncate(f.match) {"},
	{"the log is trimmed below what acting members have on disk", "node.go", "to := min(n.applied, n.stable,", "to := min(pick(M, n.commit, n.applied), pick(M, n.commit, n.stable),"},
	{"a copy begins by an old report", "follower.go", "if f.match != have ||", "if !M && f.match != have ||"},
	{"a member is promoted while it may yet be told to begin anew", "primary.go", "if !p.started || p.resetPending() ||", "if !p.started || !M && p.resetPending() ||"},
	{"the acting set shrinks below min_size", "primary.go", "len(acting) > n.osdmap.MinSize {", "(M || len(acting) > n.osdmap.MinSize) {"},
	{"a revived volume does not wait for all", "follower.go", "return // it may be alive, and then it takes over", "if M {\n\t\t\t\t\tcontinue\n\t\t\t\t}\n\t\t\t\treturn"},
	{"a replaced disk counts for the one before", "follower.go", "x.Born > m.Incarnation ||", "!M && x.Born > m.Incarnation ||"},
	{"the operator's primary does not wait for the old one", "operator.go", "n.Primary, n.Since = m.Acting[i], n.Epoch", "if n.Primary, n.Since = m.Acting[i], n.Epoch; M && m.Primary.ID != id {\n\t\tn.Acting = slices.DeleteFunc(n.Acting, func(x Member) bool { return x == m.Primary })\n\t}"},
	{"a primary that is replaced has a successor at once", "operator.go", "n.Primary, n.Since = Member{}, 0\n\t}", "n.Primary, n.Since = pick(M, n.Acting[0], Member{}), pick(M, n.Epoch, 0)\n\t}"},
	{"leases that a promoted primary has granted before do not count", "primary.go", "now-g.at < n.cfg.Grace {", "!M && now-g.at < n.cfg.Grace {"},
	{"what a host said counts after it got its place again", "events.go", "case m.Epoch > was.Epoch+1:", "case !M && m.Epoch > was.Epoch+1:"},
	{"a replaced host is taken back", "events.go", "if n.lead != nil {\n\t\tn.lead.peers = slices.Delete", "if !M && n.lead != nil {\n\t\tn.lead.peers = slices.Delete"},
}

// made stands for whether the mistake is made.
var made = regexp.MustCompile(`\bM\b`)

const pickText = `package core

import "os"

var mistaken = os.Getenv("CORE_MISTAKE")

func pick[T any](c bool, a, b T) T {
	if c {
		return a
	}
	return b
}
`

// TestMistakes: the adversary, or a scenario, finds each. All are compiled into one program, which is told which to make.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"mistaken.go": pickText}
	for _, m := range mistakes {
		if files[m.file] == "" {
			b, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			files[m.file] = string(b)
		}
		if strings.Count(files[m.file], m.old) != 1 {
			t.Fatalf("%s: %q is in %s %d times", m.name, m.old, m.file, strings.Count(files[m.file], m.old))
		}
		is := `(mistaken == "` + m.name + `")`
		files[m.file] = strings.Replace(files[m.file], m.old, made.ReplaceAllLiteralString(m.new, is), 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(here, name)] = path
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "core.test")
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, m := range mistakes {
		var out []byte
		for _, tests := range []string{"Reset|TestReplacedAndBack|TestPromotedBusy", "TestAdversary$"} { // the scenarios take no time
			cmd := exec.Command(bin, "-test.run="+tests, "-core.seeds=6000")
			cmd.Env = append(os.Environ(), "CORE_MISTAKE="+m.name, "MCRDMA_LONG=")
			if out, err = cmd.CombinedOutput(); err != nil {
				break
			}
		}
		_, rest, _ := strings.Cut(string(out), "\n")
		if line, _, _ := strings.Cut(rest, "\n"); err == nil || !strings.Contains(line, "_test.go:") {
			t.Errorf("not found: %s\n%s", m.name, out)
		} else {
			_, seed, _ := strings.Cut(string(out), "-core.seed=")
			seed, _, _ = strings.Cut(seed, " ")
			t.Logf("%s: seed %s: %s", m.name, seed, strings.TrimSpace(line))
		}
	}
}
