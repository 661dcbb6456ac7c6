package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/mcrdma/mcrdma/examples/internal/bar"
)

// results are what --json prints.
type results struct {
	File    fileResult     `json:"file"`
	Write   int            `json:"write_bytes"`
	Depth   int            `json:"depth"`
	Ways    []wayResult    `json:"ways"`
	Failure *failureResult `json:"failure"`
}

type fileResult struct {
	Name   string `json:"name"`
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// A wayResult is a line of the table.
type wayResult struct {
	Way         string            `json:"way"`
	Path        string            `json:"path"`
	Algorithm   string            `json:"algorithm,omitempty"`
	Uplink      uint64            `json:"uplink_bytes"` // of the sender
	UplinkTimes float64           `json:"uplink_times"` // the file
	Hosts       uint64            `json:"hosts_bytes"`  // that all hosts have sent
	HostsTimes  float64           `json:"hosts_times"`
	Seconds     float64           `json:"seconds"`
	Goodput     float64           `json:"goodput_gbps"` // at each receiver
	Writes      int               `json:"writes"`
	Posts       uint64            `json:"posts"`
	Completions uint64            `json:"completions"`
	Replicas    map[string]string `json:"replicas"` // SHA-256 by host
}

// count fills in bytes and rate from what hosts had sent before and after.
func (r *wayResult) count(before, after map[string]uint64, size int) {
	for host, n := range after {
		n -= before[host]
		r.Hosts += n
		if host == from {
			r.Uplink = n
		}
	}
	r.UplinkTimes, r.HostsTimes = float64(r.Uplink)/float64(size), float64(r.Hosts)/float64(size)
	r.Goodput = float64(size) * 8 / r.Seconds / 1e9
}

// A failureResult is how a write went on without a receiver.
type failureResult struct {
	Killed   string            `json:"killed"`
	Seconds  float64           `json:"seconds"`
	Pause    float64           `json:"pause_seconds"` // the longest without a completion
	Events   []string          `json:"events"`
	Replicas map[string]string `json:"replicas"`
}

func (r *results) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// table compares the ways.
func (r *results) table() string {
	var b strings.Builder
	const form = "%-25s %10s %6s %11s %6s %8s %10s %7s %12s\n"
	fmt.Fprintf(&b, form, "WAY", "UPLINK", "x FILE", "ALL HOSTS", "x FILE", "TIME", "GOODPUT", "POSTS", "COMPLETIONS")
	for _, w := range r.Ways {
		fmt.Fprintf(&b, form, w.Way, bar.Bytes(w.Uplink), fmt.Sprintf("%.2f", w.UplinkTimes), bar.Bytes(w.Hosts), fmt.Sprintf("%.2f", w.HostsTimes),
			fmt.Sprintf("%.2f s", w.Seconds), fmt.Sprintf("%.2f Gb/s", w.Goodput), perWrite(w.Posts, w.Writes), perWrite(w.Completions, w.Writes))
	}
	b.WriteString("Bytes on h1's uplink, as its switch counts them, and on those of all four hosts; requests posted and completions\n" +
		"at h1 for each write. All switches share this machine's processors: compare bytes rather than times.\n")
	return b.String()
}

func perWrite(n uint64, writes int) string { return fmt.Sprintf("%.2f", float64(n)/float64(writes)) }

func hexText(b []byte) string { return hex.EncodeToString(b) }

// list is "h2, h3 and h4".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
