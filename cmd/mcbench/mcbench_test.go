package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/inproc"
)

// commandEnv makes the test's program run as mcbench.
const commandEnv = "MCBENCH_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" || os.Getenv(innerEnv) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/osrg/gobgp/v3/pkg/server.(*BgpServer).Serve"),
		goleak.IgnoreAnyFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

// command runs the command.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err testenv.SyncBuffer
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

// TestUsage: impossible options are reported, with the flag, and the exit code is 2.
func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"lat", "--receivers HOST,… is needed"},
		{"lat -r h2 -s 0", `--size "0": want numbers from 1`},
		{"lat -r h2 -s 1G", `--size "1G"`},
		{"lat -r h2 -s 9999M", `--size "9999M"`},
		{"lat -r h2 -s ,", "want at least one of each"},
		{"bw -r h2 -t 5000", `--depth "5000": want numbers from 1 to 4096`},
		{"bw -r h2 -t 2000 --check", "--depth 2000 is more"},
		{"bw -r h2 -s 256M -t 64", "which gives 1073741824 at most"},
		{"lat -r h2 --way ring", `no way "ring"; the ways are: multicast, fan-out, chain, rdmc`},
		{"compare -r h2 --rounds 0", "--rounds 0"},
		{"compare -r h2 --ways ,", "want at least one of each"},
		{"lat -r h2 -n 0", "--iterations 0"},
		{"lat -r h2 --warm-up -1", "--warm-up -1"},
		{"lat -r h2 -D -1s", "--duration -1s"},
		{"lat -r h2 --timeout 0s", "--timeout 0s"},
		{"lat -r h2 --transport ip", `--transport "ip"`},
		{"lat -r h2 --loss 1/1024", "go with --lab"},
		{"lat -r h2 --rate 10mbit", "go with --lab"},
		{"lat -r h2 --dead-after 3s", "goes with --lab"},
		{"lat -r h2 --topology x.yaml", "go with --lab"},
		{"lat -r h2 --fabric-rate 1gbit", "go with --lab"},
		{"lat --lab --topology none.yaml", "no such file"},
		{"lat --lab --topology ../../internal/lab/racks.yaml --loss 1/64", "does not go with --topology"},
		{"lat --lab --topology ../../internal/lab/racks.yaml -r h1", "receivers are h2, h3, h4"},
		{"lat --lab --link-rate h1:spine=1gbit", "no link between"},
		{"lat --lab --dead-after 199ms", "want 200ms to 1m0s"},
		{"lat --lab --loss 2", `--loss "2"`},
		{"lat --lab --loss 1/0", `--loss "1/0"`},
		{"lat --lab --loss x", `--loss "x"`},
		{"lat --lab --rate fast", `--rate "fast": want bits a second`},
		{"lat --lab --rate 100", `--rate "100": want bits a second`},
		{"lat --lab -r h7", "the lab's receivers are h2, h3, h4"},
		{"lat -r h2,h3,h2", `"h2" is there twice`},
		{"lat -r h2,", `--receivers "h2,": a name is empty`},
		{"coll -r h1,", `--hosts "h1,": a name is empty`},
		{"lat -r h2 --plot /nonexistent/x.svg", "there is no directory /nonexistent"},
		{"lat -r h2 extra", "extra"},
		{"lat -r h2 -o xml", "formats are text or json"},
		{"serve --service=", "--service is empty"},
		{"coll", "--hosts HOST,… is needed"},
		{"coll --lab --operations allreduce,sort", `no operation "sort"`},
		{"coll --lab --way ring", `no way "ring"`},
		{"coll --lab -r h2,h1", "--ranks"},
		{"coll --lab --ranks 17", "want 2 to 16"},
		{"coll --lab --ranks 1", "want 2 to 16"},
		{"coll -r h1,h2 --ranks 2", "--ranks goes with --lab"},
		{"coll --lab --block 15", "Block of 15 bytes"},
		{"coll --lab --slots 1000", "1000 Slots"},
		{"coll --lab --degree 2", "Degree 2"},
		{"coll -r h1,h2 --small 65536", "Small of 65536"},
		{"coll -r h1,h2 --interface nosuch", `no interface "nosuch"`},
		{"coll --lab --rounds 0", "--rounds 0"},
		{"coll --lab --mpi lam", `unknown MPI implementation "lam"`},
		{"coll --lab --mpi mpich --rate 10mbit", "unlimited"},
		{"coll --lab --interface eth0", "does not go with --lab"},
		{"coll -r h1,h2 --plot /nonexistent/x.svg", "there is no directory /nonexistent"},
		{"coll -r h1,h2 --plot x.png", "name a file that ends in .svg"},
		{"coll -r h1,h2 --plot .", "it is a directory"},
		{"coll -r h1,h2 --rate 10mbit", "goes with --lab"},
		{"coll --lab -n 0", "--iterations 0"},
		{"coll --lab -s 0", `--size "0"`},
		{"coll --lab --timeout 0s", "--timeout 0s"},
		{"coll --lab --dead-after 1ms", "want 200ms to 1m0s"},
		{"ride", "no subcommand"},
	} {
		code, out, err := command(t, strings.Fields(c.args)...)
		if code != 2 || out != "" || !strings.Contains(err, c.want) {
			t.Errorf("%s: exit code %d, %q, want 2 and %q", c.args, code, err, c.want)
		}
	}
	t.Setenv(cli.SocketEnv, filepath.Join(t.TempDir(), "none.sock"))
	if code, _, err := command(t, "lat", "-r", "h2", "--timeout", "300ms"); code != 1 || !strings.Contains(err, "daemon") {
		t.Errorf("without a daemon: exit code %d, %q", code, err)
	}
}

