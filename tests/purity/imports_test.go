package purity

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/mcrdma/mcrdma/"

// A limit bounds what the packages in and below dir may import, outside their
// tests. Paths are import paths, this module's without the module's own path,
// and stand for all that lies below them; std is the standard library.
type limit struct {
	dir string
	// only, if not nil, lists everything that may be imported directly.
	only []string
	// never lists what may not be imported even by way of other packages.
	never []string
	// except lists directories below dir that have limits of their own.
	except []string
}

const (
	std        = "std"
	p4runtime  = "github.com/p4lang"
	gobgp      = "github.com/osrg/gobgp"
	netlink    = "github.com/vishvananda"
	etcdClient = "go.etcd.io/etcd/client"
	etcdServer = "go.etcd.io/etcd/server"
	switchCode = "internal/softswitch"
)

// notOfDevices is what RDMA devices must not import: daemon, switches, and what
// is built upon devices.
var notOfDevices = []string{p4runtime, gobgp, "api", "cmd", switchCode, "internal/connmgr", "internal/p4rt",
	"internal/routing", "internal/switchagent", "internal/switchspec", "pkg/mcrdma", "pkg/rdmcfallback"}

// limits also names packages that are still to come.
var limits = []limit{
	{dir: "pkg/rocev2", only: []string{std, "pkg/rocev2"}},
	{dir: "pkg/ackmerge", only: []string{std, "pkg/rocev2", "pkg/ackmerge"}},
	{dir: "pkg/bifurcation", only: []string{std, "pkg/bifurcation"}},
	{dir: "pkg/qp", only: []string{std, "pkg/rocev2"}, except: []string{"pkg/qp/rc", "pkg/qp/softroce", "pkg/qp/ibverbs"}},
	{dir: "pkg/qp/rc", only: []string{std, "pkg/rocev2", "pkg/qp"}, never: []string{"pkg/qp/softroce", "pkg/qp/ibverbs"}},
	{dir: "pkg/qp/softroce", never: notOfDevices},
	{dir: "pkg/qp/softroce/link", only: []string{std}},
	{dir: "pkg/qp/ibverbs", never: notOfDevices},
	{dir: "pkg/rdmcfallback", only: []string{std, "pkg/rdmcfallback"}, except: []string{"pkg/rdmcfallback/rdma"}},
	{dir: "pkg/rdmcfallback/rdma", only: []string{std, "pkg/rocev2", "pkg/qp", "pkg/rdmcfallback"},
		never: []string{"pkg/qp/rc", "pkg/qp/softroce", "pkg/qp/ibverbs"}},
	{dir: "pkg/rdmcfallback/schedule", only: []string{std}},
	{dir: "pkg/rdmcfallback/engine", only: []string{std, "pkg/rdmcfallback/schedule"}},
	{dir: "pkg/mcrdma", never: []string{p4runtime, gobgp, switchCode, "internal/p4rt", "internal/switchspec",
		"internal/switchagent", "pkg/ackmerge", "pkg/bifurcation", "bmv2", "cmd"}},
	{dir: "pkg/mcrdma/internal/unicast", only: []string{std, "pkg/rocev2", "pkg/qp"}, never: []string{"pkg/qp/rc", "pkg/qp/softroce", "pkg/qp/ibverbs"}},
	{dir: "pkg/collective", only: []string{std, "pkg/mcrdma", "pkg/collective"}, except: []string{"pkg/collective/core", "pkg/collective/model"}},
	{dir: "pkg/collective/core", only: []string{std}},
	{dir: "pkg/collective/model", only: []string{std}},
	{dir: "pkg/mcrdmatest", only: []string{std, "internal/lab", "internal/softswitch/ports", "internal/topology", "pkg/mcrdma", "pkg/qp"}},
	{dir: "pkg/replica", never: []string{p4runtime, gobgp, switchCode, "internal/connmgr", "internal/p4rt", "internal/switchagent", "internal/nbd",
		"pkg/replica/osdmap/etcd", "pkg/replica/osdmap/embedded", "pkg/ackmerge", "pkg/bifurcation", "cmd"},
		except: []string{"pkg/replica/core", "pkg/replica/wal", "pkg/replica/store", "pkg/replica/osdmap"}},
	{dir: "pkg/replica/core", only: []string{std}},
	{dir: "pkg/replica/wal", only: []string{std, "golang.org/x/sys/unix", "internal/durable", "pkg/replica/core"}},
	{dir: "pkg/replica/store", only: []string{std, "github.com/google/renameio", "golang.org/x/sys/unix", "internal/durable"}},
	{dir: "pkg/replica/osdmap", only: []string{std, "pkg/replica/core"},
		except: []string{"pkg/replica/osdmap/etcd", "pkg/replica/osdmap/embedded"}},
	{dir: "pkg/replica/osdmap/etcd", only: []string{std, etcdClient, "go.etcd.io/etcd/api", "go.uber.org/zap", "google.golang.org/grpc", "internal/failure", "internal/identity", "pkg/replica/osdmap"},
		never: []string{etcdServer}},
	{dir: "internal/switchspec", only: []string{std, "pkg/bifurcation"}},
	{dir: switchCode, never: []string{"internal/switchagent", "internal/connmgr", "internal/p4rt", "pkg/mcrdma", "cmd"}},
	{dir: "internal/softswitch/program", only: []string{std}},
	{dir: "internal/softswitch/match", only: []string{std}},
	{dir: "internal/softswitch/pre", only: []string{std}},
	{dir: "internal/softswitch/pipeline", only: []string{std, "pkg/rocev2", "internal/softswitch/program", "internal/softswitch/match", "internal/softswitch/pre"}},
	{dir: "internal/softswitch/traffic", only: []string{std, "internal/softswitch/pipeline", "internal/softswitch/pre"}},
	{dir: "bmv2", only: []string{std, "internal/made", "bmv2"}},
	{dir: "p4src/tna", only: []string{std, "internal/made", "bmv2/compile", "p4src/tna"}},
	{dir: "bpf", only: []string{std, "internal/made", "bpf"}},
	{dir: "internal/made", only: []string{std}},
	{dir: "internal/p4rt", never: []string{switchCode, "internal/switchagent", "internal/connmgr", "cmd"}},
	{dir: "internal/identity", only: []string{std, "google.golang.org/grpc", "internal/identity"}, except: []string{"internal/identity/identitytest"}},
	{dir: "internal/fanout", only: []string{std}},
	{dir: "internal/nbd", only: []string{std, "golang.org/x/sync"}},
	{dir: "internal/cmdline", only: []string{std, "github.com/spf13"}},
	{dir: "internal/failure", only: []string{std, "google.golang.org", "api"}},
	{dir: "internal/grpcwindow", only: []string{"google.golang.org/grpc"}},
	{dir: "internal/grpcclient", only: []string{std, "golang.org/x/sys/unix", "google.golang.org/grpc", "internal/failure", "internal/grpcwindow", "internal/identity"}},
	{dir: "internal/unixsock", only: []string{std, "golang.org/x/sys/unix", "google.golang.org/grpc", "api", "internal/failure"}},
	{dir: "internal/grpcserver", never: []string{switchCode, "internal/p4rt", "internal/switchagent", "internal/connmgr", "pkg", "cmd"}},
	{dir: "internal/mpi", only: []string{std}},
	{dir: "internal/labca", only: []string{std, "internal/identity"}},
	{dir: "internal/routing", never: []string{switchCode, "internal/p4rt", "internal/switchagent", "internal/connmgr", "cmd"}},
	{dir: "internal/routing/liveness", only: []string{std}},
	{dir: "internal/switchagent", never: []string{switchCode, "internal/connmgr", "cmd"}},
	{dir: "internal/switchagent/unicast", only: []string{std, "pkg/bifurcation", "internal/routing", "internal/switchspec"},
		never: []string{gobgp, netlink, "internal/routing/static", "internal/routing/kernel", "internal/routing/bgp"}},
	{dir: "internal/switchagent/links", only: []string{std, "internal/routing/liveness", "internal/switchspec"}},
	{dir: "internal/switchagent/groups", only: []string{std, "golang.org/x/sync", "pkg/bifurcation", "internal/failure", "internal/p4rt", "internal/store",
		"internal/switchagent/config", "internal/switchagent/planner", "internal/switchagent/unicast", "internal/switchspec"}},
	{dir: "internal/switchagent/planner", only: []string{std, "pkg/bifurcation"}},
	{dir: "internal/switchagent/config", only: []string{std, "internal/strictyaml", "internal/routing", "internal/switchspec"},
		never: []string{gobgp, netlink, "internal/routing/static", "internal/routing/kernel", "internal/routing/bgp"}},
	{dir: "internal/strictyaml", only: []string{std, "go.yaml.in/yaml"}},
	{dir: "internal/topology", only: []string{std, "internal/strictyaml", "internal/routing"},
		never: []string{gobgp, netlink, "internal/routing/static", "internal/routing/kernel", "internal/routing/bgp"}},
	{dir: "internal/store", only: []string{std, "go.etcd.io/bbolt", "internal/durable"}},
	{dir: "internal/durable", only: []string{std, "golang.org/x/sys/unix"}},
	{dir: "internal/connmgr", never: []string{switchCode, "internal/p4rt", "internal/switchagent", "cmd"}},
	{dir: "internal/connmgr/health", only: []string{std}},
	{dir: "internal/connmgr/agent", only: []string{std, "golang.org/x/sync", "google.golang.org", "api", "internal/failure", "internal/group", "internal/grpcclient"}},
	{dir: "internal/group", only: []string{std, "api/mcrdma/v1", "google.golang.org/protobuf", "internal/failure", "pkg/rocev2", "pkg/rdmcfallback/schedule"}},
	{dir: "internal/connmgr/config", only: []string{std, "internal/strictyaml", "pkg/rdmcfallback/schedule"}},
	{dir: "cmd/cmd-daemon/internal/lab", only: []string{std, "github.com/google/renameio", "internal/connmgr/config", "internal/identity", "internal/labca", "internal/strictyaml", "internal/topology"}},
	{dir: "cmd/mcblock", never: []string{switchCode, "internal/switchagent", "internal/connmgr/agent", "internal/p4rt", gobgp}},
	{dir: "cmd/mcblock/internal/config", only: []string{std, "internal/strictyaml"}},
	{dir: "cmd/internal/findings", only: []string{std, "cmd/internal/cli"}},
	{dir: "cmd/switchctl/internal/planning", only: []string{std, "pkg/bifurcation", "internal/connmgr/config", "internal/topology", "internal/strictyaml"}},
	{dir: "internal/dashboard", only: []string{std, "golang.org/x/sync", "google.golang.org/protobuf", "google.golang.org/grpc", "api", "internal/grouptree", "pkg/rocev2"}},
	{dir: "internal/simnet", only: []string{std, "internal/topology", "pkg/ackmerge", "pkg/bifurcation", "pkg/qp", "pkg/rdmcfallback/engine", "pkg/rdmcfallback/schedule",
		"pkg/rocev2", "internal/simnet"}, never: []string{"internal/switchagent", "internal/connmgr", "cmd"}},
	{dir: "cmd/internal/plot", only: []string{std, "cmd/internal/cli"}},
}

