package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// mcbench measures groups of the library alone, with so many receivers.
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

// fio has fio write to the volume at its primary.
func (v *volume) fio(o *options, args ...string) func(context.Context) (figure, error) {
	return func(context.Context) (f figure, err error) {
		h, p := v.hosts[v.primary], v.blocks[v.primary]
		link, processor, err := counts(h, p)
		if err != nil {
			return f, err
		}
		args := append([]string{"--name=x", "--ioengine=nbd", "--uri=nbd://" + nbdAt + "/" + name, fmt.Sprintf("--size=%d", size), "--time_based",
			"--runtime=" + fmt.Sprint(o.span.Milliseconds()) + "ms", "--output-format=json"}, args...)
		out, err := h.Space.Run(o.fio, args...)
		if err != nil {
			return f, fmt.Errorf("fio: %w: %s", err, out)
		}
		linkAfter, processorAfter, err := counts(h, p)
		if err != nil {
			return f, err
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
		report := out[max(0, strings.Index(out, "{")):] // it says before that it is connected
		if err := json.Unmarshal([]byte(report), &j); err != nil || len(j.Jobs) != 1 {
			return f, fmt.Errorf("fio has printed %q: %w", out, err)
		}
		x := j.Jobs[0]
		took := func(percentile string) float64 {
			return (x.Write.Latency.Percentile[percentile] + x.Sync.Latency.Percentile[percentile]) / 1e3
		}
		return figure{rate: x.Write.Rate * 8, bytes: x.Write.Bytes, uplink: (linkAfter - link) / x.Write.Bytes, processor: (processorAfter - processor) / (x.Write.Bytes / (1 << 30)),
			typical: took("50.000000"), p99: took("99.000000")}, nil
	}
}

// counts are the bytes that a host has sent, and the seconds that a process has used.
func counts(h *lab.HostNode, p *lab.Process) (sent, used float64, err error) {
	text, err := h.Space.Run("cat", "/proc/net/dev")
	if err != nil {
		return 0, 0, err
	}
	_, line, _ := strings.Cut(text, "eth0:")
	if fields := strings.Fields(line); len(fields) > 8 {
		sent, err = strconv.ParseFloat(fields[8], 64)
	}
	b, statErr := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil || statErr != nil || sent == 0 {
		return 0, 0, fmt.Errorf("%s: what it has sent and used: %w, %w", h.Name, err, statErr)
	}
	_, after, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(after) // from the state on, proc_pid_stat(5)
	const utime, hertz = 11, 100
	for _, f := range fields[utime : utime+2] {
		ticks, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0, 0, err
		}
		used += ticks / hertz
	}
	return sent, used, nil
}

// fdatasync measures 4 KiB written to a file and made durable.
func fdatasync(file string, span time.Duration) (f figure, err error) {
	x, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return f, err
	}
	defer x.Close()
	const length = 32 << 20
	if err := unix.Fallocate(int(x.Fd()), 0, 0, length); err != nil {
		return f, err
	}
	var took []time.Duration
	block := make([]byte, 4096)
	for begun := time.Now(); time.Since(begun) < span/4; {
		at := time.Now()
		if _, err := x.WriteAt(block, int64(len(took)*len(block)%length)); err != nil {
			return f, err
		}
		if err := unix.Fdatasync(int(x.Fd())); err != nil {
			return f, err
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	return figure{typical: us(took[len(took)/2]), p99: us(took[len(took)*99/100])}, nil
}

// metric asks a host's mcblock for a metric. One that is not there is an error.
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

// verdict says whether a figure is where it should be.
func verdict(what string, got, goal float64, more bool) string {
	word, sign := "reached", "at most"
	if more {
		sign = "at least"
	}
	if more && got < goal || !more && got > goal {
		word = "MISSED"
	}
	return fmt.Sprintf("%s: %.3g; goal: %s %.3g: %s", what, got, sign, goal, word)
}