// hosts are daemons and receivers without switches.
type hosts struct {
	sender *mcrdma.Client
	out    testenv.SyncBuffer // of the receivers, and their errors
	addrs  []string           // of the receivers
	stop   func()             // ends the receivers
}

// eventually waits for a condition.
func eventually(t *testing.T, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("not within 2 minutes")
		}
	}
}

func startHosts(t *testing.T, names ...string) *hosts {
	t.Helper()
	h := &hosts{}
	ctx, cancel := context.WithCancel(context.Background())
	var served []chan struct{}
	h.stop = func() {
		cancel()
		for _, c := range served {
			<-c
		}
	}
	t.Cleanup(func() { h.stop() })
	var all []inproc.Host
	for i, name := range append([]string{"s"}, names...) {
		addr := testenv.Loopback()
		d, err := inproc.Start(t.Context(), inproc.Options{Name: name, Address: addr, Hosts: all})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, inproc.Host{Name: name, Address: addr})
		c, err := mcrdma.Dial(t.Context(), mcrdma.Options{Socket: d.Socket()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(); _ = d.Close() })
		if i == 0 {
			h.sender = c
			continue
		}
		h.addrs = append(h.addrs, addr.String())
		done := make(chan struct{})
		served = append(served, done)
		go func() {
			defer close(done)
			if err := serve(ctx, c, defaultService, &h.out); err != nil {
				_, _ = fmt.Fprintf(&h.out, "serve: %v\n", err) // it returns no error
			}
		}()
	}
	eventually(t, func() bool { return strings.Count(h.out.String(), "ready: ") == len(names) })
	return h
}

func (h *hosts) options(f flags) *options {
	f.receivers, f.service, f.timeout, f.quiet = h.addrs, defaultService, 20*time.Second, true
	f.rounds = max(f.rounds, 1)
	f.loss, f.rate = "0", "0"
	o, err := f.options()
	if err != nil {
		panic(err)
	}
	return o
}