// A monopoly names what only some directories may import directly.
type monopoly struct {
	what    string
	holders []string
}

// monopolies; the tests below tests/ are no production code and stand outside.
var monopolies = []monopoly{
	{gobgp, []string{"internal/routing/bgp"}},
	{netlink, []string{"internal/routing/kernel", "internal/hostnet"}},
	{"github.com/spf13/cobra", []string{"cmd", "internal/cmdline"}},
	{"internal/simnet", []string{"internal/simnet", "cmd/mcsim"}},
	{etcdClient, []string{"pkg/replica/osdmap/etcd"}},
	{etcdServer, []string{"pkg/replica/osdmap/embedded"}},
	{"internal/testenv", nil},
	{"internal/identity/identitytest", nil},
	{"tests", nil},
	{"github.com/gopacket/gopacket", []string{"cmd/switchctl", "internal/pcapfile", "internal/softswitch/ports"}}, // capture files
	{"github.com/google/go-cmp", nil},
	{"github.com/cockroachdb/datadriven", nil},
	{"go.uber.org/goleak", nil},
	{"pgregory.net/rapid", nil},
	{"github.com/anishathalye/porcupine", nil},
}

// A pkgInfo is what go list says of a package. Deps includes Imports.
type pkgInfo struct {
	ImportPath    string
	Imports, Deps []string
	Standard      bool
}

