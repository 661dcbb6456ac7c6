package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/child"
)

// A job is the task of a child process.
type job struct {
	Role    string // "udp-send", "udp-recv", "udp-ping", "udp-pong", and the same of "roce"
	Local   string
	Peer    string
	Options string // of the softroce device
	Span    time.Duration
	CPUProf string
}

// A hello is the data that queue pairs exchange before they start; plain UDP does not need it.
type hello struct {
	QPN  uint32
	VA   uint64
	RKey uint32
}

// A sideResult is the report of a child.
type sideResult struct {
	Bytes   uint64 // of payload
	Packets uint64
	Seconds float64 // between the first and the last byte
	CPU     float64 // seconds, user and system, of the whole process while it ran
	Mallocs uint64
	RTT     []time.Duration // of "ping"
	Note    string
}

// serve is a child process: it reads the job and then the peer's hello from standard input, and
// writes its own hello and the result to standard output.
func serve() {
	in := json.NewDecoder(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	fatal := func(err error) {
		fmt.Fprintln(os.Stderr, "bench child:", err)
		os.Exit(1)
	}
	var j job
	if err := in.Decode(&j); err != nil {
		fatal(err)
	}
	exchange := func(mine hello) (yours hello, err error) {
		if err := out.Encode(mine); err != nil {
			return yours, err
		}
		return yours, in.Decode(&yours)
	}
	if j.CPUProf != "" {
		f, err := os.Create(j.CPUProf)
		if err != nil {
			fatal(err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			fatal(err)
		}
		defer pprof.StopCPUProfile()
	}
	stop := make(chan struct{}) // the parent closes standard input when the time has passed
	role, ok := roles[j.Role]
	if !ok {
		fatal(fmt.Errorf("no role %q", j.Role))
	}
	r, err := role(j, func(mine hello) (hello, error) {
		yours, err := exchange(mine)
		go func() {
			_, _ = io.Copy(io.Discard, io.MultiReader(in.Buffered(), os.Stdin))
			close(stop)
		}()
		return yours, err
	}, stop)
	if err != nil {
		fatal(fmt.Errorf("%s: %w", j.Role, err))
	}
	if err := out.Encode(r); err != nil {
		fatal(err)
	}
}

// A roleFunc gets the peer's hello from exchange when both are ready, and runs until stop is
// closed.
type roleFunc func(j job, exchange func(hello) (hello, error), stop <-chan struct{}) (sideResult, error)

var roles = map[string]roleFunc{
	"udp-send": udpSend, "udp-recv": udpRecv, "udp-ping": udpPing, "udp-pong": udpPong,
	"roce-send": roceSend, "roce-recv": roceRecv, "roce-ping": rocePing, "roce-pong": rocePong,
}

// A process is a child as its parent sees it.
type process struct {
	*child.Process
	out *json.Decoder
}

// start starts a child in a network namespace.
func start(ns string, j job) (*process, error) {
	c, err := child.Start(context.Background(), ns, "child", j.Role)
	if err != nil {
		return nil, err
	}
	return &process{c, json.NewDecoder(c.Out)}, json.NewEncoder(c.In).Encode(j)
}

// duel runs two children against each other: the receiver first; both get the other's hello; the
// sender is stopped when the time has passed.
func (t trial) duel(kind, active, passive string) (a, b sideResult, err error) {
	profile := func(role string) string {
		if t.profile == "" || kind != "roce" {
			return ""
		}
		return t.profile + "-" + t.path.name + "-" + role + ".pprof"
	}
	pb, err := start(t.path.toNS, job{Role: kind + "-" + passive, Local: t.path.to, Peer: t.path.from,
		Options: t.options, Span: t.span, CPUProf: profile(passive)})
	if err != nil {
		return a, b, err
	}
	defer pb.End()
	pa, err := start(t.path.fromNS, job{Role: kind + "-" + active, Local: t.path.from, Peer: t.path.to,
		Options: t.options, Span: t.span, CPUProf: profile(active)})
	if err != nil {
		return a, b, err
	}
	defer pa.End()

	var ha, hb hello
	if err := pb.out.Decode(&hb); err != nil {
		return a, b, err
	}
	if err := pa.out.Decode(&ha); err != nil {
		return a, b, err
	}
	if err := json.NewEncoder(pb.In).Encode(ha); err != nil {
		return a, b, err
	}
	if err := json.NewEncoder(pa.In).Encode(hb); err != nil {
		return a, b, err
	}
	// The active side stops by itself, the passive one on request.
	if err := pa.out.Decode(&a); err != nil {
		return a, b, err
	}
	pb.In.Close()
	if err := pb.out.Decode(&b); err != nil {
		return a, b, err
	}
	return a, b, nil
}

func (t trial) flow(kind string) (flowResult, error) {
	s, r, err := t.duel(kind, "send", "recv")
	if err == nil && (r.Bytes == 0 || s.Packets == 0 || r.Packets == 0) {
		err = fmt.Errorf("nothing arrived")
	}
	for _, n := range []string{s.Note, r.Note} {
		if n != "" && t.profile != "" {
			fmt.Println(n)
		}
	}
	f := flowResult{send: s, recv: r}
	if kind == "udp" { // the other contestant retransmits lost packets
		f.lost = max(0, 1-float64(r.Bytes)/float64(s.Bytes))
	}
	return f, err
}

func (t trial) latency(kind string) (latencyResult, error) {
	a, _, err := t.duel(kind, "ping", "pong")
	if err != nil {
		return latencyResult{}, err
	}
	n := len(a.RTT)
	if n < 100 {
		return latencyResult{}, fmt.Errorf("only %d round trips", n)
	}
	return latencyResult{p50: a.RTT[n/2] / 2, p99: a.RTT[n*99/100] / 2}, nil
}
