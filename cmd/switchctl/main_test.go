package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/sample"
)

// The main thread cannot end; keep the labs off it.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Getenv("SWITCHCTL_TEST_MAIN") == "1" {
		main()
	}
	// GoBGP's servers, of labs, end with the process.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"),
		goleak.IgnoreAnyFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

const patience = 20 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// call runs a command line that ends by itself.
func call(args ...string) (code int, stdout, stderr string) {
	var out, errs testenv.SyncBuffer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code = run(cli.At(ctx, began), args, &out, &errs)
	return code, out.String(), errs.String()
}

// files writes the sample program into a directory.
func files(t testing.TB) (dir, json, info string) {
	t.Helper()
	dir = t.TempDir()
	json, info = filepath.Join(dir, "sample.json"), filepath.Join(dir, "sample.p4info.txtpb")
	must(t, os.WriteFile(json, sample.JSON, 0o644))
	must(t, os.WriteFile(info, sample.P4Info, 0o644))
	return dir, json, info
}

// TestUsage: errors of command lines are reported, with exit code 2.
func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"paths", `no subcommand "paths"; the subcommands are: `},
		{"agent x", `unexpected argument "x"`},
		{"agent --config nowhere.yaml --on-stop drop", `--on-stop "drop" is neither hold nor leave`},
		{"softswitch", "no program: name p4c's JSON file, or give --no-p4"},
		{"softswitch --nop4", "unknown flag: --nop4"},
		{"softswitch a.json b.json", "more than one program: a.json, b.json"},
		{"softswitch --no-p4 -i veth0", `--interface "veth0" is not PORT@INTERFACE, such as 0@veth0`},
		{"softswitch --no-p4 -i 512@veth0", `"512" is not one from 0 to 511`},
		{"softswitch --no-p4 -i -1@veth0", "not one from 0 to 511"},
		{"softswitch --no-p4 -i x@veth0", `"x" is not one from 0 to 511`},
		{"softswitch --no-p4 -i 1@", `"" cannot be a network interface's name`},
		{"softswitch --no-p4 -i 1@sixteen-letters-", "cannot be a network interface's name"},
		{"softswitch --no-p4 -i 1@a/b", "cannot be a network interface's name"},
		{"softswitch --no-p4 -i 1@a -i 1@b", `"1@b": port 1 is "1@a" already`},
		{"softswitch --no-p4 -i 1@a -i 2@a", `"2@a": a is port 1 already`},
		{"softswitch --no-p4 -i 1@udp:127.0.0.1:7000", "a tunnel takes two addresses"},
		{"softswitch --no-p4 -i 1@udp:localhost:7000,127.0.0.1:7001", `the local address "localhost:7000" is not IP:PORT`},
		{"softswitch --no-p4 -i 1@udp:127.0.0.1:7000,7001", `the remote address "7001" is not IP:PORT`},
		{"softswitch --no-p4 --cpu-port 512", "--cpu-port 512: ports are 1 to 511"},
		{"softswitch --no-p4 --cpu-port 70000", "--cpu-port 70000"},
		{"softswitch --no-p4 --cpu-port x", `--cpu-port "x" is not a whole number`},
		{"softswitch --no-p4 --cpu-port 511", "--cpu-port 511 is the drop port too"},
		{"softswitch --no-p4 --cpu-port 5 --drop-port 5", "is the drop port too"},
		{"softswitch --no-p4 --drop-port 0", "--drop-port 0"},
		{"softswitch --no-p4 --cpu-port 7 -i 7@a", "port 7 is the CPU port or the drop port"},
		{"softswitch --no-p4 -i 511@a", "port 511 is the CPU port or the drop port"},
		{"softswitch --no-p4 --buffer 0", "--buffer 0: want 1 to"},
		{"softswitch --no-p4 --buffer -5", "--buffer -5: want 1 to"},
		{"softswitch --no-p4 --priority-queues 9", "--priority-queues 9: a port has 1 to 8"},
		{"softswitch --no-p4 --priority-queues 0", "--priority-queues 0: a port has 1 to 8"},
		{"softswitch --no-p4 --queue-unit -1", "--queue-unit -1: want 1 to"},
		{"softswitch --no-p4 --queue-rate fast", `--queue-rate: traffic: invalid limits: "fast" is not a rate such as`},
		{"softswitch --no-p4 --max-mc-groups 65536", "--max-mc-groups 65536: want 1 to 65535"},
		{"softswitch --no-p4 --max-l2-entries -1", "cannot be negative"},
		{"softswitch --no-p4 --p4info x", "--p4info needs a program"},
		{"softswitch --no-p4 --log-level loud", `--log-level "loud": levels are trace, debug`},
		{"softswitch --no-p4 --log-console --log-file x", "--log-console and --log-file exclude each other"},
		{"softswitch --no-p4 --grpc-server-ssl", "--grpc-server-ssl takes --grpc-server-cert and --grpc-server-key"},
		{"softswitch --no-p4 --grpc-server-cert x --grpc-server-key y", "--grpc-server-cert, --grpc-server-key: TLS is off"},
		{"softswitch --no-p4 --grpc-server-ssl --grpc-server-cert x --grpc-server-key y --grpc-server-with-client-auth", "takes --grpc-server-cacert"},
		{"softswitch --no-p4 --use-files 3", "--use-files is not supported"},
		{"softswitch --no-p4 -- --dp-grpc-server-addr x", "--dp-grpc-server-addr is not supported"},
		{"softswitch --no-p4 --restore-state x", "--restore-state is not supported"},
		{"softswitch --no-p4 --packet-in x", "--packet-in is not supported"},
	} {
		code, stdout, stderr := call(strings.Fields(c.args)...)
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "--help") {
			t.Errorf("%s: exit code %d, %q, %q; want 2 and %q", c.args, code, stdout, stderr, c.want)
		}
	}
}