func TestImportDirections(t *testing.T) {
	pkgs := goList[pkgInfo](t, "-deps", "-json=ImportPath,Imports,Deps,Standard")
	own, found := wrongImports(pkgs)
	found = append(found, unlisted(t, pkgs)...)
	for _, v := range found {
		t.Error(v)
	}
	if own == 0 {
		t.Fatal("go list found no package of this module")
	}
	t.Logf("%d packages", own)
}

// goList is what go list says, as JSON, of the packages of the module, and by the flags of others.
func goList[T any](t *testing.T, flags ...string) (list []T) {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"list"}, flags...), "./...")...)
	cmd.Dir = root
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); err == nil; {
		var p T
		if err = dec.Decode(&p); err == nil {
			list = append(list, p)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return list
}

// unlisted lists the packages that docs/architecture.md does not name: each has a line in
// its table, or its last element is in the line of the package above it.
func unlisted(t *testing.T, pkgs []pkgInfo) (found []string) {
	page := architecture(t)
	line := func(dir string) string {
		_, rest, _ := strings.Cut(page, "\n| `"+dir+"`")
		first, _, _ := strings.Cut(rest, "\n")
		return first
	}
	for _, p := range pkgs {
		dir, own := strings.CutPrefix(p.ImportPath, module)
		if !own || strings.HasPrefix(dir, "tests/") || strings.HasPrefix(dir, "scripts/") || line(dir) != "" {
			continue
		}
		above := strings.TrimSuffix(path.Dir(dir), "/internal")
		if !strings.Contains(line(above), "`"+path.Base(dir)+"`") && !strings.Contains(page, "`"+dir+"`") {
			found = append(found, "docs/architecture.md does not say what "+dir+" holds")
		}
	}
	return found
}

func architecture(t *testing.T) string {
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// TestNamedFiles: the files that the architecture's "What happens when" names are there. A
// name that is not from the top is in the directory of the one before it in its row.
func TestNamedFiles(t *testing.T) {
	_, section, ok := strings.Cut(architecture(t), "## What happens when")
	section, _, more := strings.Cut(section, "\n## ")
	if !ok || !more {
		t.Fatal("the section is not there")
	}
	names := 0
	for row := range strings.SplitSeq(section, "\n") {
		dir := ""
		for i, name := range strings.Split(row, "`") {
			if i%2 == 0 || !strings.Contains(name, "/") && !strings.Contains(name, ".") {
				continue
			}
			names++
			if info, err := os.Stat(filepath.Join(root, name)); err == nil {
				if dir = name; !info.IsDir() {
					dir = path.Dir(name)
				}
			} else if _, err := os.Stat(filepath.Join(root, dir, name)); err != nil {
				t.Errorf("%s: no file %s, and none in %s", row, name, dir)
			}
		}
	}
	if names < 50 {
		t.Errorf("%d names only", names)
	}
}

// wrongImports lists the imports that the tables forbid, and counts the
// module's own packages.
func wrongImports(pkgs []pkgInfo) (own int, found []string) {
	standard := map[string]bool{"C": true, "unsafe": true}
	for _, p := range pkgs {
		standard[p.ImportPath] = p.Standard
	}
	short := func(path string) string {
		if standard[path] {
			return std + " " + path // std's own internal/… is not ours
		}
		return strings.TrimPrefix(path, module)
	}
	for _, p := range pkgs {
		path, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok {
			continue
		}
		own++
		for _, l := range limits {
			if !within(path, l.dir) || anyWithin(path, l.except) {
				continue
			}
			for _, imp := range p.Imports {
				if l.only != nil && !anyWithin(short(imp), l.only) && !(standard[imp] && slices.Contains(l.only, std)) {
					found = append(found, path+" imports "+short(imp)+"; may import only "+strings.Join(l.only, ", "))
				}
			}
			for _, dep := range p.Deps {
				if anyWithin(short(dep), l.never) {
					found = append(found, path+" imports "+short(dep)+", directly or by way of others")
				}
			}
		}
		if within(path, "tests") {
			continue
		}
		for _, m := range monopolies {
			for _, imp := range p.Imports {
				if within(short(imp), m.what) && !anyWithin(path, m.holders) {
					found = append(found, path+" imports "+short(imp)+"; only "+orTests(m.holders)+" may")
				}
			}
		}
	}
	return own, found
}

func anyWithin(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return within(path, d) })
}

