package packaging

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// systemEnv is the directory of the system that the package is tried on: by default that
// of this machine, or one that debootstrap has made, for example.
const systemEnv = "MCRDMA_DEB_SYSTEM"

// boot is what the first process of a machine does: it lays a file system in memory over
// that of a system ($1, at $2), so that nothing of it changes, with packages ($3) in
// /mnt, and becomes systemd. What the system itself would run is left out.
const boot = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay -o lowerdir="$1",upperdir="$2/upper",workdir="$2/work" overlay "$2/root"
root=$2/root
mount --bind "$3" "$root/mnt"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for d in null zero full random urandom tty; do touch "$root/dev/$d"; mount --bind "/dev/$d" "$root/dev/$d"; done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
rm -rf "$root"/etc/systemd/system/* "$root"/etc/rc?.d "$root/etc/fstab" "$root/etc/crypttab" "$root/etc/mcrdma" "$root/var/lib/mcrdma" "$root/usr/sbin/policy-rc.d" "$root/var/lib/man-db/auto-update"
cd "$root"
pivot_root . .
umount -l .
systemd=/lib/systemd/systemd
[ -x $systemd ] || systemd=/usr/lib/systemd/systemd
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin $systemd --log-target=journal --show-status=no systemd.unit=basic.target
`

// A machine is a system that runs systemd, in namespaces of its own.
type machine struct {
	t   *testing.T
	pid int // of systemd
	log testenv.SyncBuffer
}

// start has a machine run until the test ends. Its packages are in /mnt.
func start(t *testing.T, packages string) *machine {
	t.Helper()
	runtime.LockOSThread() // the machine ends with this thread
	m := &machine{t: t}
	group := newGroup(t)
	system := os.Getenv(systemEnv)
	if system == "" {
		system = "/"
	}
	// The root of a cgroup namespace is where the process is that makes it.
	cmd := exec.Command("unshare", "--cgroup", "sh", "-c", boot, "sh", system, t.TempDir(), packages) //nolint:gosec // it is this test's
	cmd.Stdout, cmd.Stderr = &m.log, &m.log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		UseCgroupFD: true, CgroupFD: int(group.Fd()), Setsid: true, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		testenv.Skip(t, "no namespaces: %v", err)
	}
	m.pid = cmd.Process.Pid
	var failed error
	ended := make(chan struct{})
	go func() { failed = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // all others end with it
		<-ended
	})
	for begun := time.Now(); ; {
		out, err := m.try("systemctl", "is-active", "basic.target")
		if err == nil {
			return m
		}
		select {
		case <-ended:
			testenv.Skip(t, "systemd does not run in namespaces here: %v\n%s", failed, m.log.String())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("systemd has not started: %s%s", out, m.log.String())
		}
	}
}

// newGroup makes a control group that goes with the test.
func newGroup(t *testing.T) *os.File {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if !slices.Contains(fields, "cgroup2") {
			continue
		}
		name, err := os.MkdirTemp(fields[4], "mcrdma-deb-")
		if err != nil {
			testenv.Skip(t, "no control groups: %v", err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = f.Close()
			if err := removeGroup(name); err != nil {
				t.Error(err)
			}
		})
		return f
	}
	testenv.Skip(t, "there is no file system of type cgroup2")
	return nil
}

// removeGroup removes a control group and those in it. Where the last process of one was
// killed it may be busy for a moment.
func removeGroup(name string) error {
	entries, err := os.ReadDir(name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeGroup(filepath.Join(name, e.Name())); err != nil {
				return err
			}
		}
	}
	for begun := time.Now(); ; {
		if err = syscall.Rmdir(name); err == nil || time.Since(begun) > 10*time.Second {
			return err
		}
		<-time.After(5 * time.Millisecond)
	}
}

// try runs a command in the machine.
func (m *machine) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(m.pid), "-a", "--",
		"env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}, args...)...) //nolint:gosec // it is this test's
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run runs a command that has to succeed.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		why, _ := m.try("sh", "-c", "systemctl status --no-pager cmd-daemon 'switchctl-agent@*'; journalctl --no-pager -o cat -n 30")
		m.t.Fatalf("%s: %v\n%s\n%s", strings.Join(args, " "), err, out, why)
	}
	return out
}

// says runs a command, whatever its exit code, that has to say something.
func (m *machine) says(want string, args ...string) {
	m.t.Helper()
	if out, _ := m.try(args...); out != want {
		m.t.Errorf("%s: %q, want %q", strings.Join(args[:min(len(args), 3)], " "), out, want)
	}
}

// service is a unit that runs, and its process.
func (m *machine) service(unit string) string {
	m.t.Helper()
	m.says("active", "systemctl", "is-active", unit)
	return m.run("systemctl", "show", "--value", "-p", "MainPID", unit)
}

// agent is the configuration of an agent, beside what "cmd-daemon init" makes.
const agent = `name: torA
address: 192.0.2.9
mac: "02:00:00:00:01:00"
prefixes: [192.0.2.0/24]
listen: 192.0.2.11:9560
tls: {cert: torA/switch.crt, key: torA/switch.key, ca: torA/ca.crt}
routing: {source: static, topology: fabric.yaml}
ports: [{port: 1}]
`

const fabric = `switches: [{name: torA, address: 192.0.2.9, prefixes: [192.0.2.0/24]}]
hosts: [{name: h1, address: 192.0.2.11}]
links: [{a: {node: h1}, b: {node: torA, port: 1}}]
`

// repack makes an old and a new version of the package, uncompressed, which saves time.
func repack(t *testing.T, name, dir string) {
	t.Helper()
	files := filepath.Join(t.TempDir(), "package")
	command(t, "dpkg-deb", "-R", name, files)
	control := filepath.Join(files, "DEBIAN/control")
	text, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	version := "Version: " + strings.TrimSpace(command(t, "dpkg-deb", "-f", name, "Version")) + "\n"
	_ = os.Remove(filepath.Join(files, "DEBIAN/conffiles")) // there are none, and dpkg-deb takes no empty list
	for as, number := range map[string]string{"old": "1", "new": "2"} {
		next := bytes.Replace(text, []byte(version), []byte("Version: "+number+"\n"), 1)
		if err := os.WriteFile(control, next, 0o644); err != nil { //nolint:gosec // as in any package
			t.Fatal(err)
		}
		command(t, "dpkg-deb", "--root-owner-group", "-Znone", "-b", files, filepath.Join(dir, as+".deb"))
	}
}

// TestMachine has the package live on a machine: installed, started, upgraded, removed,
// installed again, purged.
func TestMachine(t *testing.T) {
	name := deb(t)
	if os.Geteuid() != 0 {
		testenv.Skip(t, "a machine takes root")
	}
	packages := t.TempDir()
	repack(t, name, packages)
	m := start(t, packages)
	_, _ = m.try("dpkg", "--purge", "mcrdma") // if this machine has it
	m.run("sh", "-c", "rm -rf /root/lab; ip link set lo up; ip address add 192.0.2.11/24 dev lo")

	m.run("dpkg", "-i", "/mnt/old.deb")
	m.says("inactive", "systemctl", "is-active", "cmd-daemon")
	m.says("disabled", "systemctl", "is-enabled", "cmd-daemon")
	for _, unit := range []string{"cmd-daemon.service", "mcblock.service", "switchctl-agent@x.service"} {
		if out := m.run("systemd-analyze", "verify", "--man=no", unit); strings.Contains(out, unit) {
			t.Error(out) // others' units may be as they want
		}
	}

	// As docs/daemon.md has it.
	m.run("sh", "-c", `cd /root && cmd-daemon init lab --host h1=192.0.2.11 --switch torA=192.0.2.11:9560,h1 --admin me && mcblock init lab &&
		cp lab/h1/* /etc/mcrdma/ && cp -r lab/torA /etc/mcrdma/ && echo "$1" >/etc/mcrdma/torA.yaml && echo "$2" >/etc/mcrdma/fabric.yaml &&
		chown -R mcrdma: /etc/mcrdma`, "sh", agent, fabric)
	m.run("systemd-run", "--quiet", "--unit=tor", "switchctl", "softswitch", "--no-p4", "--grpc-server-addr", "127.0.0.1:9559", "--cpu-port", "510")
	units := []string{"cmd-daemon.service", "switchctl-agent@torA.service"}
	m.run("systemctl", "enable", "--now", units[0], units[1])
	const volumes = "mcblock.service"
	m.run("systemctl", "enable", "--now", volumes) // it needs the daemon
	kept := m.service(volumes)
	m.run("mcblock", "volume", "create", "vol", "--size", "16M")
	m.run("mcblock", "bench", "vol", "--write", "--runtime", "100ms")
	if out := m.run("mcblock", "doctor"); !strings.HasPrefix(out, "all is well") {
		t.Error(out)
	}
	before := map[string]string{}
	for _, u := range units {
		before[u] = m.service(u)
		if user := m.run("stat", "-c", "%U", "/proc/"+before[u]); user != "mcrdma" {
			t.Errorf("%s runs as %s", u, user)
		}
	}
	if out := m.run("cmd-daemon", "status"); !strings.HasPrefix(out, "h1, ") {
		t.Error(out)
	}
	m.run("switchctl", "status", "--agent", "192.0.2.11:9560", "--tls-cert", "/root/lab/me/admin.crt", "--tls-key", "/root/lab/me/admin.key", "--tls-ca", "/root/lab/me/ca.crt")

	// What is the administrator's stays as it is in all that follows.
	const content = "find /etc/mcrdma -type f -exec md5sum {} + | sort; ls -lRn /etc/mcrdma"
	config := m.run("sh", "-c", content)
	same := func(after string) {
		t.Helper()
		if now := m.run("sh", "-c", content); now != config {
			t.Errorf("after the %s /etc/mcrdma was\n%s\nand not\n%s", after, now, config)
		}
	}
	m.run("dpkg", "-i", "/mnt/new.deb")
	same("upgrade")
	for _, u := range units {
		if pid := m.service(u); pid == before[u] {
			t.Errorf("%s: process %s of the old version runs still", u, pid)
		}
		m.says("enabled", "systemctl", "is-enabled", u)
	}
	if pid := m.service(volumes); pid != kept {
		t.Error("the upgrade has restarted mcblock, whose clients wait meanwhile")
	}
	// The upgrade restarts both at once. Status fails until the daemon has connected to the new agent, with
	// gRPC's backoff; then it has to stay well.
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(100 * time.Millisecond) {
		if _, err := m.try("cmd-daemon", "status"); err == nil {
			break
		}
	}
	m.run("cmd-daemon", "status")

	// Directories others may have, too.
	files := strings.Fields(m.run("sh", "-c", `for f in $(dpkg -L mcrdma); do [ -d "$f" ] || echo "$f"; done`))
	if len(files) < 50 {
		t.Errorf("the package has %d files", len(files))
	}

	m.run("dpkg", "-r", "mcrdma")
	same("removal")
	for _, u := range append(units, volumes) {
		m.says("inactive", "systemctl", "is-active", u)
	}
	m.says("", "find", "/proc", "-maxdepth", "1", "-user", "mcrdma") // processes
	gone := append([]string{"sh", "-c", `for f; do [ ! -e "$f" ] || echo "$f"; done; cd /; find etc run var/lib -xdev -not -path "var/lib/dpkg/*" -not -path "etc/mcrdma/*" \( -name "*mcrdma*" -o -name "switchctl*" -o -name "cmd-daemon*" -o -name "mcblock*" \) | sort`, "sh"}, files...)
	m.says("etc/mcrdma\nvar/lib/mcblock\nvar/lib/mcrdma", gone...)

	m.run("dpkg", "-i", "/mnt/old.deb")
	m.run("systemctl", "start", units[0], units[1])
	m.run("dpkg", "--purge", "mcrdma")
	same("purge")
	m.says("", "find", "/proc", "-maxdepth", "1", "-user", "mcrdma") // processes
	m.says("etc/mcrdma\nvar/lib/mcblock", gone...)
}