// TestFailure: errors at the start are reported, with exit code 1, and nothing is left behind.
func TestFailure(t *testing.T) {
	dir, json, info := files(t)
	broken := filepath.Join(dir, "broken.json")
	must(t, os.WriteFile(broken, []byte(`{"header_types": 7}`), 0o644))
	busy, err := listen("127.0.0.1:0")
	must(t, err)
	defer busy.Close()
	addr := busy.Addr().String()
	const local = " --grpc-server-addr 127.0.0.1:0"
	for _, c := range []struct{ args, want string }{
		{"no.json" + local, "program: open no.json: no such file"},
		{broken + local, broken},
		{json + " --p4info no.txt" + local, "--p4info: open no.txt: no such file"},
		{json + " --p4info " + json + local, "it is not P4Info, neither as text"},
		{broken + " --p4info " + info + local, "P4 device config"},
		{"--no-p4 --grpc-server-addr " + addr, "another program listens there (ss -ltnp says which); end it, or choose another address for --grpc-server-addr"},
		{"--no-p4 --grpc-server-addr nonsense", "--grpc-server-addr nonsense"},
		{"--no-p4 -i 3@no-such-if" + local, "port 3: ports: interface no-such-if"},
		{"--no-p4 -i 3@udp:192.0.2.1:7000,127.0.0.1:7001" + local, "port 3: ports: tunnel"},
		{"--no-p4 -i 3@udp:127.0.0.1:0,0.0.0.0:7001" + local, "is not one host and port"},
		{"--no-p4 --pcap=/no/such -i 3@udp:127.0.0.1:0,127.0.0.1:7001" + local, "--pcap"},
		{"--no-p4 --log-file /no/such/file" + local, "--log-file"},
		{"--no-p4 --ready-file /no/such/file" + local, "--ready-file"},
		{"--no-p4 --grpc-server-ssl --grpc-server-cert no.pem --grpc-server-key no.pem" + local, "--grpc-server-cert no.pem"},
	} {
		code, stdout, stderr := call(append([]string{"softswitch"}, strings.Fields(c.args)...)...)
		if code != cli.ExitFailure || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, %q, %q; want 1 and %q", c.args, code, stdout, stderr, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"":                          "softswitch",
		"--help":                    "softswitch",
		"--version":                 "switchctl",
		"softswitch --help":         "switchctl softswitch --no-p4 -i 0@veth0",
		"softswitch -h":             "--queue-rate",
		"softswitch -v":             "version",
		"softswitch --json-version": jsonVersion,
	} {
		code, stdout, stderr := call(strings.Fields(args)...)
		if code != cli.ExitOK || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("%q: exit code %d, %q, %q; want %q", args, code, stdout, stderr, want)
		}
		if strings.Contains(stdout, "--thrift-port P") || strings.Contains(stdout, "nanolog") {
			t.Errorf("%q shows flags that mean nothing", args)
		}
	}
}

