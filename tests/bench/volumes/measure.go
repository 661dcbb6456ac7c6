package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// mcbench measures groups of the library alone, with that many receivers.
func (r *rack) mcbench(o *options, kind, way string, receivers, size, depth int) func(context.Context) (figure, error) {
	return func(context.Context) (f figure, err error) {
		h := r.lab.Hosts[6]
		to := []string{"h8", "h9"}[:receivers]
		out, err := h.Space.Run(r.program("mcbench"), kind, "--socket", h.Socket, "-r", strings.Join(to, ","), "--way", way, "-s", fmt.Sprint(size),
			"-t", fmt.Sprint(depth), "-n", "1000000", "-D", o.span.String(), "-q", "-o", "json")
		if err != nil {
			return f, fmt.Errorf("mcbench: %w: %s", err, out)
		}
		var j struct {
			Results []struct {
				Average float64 `json:"BW_average"` // Gb/s
				Typical float64 `json:"t_typical"`
				P99     float64 `json:"t_99"`
				CPU     float64 `json:"CPU_per_op_usec"`
			} `json:"results"`
		}
		if err := json.Unmarshal([]byte(out), &j); err != nil || len(j.Results) != 1 {
			return f, fmt.Errorf("mcbench has printed %q: %w", out, err)
		}
		x := j.Results[0]
		return figure{rate: x.Average * 1e9, processor: x.CPU / 1e6 * (1 << 30) / float64(size), typical: x.Typical, p99: x.P99}, nil
	}
}

// fio runs fio as a writer to the volume at its primary.
func (v *volume) fio(o *options, args ...string) func(context.Context) (figure, error) {
	args = append([]string{"--ioengine=nbd", "--uri=nbd://" + nbdAt + "/" + v.name}, args...)
	return func(context.Context) (figure, error) {
		return onLinks(v.hosts, v.primary, v.blocks[v.primary], func(h *lab.HostNode) (figure, error) { return fio(o, h, o.span, args...) })
	}
}