// TestRelayed measures fan-out and a chain, with checks, and both receivers verify every write.
func TestRelayed(t *testing.T) {
	h := startHosts(t, "a", "b")
	o := h.options(flags{ways: "fan-out,chain,rdmc", sizes: "128,20K", depths: "1,4", count: 31, warmUp: 5, rounds: 2, check: true})
	b := &bench{o: o, client: h.sender, progress: cli.NewProgress(io.Discard), report: newReport(kinds[2], o, h.sender)}
	if err := b.all(t.Context()); err != nil {
		t.Fatal(err, h.out.String())
	}
	if n := len(b.report.Results); n != 3*2*2 {
		t.Fatalf("%d results", n)
	}
	for _, r := range b.report.Results {
		if r.Iterations != 31 || r.Min <= 0 || r.Min > r.Typical || r.Typical > r.Max || r.P99 > r.P999 || r.BWPeak < r.BWAverage*0.99 || r.LatencyRatio <= 0 || !r.Checked {
			t.Errorf("%+v", r)
		}
		if r.Way == "fan-out" && (r.LatencyRatio != 1 || r.BandwidthRatio != 1) {
			t.Errorf("fan-out to itself: %+v", r)
		}
	}
	eventually(t, func() bool { return strings.Count(h.out.String(), "36 writes of ") == 2*3*2*2 })
	for _, k := range kinds {
		var text bytes.Buffer
		if err := k.form(&text, new(cli.Output), b.report); err != nil || !strings.Contains(text.String(), "20480 ") {
			t.Errorf("%s: %v\n%s", k.name, err, &text)
		}
	}
}

// TestWrongContent: if wrong content arrives, the receivers report it and leave, and the sender
// fails.
func TestWrongContent(t *testing.T) {
	h := startHosts(t, "a", "b")
	o := h.options(flags{ways: "fan-out", sizes: "4096", depths: "4", count: 500, check: true})
	memory, err := h.sender.Alloc(4096 + shifts)
	if err != nil {
		t.Fatal(err)
	}
	copy(memory.Bytes(), pattern(4096))
	memory.Bytes()[4096+100] ^= 1 // in some writes
	s, err := newStream(t.Context(), h.sender, memory, o, ways[1], 4096, 4)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.run(t.Context(), 500, 0, func() {})
	if err == nil {
		err = s.verified(t.Context())
	}
	if !errors.Is(err, mcrdma.ErrMinSize) || !strings.Contains(err.Error(), "a receiver whose check fails leaves") {
		t.Errorf("error %v", err)
	}
	_ = s.close(t.Context())
	eventually(t, func() bool { return strings.Contains(h.out.String(), "WRONG CONTENT: write ") })
	h.stop()
	if !strings.Contains(h.out.String(), "serve: 1 group had wrong content") {
		t.Errorf("the receivers have not failed: %s", h.out.String())
	}
}