func orTests(holders []string) string {
	return strings.Join(append(slices.Clone(holders), "tests"), ", ")
}

// The guard guards: each of these imports must be found, and nothing else.
func TestWrongImports(t *testing.T) {
	for _, c := range []struct {
		pkg, imp string
		deps     []string
		want     bool
	}{
		{"pkg/rocev2", "pkg/qp", nil, true},
		{"pkg/rocev2", "golang.org/x/sys/unix", nil, true},
		{"pkg/rocev2", "fmt", nil, false},
		{"pkg/qp", "pkg/rocev2", nil, false},
		{"pkg/qp", "pkg/qp/rc", nil, true},
		{"pkg/qp/rc", "pkg/qp", nil, false},
		{"pkg/qp/rc", "pkg/qp/softroce", nil, true},
		{"pkg/qp/softroce/link", "pkg/rocev2", nil, true},
		{"pkg/qp/softroce", "pkg/qp/rc", nil, false},
		{"pkg/qp/softroce", "pkg/qp/rc", []string{"internal/connmgr"}, true},
		{"pkg/ackmerge", "pkg/rocev2", nil, false},
		{"pkg/ackmerge", "pkg/qp", nil, true},
		{"pkg/bifurcation", "internal/p4rt", nil, true},
		{"pkg/rdmcfallback", "pkg/qp/softroce", nil, true},
		{"pkg/rdmcfallback/tcp", "pkg/qp", nil, true},
		{"pkg/rdmcfallback/rdma", "pkg/qp", nil, false},
		{"pkg/rdmcfallback/rdma", "pkg/rdmcfallback/tcp", nil, false},
		{"pkg/rdmcfallback/rdma", "pkg/qp/softroce", []string{"pkg/qp/softroce"}, true},
		{"pkg/rdmcfallback/schedule", "pkg/rdmcfallback", nil, true},
		{"pkg/rdmcfallback/engine", "pkg/rdmcfallback/schedule", nil, false},
		{"pkg/rdmcfallback/engine", "pkg/rdmcfallback", nil, true},
		{"pkg/mcrdma", "pkg/qp", []string{"internal/softswitch/pre"}, true},
		{"internal/switchspec", "github.com/p4lang/p4runtime/go/p4/v1", nil, true},
		{"internal/softswitch/pre", "fmt", []string{"internal/switchagent"}, true},
		{"internal/p4rt", "fmt", []string{"internal/softswitch/program"}, true},
		{"internal/switchagent", "internal/p4rt", []string{"internal/p4rt"}, false},
		{"internal/switchagent/unicast", "internal/routing", nil, false},
		{"internal/switchagent/unicast", "internal/routing/static", nil, true},
		{"internal/switchagent/unicast", "internal/p4rt", nil, true},
		{"internal/switchagent/links", "internal/routing/liveness", nil, false},
		{"internal/switchagent/links", "internal/routing", nil, true},
		{"internal/switchagent/planner", "internal/switchspec", nil, true},
		{"internal/switchagent/config", "internal/routing", nil, false},
		{"internal/switchagent/config", "internal/routing/static", nil, true},
		{"internal/switchagent/config", "internal/store", nil, true},
		{"internal/strictyaml", "internal/routing", nil, true},
		{"internal/topology", "internal/routing", nil, false},
		{"internal/topology", "internal/routing/bgp", nil, true},
		{"internal/store", "go.etcd.io/bbolt", nil, false},
		{"internal/store", "golang.org/x/sys/unix", nil, true},
		{"internal/switchagent", "github.com/osrg/gobgp/v3/api", nil, true},
		{"internal/routing/bgp", "github.com/osrg/gobgp/v3/api", nil, false},
		{"internal/routing/kernel", "github.com/vishvananda/netlink", nil, false},
		{"internal/routing/static", "github.com/vishvananda/netlink", nil, true},
		{"internal/connmgr", "internal/simnet", nil, true},
		{"pkg/qp/softroce", "github.com/gopacket/gopacket/layers", nil, true},
		{"tests/ptf", "github.com/gopacket/gopacket", nil, false},
		{"cmd/switchctl", "tests/interop", nil, true},
	} {
		full := func(path string) string {
			if path == "fmt" || strings.Contains(path, ".") {
				return path
			}
			return module + path
		}
		p := pkgInfo{ImportPath: module + c.pkg, Imports: []string{full(c.imp)}}
		for _, d := range append(c.deps, c.imp) {
			p.Deps = append(p.Deps, full(d))
		}
		pkgs := []pkgInfo{{ImportPath: "fmt", Standard: true}, p}
		_, found := wrongImports(pkgs)
		if got := len(found) > 0; got != c.want {
			t.Errorf("%s importing %s with %v: found %q, want a finding: %v", c.pkg, c.imp, c.deps, found, c.want)
		}
	}
}