// fio runs fio as a writer on a host for a while.
func fio(o *options, h *lab.HostNode, span time.Duration, args ...string) (f figure, err error) {
	args = append([]string{"--name=x", fmt.Sprintf("--size=%d", size), "--time_based", "--runtime=" + fmt.Sprint(span.Milliseconds()) + "ms", "--output-format=json"}, args...)
	var said bytes.Buffer
	cmd := exec.Command(o.fio, args...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := h.Space.Do(cmd.Start); err != nil {
		return f, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-o.stop:
		_ = cmd.Process.Signal(os.Interrupt)
		if err = <-ended; cmd.ProcessState.ExitCode() == 128 {
			err = nil // it says so when it was interrupted
		}
	}
	out := said.String()
	if err != nil {
		return f, fmt.Errorf("fio: %w: %s", err, out)
	}
	type latency struct {
		Percentile map[string]float64 `json:"percentile"` // ns
	}
	var j struct {
		Jobs []struct {
			Write struct {
				Bytes   float64 `json:"io_bytes"`
				Rate    float64 `json:"bw_bytes"`
				Latency latency `json:"clat_ns"`
			} `json:"write"`
			Sync struct {
				Latency latency `json:"lat_ns"`
			} `json:"sync"`
		} `json:"jobs"`
	}
	printed := out[max(0, strings.Index(out, "{")):] // before that it prints that it is connected
	if err := json.Unmarshal([]byte(printed), &j); err != nil || len(j.Jobs) != 1 {
		return f, fmt.Errorf("fio has printed %q: %w", out, err)
	}
	x := j.Jobs[0]
	took := func(percentile string) float64 {
		return (x.Write.Latency.Percentile[percentile] + x.Sync.Latency.Percentile[percentile]) / 1e3
	}
	return figure{rate: x.Write.Rate * 8, bytes: x.Write.Bytes, typical: took("50.000000"), p99: took("99.000000")}, nil
}

// onLinks lets one of the hosts write, and adds the costs to the figure: bytes on the hosts' links,
// and processor time of the process.
func onLinks(hosts []*lab.HostNode, writer int, p *lab.Process, write func(*lab.HostNode) (figure, error)) (f figure, err error) {
	before, err := counts(hosts, writer, p)
	if err != nil {
		return f, err
	}
	if f, err = write(hosts[writer]); err != nil {
		return f, err
	}
	after, err := counts(hosts, writer, p)
	f.uplink, f.links, f.processor = (after.sent-before.sent)/f.bytes, (after.all-before.all)/f.bytes, (after.used-before.used)/(f.bytes/(1<<30))
	return f, err
}

// A count is what has been sent and used so far.
type count struct {
	sent float64 // bytes by the writer
	all  float64 // bytes by all hosts, and to them
	used float64 // seconds of a process
}

func counts(hosts []*lab.HostNode, writer int, p *lab.Process) (c count, err error) {
	for i, h := range hosts {
		text, err := h.Space.Run("cat", "/proc/net/dev")
		if err != nil {
			return c, err
		}
		_, line, _ := strings.Cut(text, "eth0:")
		const received, sent = 0, 8 // of the fields
		fields := strings.Fields(line)
		if len(fields) <= sent {
			return c, fmt.Errorf("%s has no eth0: %q", h.Name, text)
		}
		for _, f := range []int{received, sent} {
			n, err := strconv.ParseFloat(fields[f], 64)
			if err != nil {
				return c, err
			}
			c.all += n
			if i == writer && f == sent {
				c.sent = n
			}
		}
	}
	used, err := report.UsedBy(p.PID())
	c.used = used.Seconds()
	return c, err
}

// fdatasync measures 4 KiB made durable in each of so many files in parallel, each by a process of its own.
func (r *rack) fdatasync(files int, span time.Duration) (figure, error) {
	var ps []*lab.Process
	for i := range files {
		dir := filepath.Join(r.dir, fmt.Sprint("files", i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return figure{}, err
		}
		p := &lab.Process{Name: "fdatasync", Space: r.lab.Hosts[i].Space, Args: []string{r.self, "-time", (span / 4).String(), syncing, dir}, Talks: true}
		if err := r.slow(p, fmt.Sprint(dir, len(r.watchers), ".watch")); err != nil {
			return figure{}, err
		}
		ps = append(ps, p)
	}
	var mu sync.Mutex
	var all []time.Duration
	err := lab.Each(ps, func(p *lab.Process) error {
		if err := p.Start(context.Background()); err != nil {
			return err
		}
		var took []time.Duration
		err := json.NewDecoder(p.Out).Decode(&took)
		mu.Lock()
		all = append(all, took...)
		mu.Unlock()
		return errors.Join(err, p.Stop())
	})
	if err != nil {
		return figure{}, fmt.Errorf("%w: %s", err, lab.Logs(ps...))
	}
	slices.Sort(all)
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	return figure{typical: us(all[len(all)/2]), p99: us(all[len(all)*99/100])}, nil
}

// syncs is what such a process does: it prints how long each took.
func syncs(dir string, span time.Duration) error {
	took, err := report.Fdatasyncs(dir, 1, span)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(took)
}

// metric reads a metric from a host's mcblock. A missing metric is an error.
func (v *volume) metric(host int, what string) (float64, error) {
	dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = v.hosts[host].Space.Do(func() (err error) {
			c, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: ready}
	a, err := client.Get("http://" + metricsAt + "/metrics")
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	for s := bufio.NewScanner(a.Body); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), what+" "); ok {
			return strconv.ParseFloat(text, 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", v.hosts[host].Name, what)
}

// contest runs contestants in turns, and returns their medians.
func contest(ctx context.Context, rounds int, all []*contestant) ([]figure, error) {
	for range rounds {
		for _, c := range all {
			f, err := c.run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			c.got = append(c.got, f)
		}
	}
	var medians []figure
	for _, c := range all {
		m := func(of func(figure) float64) float64 { return report.MedianOf(c.got, of) }
		medians = append(medians, figure{m(func(f figure) float64 { return f.rate }), m(func(f figure) float64 { return f.bytes }), m(func(f figure) float64 { return f.uplink }), m(func(f figure) float64 { return f.links }),
			m(func(f figure) float64 { return f.processor }), m(func(f figure) float64 { return f.typical }), m(func(f figure) float64 { return f.p99 })})
	}
	return medians, nil
}
