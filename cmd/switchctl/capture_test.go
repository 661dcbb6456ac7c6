package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/identity"
	datacenter "github.com/mcrdma/mcrdma/internal/lab"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // the lab's devices
)

// TestCaptureUsage: impossible options are refused before any agent is asked.
func TestCaptureUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "0 arguments"},
		{"g -w x -i s:1@a", "a group is SOURCE/NUMBER"},
		{"10.1.0.1/7 -i s:1@a", "--write FILE is needed"},
		{"10.1.0.1/7 -w x", "--interface SWITCH:PORT@WHERE is needed"},
		{"10.1.0.1/7 -w x -i 1@a", "is not SWITCH:PORT@INTERFACE"},
		{"10.1.0.1/7 -w x -i s:x@a", `the port's number "x"`},
		{"10.1.0.1/7 -w x -i s:600@a", `the port's number "600"`},
		{"10.1.0.1/7 -w x -i s:1@", "cannot be a network interface's name"},
		{"10.1.0.1/7 -w x -i s:1@pcap:", "cannot be a network interface's name"},
		{"10.1.0.1/7 -w x -i s:1@a -i s:1@b", "port s:1 is named twice"},
		{"10.1.0.1/7 -w x -i s:1@a --for 0s", "--for 0s"},
		{"10.1.0.1/7 -w x -i s:1@a --psn 0x1000000", "--psn"},
		{"10.1.0.1/7 -w x -i s:1@a --psn 5 --all", "exclude each other"},
	} {
		var out, err bytes.Buffer
		if code := run(t.Context(), append([]string{"capture"}, strings.Fields(c.args)...), &out, &err); code != 2 || !strings.Contains(err.String(), c.want) {
			t.Errorf("%s: exit code %d, %s, want %q", c.args, code, &err, c.want)
		}
	}
}

// TestCaptureUnseen: if a watched switch has packets which no capture sees, that is reported, with
// what to do.
func TestCaptureUnseen(t *testing.T) {
	a := &fakeAgent{status: &mcrdmav1.GetStatusResponse{Name: "tor", P4Runtime: &mcrdmav1.P4RuntimeStatus{FastPath: "xdp at 4 ports: all"}}}
	plain, err := identity.Files{}.Server()
	must(t, err)
	a.serve(t, plain)
	f := &clientFlags{agents: []string{a.addr}, timeout: 10 * time.Second}
	watched, file, other := tapSpec{sw: "tor", name: "s1"}, tapSpec{sw: "tor", base: "x"}, tapSpec{sw: "spine", name: "s1"}
	if got := f.unseen(t.Context(), []tapSpec{other, watched}); !strings.Contains(got, "the ports of tor do not show") || !strings.Contains(got, "--fastpath=off") {
		t.Errorf("%q", got)
	}
	if got := f.unseen(t.Context(), []tapSpec{file, other}); got != "" {
		t.Errorf("%q", got)
	}
	a.status.P4Runtime.FastPath = "off: it is a test"
	if got := f.unseen(t.Context(), []tapSpec{watched}); got != "" {
		t.Errorf("%q", got)
	}
}

// A thief takes one frame that leaves a port.
type thief struct {
	ports.Port
	armed *atomic.Bool
}

// Send loses the first packet of more than 1000 bytes once it is armed.
func (p thief) Send(frames [][]byte) int {
	for i, f := range frames {
		if len(f) > 1000 && p.armed.CompareAndSwap(true, false) {
			return p.Port.Send(slices.Delete(slices.Clone(frames), i, i+1))
		}
	}
	return p.Port.Send(frames)
}