// TestLayout: names are parsed as they are written, foreign names are refused, and each byte of a
// write is checked.
func TestLayout(t *testing.T) {
	l := layoutOf(300, 4, true)
	if got, err := parseLayout(l.String(), uint64(l.length())); err != nil || got != l {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"", "log", l.String() + " ", strings.Replace(l.String(), "300", "0300", 1),
		"mcbench size=-1 slots=9 receives=4 check=true", "mcbench size=300 slots=9 receives=10 check=true"} {
		if _, err := parseLayout(name, uint64(l.length())); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
	if _, err := parseLayout(l.String(), maxServed+1); err == nil {
		t.Error("a region of any length is taken")
	}
	p, region := pattern(300), make([]byte, l.length())
	for _, seq := range []uint32{0, 1, 8, 9, 4095, 4096, 1 << 31} {
		slot := region[l.offset(seq):][:300]
		copy(slot, p[shift(seq):])
		if err := l.verify(region, p, seq); err != nil {
			t.Error(err)
		}
		if err := l.verify(region, p, seq+9); err == nil {
			t.Errorf("write %d looks like that before it in the same slot", seq+9)
		}
		for i := range slot {
			if slot[i] ^= 0x10; l.verify(region, p, seq) == nil {
				t.Fatalf("byte %d of write %d is not compared", i, seq)
			}
			slot[i] ^= 0x10
		}
	}
}

func FuzzParseLayout(f *testing.F) {
	f.Add("mcbench size=300 slots=9 receives=4 check=true", uint64(2701))
	f.Fuzz(func(t *testing.T, name string, length uint64) {
		if l, err := parseLayout(name, length); err == nil && (uint64(l.length()) != length || l.receives < 0 || l.offset(1<<32-1)+l.size > int(length)) {
			t.Errorf("%q of %d bytes: %+v", name, length, l)
		}
	})
}

// TestStatistics: results of known samples.
func TestStatistics(t *testing.T) {
	var own, other sample
	for i := range 1000 {
		d := time.Duration(i+1) * time.Microsecond
		own.latency, own.ends = append(own.latency, d), append(own.ends, time.Duration(i+1)*10*time.Microsecond)
		other.latency = append(other.latency, d/2)
	}
	own.n, own.took, own.cpu, own.uplink = 1000, 10*time.Millisecond, 3*time.Millisecond, 2000_000
	other.n, other.took, other.cpu = 1000, 5*time.Millisecond, time.Millisecond
	r := result{MsgSize: 1000, Depth: 8}
	r.summarize([]*sample{&own})
	r.compare([]*sample{&own}, []*sample{&other})
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"t_min", r.Min, 1}, {"t_max", r.Max, 1000}, {"t_typical", r.Typical, 501}, {"t_avg", r.Avg, 500.5}, {"t_stdev", r.Stdev, 288.675},
		{"99%", r.P99, 990}, {"99.9%", r.P999, 999}, {"BW average", r.BWAverage, 0.8}, {"BW peak", r.BWPeak, 0.8}, {"MsgRate", r.MsgRate, 0.1},
		{"CPU", r.CPU, 3}, {"uplink", r.Uplink, 2}, {"latency ratio", r.LatencyRatio, 2}, {"bandwidth ratio", r.BandwidthRatio, 0.5}, {"CPU ratio", r.CPURatio, 3},
	} {
		if math.Abs(c.got-c.want) > 0.001 {
			t.Errorf("%s is %v, want %v", c.what, c.got, c.want)
		}
	}
	if m := median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("median %v", m)
	}
	var empty result
	empty.summarize([]*sample{{}})
	empty.compare([]*sample{{}}, []*sample{{}})
	if math.IsNaN(empty.Avg + empty.LatencyRatio) {
		t.Error("no samples are no number")
	}
}

// TestShares: a fraction is shown as a fraction.
func TestShares(t *testing.T) {
	for _, s := range []string{"0", "1/4096", "1/1024", "0.3"} {
		if p, err := share(s); err != nil || shareText(p) != s {
			t.Errorf("%s: %v, %s, %v", s, p, shareText(p), err)
		}
	}
}