// TestDefaultAddress: by default, no other machine can connect.
func TestDefaultAddress(t *testing.T) {
	var f softswitchFlags
	f.add(&cobra.Command{})
	o, err := f.options([]string{"a.json"}, io.Discard)
	must(t, err)
	if a, err := netip.ParseAddrPort(o.grpc); err != nil || !a.Addr().IsLoopback() || a.Port() != 9559 {
		t.Errorf("%q, %v", o.grpc, err)
	}
	if o.cpuPort != 0 || o.dropPort != 511 || o.rate != (traffic.Rate{}) ||
		o.traffic != (traffic.Config{Memory: traffic.Memory{Shared: traffic.DefaultShared}, Classes: 2}) || o.logLevel != "info" {
		t.Errorf("%+v", o)
	}
}

// TestExamples: the examples of the help are valid command lines.
func TestExamples(t *testing.T) {
	lines := strings.Split(strings.ReplaceAll(softswitchExamples, "\\\n", " "), "\n")
	n := 0
	for _, l := range lines {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		n++
		// This makes it end: everything is checked before the missing file.
		args := append(strings.Fields(l)[1:], "--log-file", "/no/such/file")
		if strings.Contains(l, "--log-console") {
			args = append(strings.Fields(strings.ReplaceAll(l, "--log-console", ""))[1:], "--log-file", "/no/such/file")
		}
		if code, _, stderr := call(args...); code != cli.ExitFailure || !strings.Contains(stderr, "--log-file") {
			t.Errorf("%s: exit code %d, %s", l, code, stderr)
		}
	}
	if n < 5 {
		t.Errorf("%d examples", n)
	}
}