// TestCapture writes to a group over three switches, whose ports capture packets, and lets the
// command explain the write: first without faults, then with a lost packet.
func TestCapture(t *testing.T) {
	dir := t.TempDir()
	pcaps := filepath.Join(dir, "p")
	must(t, os.Mkdir(pcaps, 0o755))
	var armed atomic.Bool
	var taps []string
	count := map[string]int{}
	l, err := datacenter.Start(t.Context(), datacenter.Options{Dir: dir, Port: func(at, to string, p ports.Port) (ports.Port, error) {
		if at == "spine" && to == "torB" {
			p = thief{p, &armed}
		}
		count[at]++
		taps = append(taps, "-i", fmt.Sprintf("%s:%d@pcap:%s", at, count[at], filepath.Join(pcaps, p.Name())))
		return ports.Capture(p, pcaps)
	}})
	must(t, err)
	defer func() { must(t, l.Close()) }()
	for _, h := range []string{"h2", "h3", "h4"} {
		c, err := mcrdma.Dial(t.Context(), mcrdma.Options{Socket: l.Host(h).Socket})
		must(t, err)
		defer c.Close()
		m, err := c.Alloc(1 << 20)
		must(t, err)
		_, err = c.Listen(t.Context(), mcrdma.ListenConfig{Service: "x", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
			return &mcrdma.Grant{Regions: []mcrdma.Piece{m.All()}}, nil
		}})
		must(t, err)
	}
	c, err := mcrdma.Dial(t.Context(), mcrdma.Options{Socket: l.Host("h1").Socket})
	must(t, err)
	defer c.Close()
	m, err := c.Alloc(20000)
	must(t, err)
	g, err := c.Create(t.Context(), mcrdma.GroupConfig{Service: "x", Receivers: []string{"h2", "h3", "h4"}, Mode: mcrdma.ModeRequire, Regions: []mcrdma.Region{{Length: 1 << 20}}})
	must(t, err)
	defer func() { must(t, g.Close(t.Context())) }()
	must(t, g.Write(t.Context(), mcrdma.At{}, m.Slice(0, 10)))
	must(t, g.Write(t.Context(), mcrdma.At{Offset: 4096}, m.All()))

	admin, file := l.Admin(), filepath.Join(dir, "x.pcapng")
	args := append([]string{"capture", fmt.Sprintf("%s/%d", g.Info().ID.Source, g.Info().MCID), "-w", file, "-a", l.Agent("torA"),
		"--tls-cert", admin.Cert, "--tls-key", admin.Key, "--tls-ca", admin.CA}, taps...)
	capture := func() string {
		t.Helper()
		var out, errs testenv.SyncBuffer
		if code := run(t.Context(), args, &out, &errs); code != 0 {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
		return out.String()
	}
	text := capture()
	packets := readPcapng(t, file)
	for _, want := range []struct {
		at, comment string
		n           int
	}{
		{"torA port 1 in", "replicated: 2 copies", 5},
		{"torA port 2 out", "rewritten for receiver 10.1.0.12: QPN ", 5},
		{"torA port 3 out", "next is spine", 5},
		{"spine port 1 in", "comes from torA", 5},
		{"torB port 3 in", "replicated: 2 copies", 5},
		{"torB port 1 out", "rewritten for receiver 10.2.0.11: ", 5},
		{"torB port 2 out", "rewritten for receiver 10.2.0.12: ", 5},
		{"torB port 2 out", "rkey 0x", 1},
		{"torB port 2 out", "identification 0x", 5},
		{"torB port 2 out", "source port ", 5},
		{"torA port 1 out", "merged: the sender takes it for the answer of all 3", 1},
		{"torA port 1 out", "QPN 0x", 1},
	} {
		n := 0
		for _, p := range packets {
			if p.at == want.at && strings.Contains(p.comment, want.comment) {
				n++
			}
		}
		if n < want.n || want.n == 5 && n != 5 {
			t.Errorf("%d packets at %s say %q, want %d", n, want.at, want.comment, want.n)
		}
	}
	if strings.Contains(text, "dropped:") || strings.Contains(text, "not seen") {
		t.Error("something is said to be dropped, or not seen")
	}
	if t.Failed() {
		t.Log(text)
	}

	armed.Store(true)
	must(t, g.Write(t.Context(), mcrdma.At{}, m.All()))
	text = capture()
	for _, want := range []string{"dropped: it did not arrive at torB: lost on the link", "refuses PSN", "again sent by 10.1.0.11", "merged: the sender takes it for the answer of all 3"} {
		if !strings.Contains(text, want) {
			t.Errorf("the explanation lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), append(slices.Clone(args), "--psn", "77", "--for", "200ms"), &out, &errs); code != 1 || !strings.Contains(errs.String(), "no whole write was seen with PSN 77") {
		t.Errorf("a PSN that was not there: %d, %s", code, &errs)
	}
}

// A commented packet is a packet as the test's reader reads it.
type commented struct {
	at, comment string
	data        []byte
}

// readPcapng reads a file by the specification, without the writer's code.
func readPcapng(t *testing.T, name string) (out []commented) {
	t.Helper()
	file, err := os.ReadFile(name)
	must(t, err)
	le := binary.LittleEndian
	var names []string
	for len(file) > 0 {
		kind, n := le.Uint32(file), le.Uint32(file[4:])
		body := file[8 : n-4]
		fixed := map[uint32]int{0x0a0d0d0a: 16, 1: 8, 6: 20}[kind]
		var data []byte
		if kind == 6 {
			data = body[20:][:le.Uint32(body[12:])]
			fixed += (len(data) + 3) &^ 3
		}
		options := map[uint16][]byte{}
		for o := body[fixed:]; le.Uint16(o) != 0; o = o[4+(int(le.Uint16(o[2:]))+3)&^3:] {
			options[le.Uint16(o)] = o[4:][:le.Uint16(o[2:])]
		}
		switch kind {
		case 1:
			names = append(names, string(options[2]))
		case 6:
			direction := map[uint32]string{1: " in", 2: " out"}[le.Uint32(options[2])]
			out = append(out, commented{names[le.Uint32(body)] + direction, string(options[1]), data})
		}
		file = file[n:]
	}
	return out
}