// TestPlot: the plot is XML, has every curve, and its points are at the values.
func TestPlot(t *testing.T) {
	r := &report{Info: info{Test: "compare", Ways: []string{"multicast", "chain"}, Receivers: []string{"<h2>"}, Rounds: 2, Lab: true}}
	for _, size := range []int{128, 4096, 1 << 20} {
		for i, w := range r.Info.Ways {
			r.Results = append(r.Results, result{Way: w, Depth: 8, MsgSize: size, LatencyRatio: float64(1 + i), BandwidthRatio: 1, CPURatio: 1, Avg: float64(size), BWAverage: 4})
		}
	}
	name := filepath.Join(t.TempDir(), "x.svg")
	if err := writePlot(name, r); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	circles := map[string]int{} // by height
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch x := tok.(type) {
		case xml.CharData:
			texts = append(texts, string(x))
		case xml.StartElement:
			for _, a := range x.Attr {
				if x.Name.Local == "circle" && a.Name.Local == "cy" {
					circles[a.Value]++
				}
			}
		}
	}
	for _, want := range []string{"multicast", "chain", "128", "4K", "1M", "bytes of a write", "latency, relative to multicast", "mcbench compare, receivers <h2>",
		"mean latency[usec], logarithmic", "bandwidth[Gb/sec]", "1,000,000", "1,000", "0.5", "writes under way: 8; lab on loopback, links without a rate; 2 rounds"} {
		if !slices.Contains(texts, want) {
			t.Errorf("the drawing lacks %q", want)
		}
	}
	n := 0
	for _, x := range texts {
		if x == "multicast" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d legends", n)
	}
	// With an axis from 0 to 2, multicast's 1 is in the middle.
	if y := "276.0"; circles[y] != 3 {
		t.Errorf("points of multicast: %v, want 3 at %s", circles, y)
	}
	if err := writePlot(filepath.Join(t.TempDir(), "no", "x.svg"), r); err == nil || !strings.Contains(err.Error(), "--plot") {
		t.Errorf("a drawing in no directory: %v", err)
	}
	lossy := &report{Info: r.Info, Results: []result{{Way: "chain", BWAverage: 4, P99: 1}, {Way: "chain", Loss: 1. / 1024, BWAverage: 3, P99: 2}}}
	if p := panelsOf(lossy); len(p) != 6 || !slices.Equal(p[0].Ticks, []string{"0", "1/1024"}) || !slices.Equal(p[0].Series[0].Points, []float64{1, 0.75}) {
		t.Errorf("%+v", p)
	}
}

// TestLab measures switch multicast and another way in a lab of processes, with lost packets and
// verified content: the sender's cable carries the payload once, or twice.
func TestLab(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "x.svg")
	code, out, errs := command(t, "compare", "--lab", "--ways", "multicast,fan-out", "-r", "h2,h3", "-s", "32K", "-n", "40", "--warm-up", "4",
		"--rounds", "2", "--check", "--loss", "0,1/50", "--rate", "400mbit", "--dead-after", "20s", "-q", "--json", "--plot", plot)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 4 {
		t.Fatalf("%d results: %s", len(r.Results), out)
	}
	for _, x := range r.Results {
		want := map[string]float64{"multicast": 1, "fan-out": 2}[x.Way]
		if x.Iterations != 40 || !x.Checked || x.Uplink < want || x.Loss == 0 && x.Uplink > want*1.15 {
			t.Errorf("%+v, want an uplink of %v", x, want)
		}
		if x.CPU <= 0 || x.MsgSize != 32768 {
			t.Errorf("%+v", x)
		}
	}
	if svg, err := os.ReadFile(plot); err != nil || !bytes.Contains(svg, []byte("loss between the racks")) {
		t.Errorf("the plot: %v", err)
	}
}

// TestCollectives measures operations in a lab of processes: results are correct, and the first
// rank's cable carries at least the necessary bytes. tests/scenario checks that it carries no more,
// where busy processors cause no retransmissions.
func TestCollectives(t *testing.T) {
	code, out, errs := command(t, "coll", "--lab", "--way", "multicast", "-s", "32K", "-n", "2", "--warm-up", "0", "--rate", "400mbit", "--json", "--explain")
	if code != 0 || !strings.Contains(errs, "4 ranks") {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	var results []collResult
	if err := json.Unmarshal([]byte(out), &results); err != nil {
		t.Fatal(err)
	}
	uplinks := map[string]float64{"allreduce": 1, "broadcast": 1, "allgather": 0.25, "reduce": 0.75, "reducescatter": 0.75}
	if len(results) != len(collOperations) {
		t.Errorf("%d results: %s", len(results), out)
	}
	for _, x := range results {
		want := uplinks[x.Operation]
		if x.Wrong != 0 || x.Time <= 0 || want > 0 && (x.Uplink == nil || *x.Uplink < want || x.BusBW <= 0) {
			t.Errorf("%+v, want an uplink of %v", x, want)
		}
	}
}