func TestArgs(t *testing.T) {
	for in, want := range map[string]string{
		"":                                  "",
		"other -- --pcap x":                 "other -- --pcap x",
		"softswitch a.json -- --cpu-port 5": "softswitch a.json --cpu-port 5",
		"softswitch --no-p4 --":             "softswitch --no-p4",
		"softswitch --pcap dir a.json":      "softswitch --pcap=dir a.json",
		"softswitch --pcap a.json":          "softswitch --pcap a.json",
		"softswitch --pcap -- a.json":       "softswitch --pcap a.json",
		"softswitch --pcap=dir a.json":      "softswitch --pcap=dir a.json",
		"softswitch a.json --pcap":          "softswitch a.json --pcap",
		"softswitch --pcap --log-console":   "softswitch --pcap --log-console",
		"softswitch -i 0@a -i 1@b --no-p4":  "softswitch -i 0@a -i 1@b --no-p4",
	} {
		if got := strings.Join(softswitchArgs(strings.Fields(in)), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzParsePort(f *testing.F) {
	for _, s := range []string{"0@veth0", "511@udp:127.0.0.1:7000,[::1]:7001", "1@udp:,", "@", "1@"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePort(s)
		if err != nil {
			return
		}
		if p.number > 511 || (p.name == "") != p.local.IsValid() || p.local.IsValid() != p.remote.IsValid() {
			t.Fatalf("%q: %+v", s, p)
		}
		back := fmt.Sprintf("%d@%s", p.number, p.name)
		if p.name == "" {
			back = fmt.Sprintf("%d@udp:%v,%v", p.number, p.local, p.remote)
		}
		if again, err := parsePort(back); err != nil || again != p {
			t.Fatalf("%q: %+v, but %q: %+v, %v", s, p, back, again, err)
		}
	})
}

// A process is the program in its own process.
type process struct {
	*exec.Cmd
	ready  string // its first line
	stderr *testenv.SyncBuffer
}

func startProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command("/proc/self/exe", args...), stderr: &testenv.SyncBuffer{}}
	p.Env = append(append(os.Environ(), "SWITCHCTL_TEST_MAIN=1"), env...)
	p.Stderr = p.stderr
	out, err := p.StdoutPipe()
	must(t, err)
	must(t, p.Start())
	late := time.AfterFunc(patience, func() { _ = p.Process.Kill() })
	t.Cleanup(func() {
		late.Stop()
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	if p.ready, err = bufio.NewReader(out).ReadString('\n'); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return p
}

// TestSignals: SIGUSR1 shows counters, SIGTERM and SIGINT end the switch in order.
func TestSignals(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("optional: signals are tested on Linux")
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		file := filepath.Join(t.TempDir(), "ready")
		p := startProcess(t, nil, "softswitch", "--no-p4", "-i", "3@udp:127.0.0.1:0,127.0.0.1:9", "--device-id", "7", "--ready-file", file,
			"--thrift-port", "9090", "--", "--grpc-server-addr", "127.0.0.1:0")
		if !strings.HasPrefix(p.ready, "ready: P4Runtime on 127.0.0.1:") || !strings.Contains(p.ready, "device 7, 1 ports, no program yet") {
			t.Fatalf("%q, %s", p.ready, p.stderr)
		}
		addr, err := os.ReadFile(file)
		if err != nil || !strings.Contains(p.ready, strings.TrimSpace(string(addr))) {
			t.Errorf("ready file: %q, %v", addr, err)
		}
		must(t, p.Process.Signal(syscall.SIGUSR1))
		for end := time.Now().Add(patience); !strings.Contains(p.stderr.String(), "msg=counters port=3 name=") && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		must(t, p.Process.Signal(sig))
		if err := p.Wait(); err != nil {
			t.Errorf("%v: %v: %s", sig, err, p.stderr)
		}
		if n := strings.Count(p.stderr.String(), "msg=counters port=3 name="); n != 2 {
			t.Errorf("counters were shown %d times: %s", n, p.stderr)
		}
		if !strings.Contains(p.stderr.String(), "note: --thrift-port has no effect: ") {
			t.Errorf("no note: %s", p.stderr)
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("the ready file is still there: %v", err)
		}
	}
}

// TestLogFileMoved: after SIGUSR2 the log goes on in a new file of the same name.
func TestLogFileMoved(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("optional: signals are tested on Linux")
	}
	log := filepath.Join(t.TempDir(), "log")
	p := startProcess(t, nil, "softswitch", "--no-p4", "-i", "3@udp:127.0.0.1:0,127.0.0.1:9", "--log-file", log, "--grpc-server-addr", "127.0.0.1:0")
	must(t, os.Rename(log, log+".1"))
	must(t, p.Process.Signal(syscall.SIGUSR2))
	end := time.Now().Add(patience)
	for _, err := os.Stat(log); err != nil && time.Now().Before(end); _, err = os.Stat(log) {
		time.Sleep(time.Millisecond)
	}
	must(t, p.Process.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil {
		t.Errorf("%v: %s", err, p.stderr)
	}
	for name, want := range map[string]string{log + ".1": "the switch runs", log: "msg=counters port=3"} {
		if b, err := os.ReadFile(name); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %s, %v", name, b, err)
		}
	}
}
