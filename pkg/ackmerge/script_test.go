package ackmerge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// TestScripts runs testdata: what each member says, and what the sender hears.
//
//	group members=3 psn=0 [epoch=1] [learn] [cnp-gap=50us]   installs or changes the group; records stay
//	ack 2 psn=5 [msn=1]          member 2 acknowledges (members count from 1, as in the paper)
//	nak 2 psn=4                  sequence NAK; also rnr … timer=12, refuse … syndrome=0x62, raw … syndrome=…
//	cnp 2 at=10us
//	records                      prints what the switch knows
//	restart                      the switch loses its state
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s scripted
		datadriven.RunTest(t, path, s.run)
	})
}

type scripted struct {
	c Config
	s State
	n int
}

func (s *scripted) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "group":
		s.group(t, d)
		return ""
	case "restart":
		s.s = State{}
		return ""
	}
	var out strings.Builder
	for _, line := range strings.Split(d.Input, "\n") {
		fmt.Fprintf(&out, "%s\n", s.say(t, line))
	}
	return out.String()
}

func (s *scripted) group(t *testing.T, d *datadriven.TestData) {
	members, psn, epoch := 0, 0, 1
	var gap string
	d.MaybeScanArgs(t, "psn", &psn)
	d.MaybeScanArgs(t, "epoch", &epoch)
	d.MaybeScanArgs(t, "cnp-gap", &gap)
	d.ScanArgs(t, "members", &members)
	s.n = members
	s.c = Config{Members: uint16(1<<members - 1), Epoch: uint16(epoch), InitialPSN: rocev2.PSN(psn), Learn: d.HasArg("learn")}
	if d.HasArg("without") {
		gone := 0
		d.ScanArgs(t, "without", &gone)
		s.c.Members &^= 1 << (gone - 1)
	}
	if gap != "" {
		var err error
		if s.c.CNPGap, err = time.ParseDuration(gap); err != nil {
			t.Fatal(err)
		}
	}
}

var syndromes = map[string]rocev2.Syndrome{"ack": 0, "nak": rocev2.NakSequence, "refuse": rocev2.NakRemoteAccess}

// say runs one line of a script, such as "ack 2 psn=5".
func (s *scripted) say(t *testing.T, line string) string {
	if line == "records" {
		return s.records()
	}
	words := strings.Fields(line)
	a := Answer{Syndrome: syndromes[words[0]], CNP: words[0] == "cnp"}
	var now time.Duration
	if _, err := fmt.Sscan(words[1], &a.Member); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	a.Member--
	for _, w := range words[2:] {
		key, value, _ := strings.Cut(w, "=")
		var err error
		var n uint32
		if key == "at" {
			now, err = time.ParseDuration(value)
		} else {
			_, err = fmt.Sscanf(value, "%v", &n)
		}
		if err != nil {
			t.Fatalf("%s: %s: %v", line, w, err)
		}
		switch key {
		case "psn":
			a.PSN = rocev2.PSN(n)
		case "msn":
			a.MSN = n
		case "timer":
			a.Syndrome = rocev2.RNRSyndrome(uint8(n))
		case "syndrome":
			a.Syndrome = rocev2.Syndrome(n)
		case "credits":
			a.Syndrome = rocev2.Syndrome(n)
		}
	}
	got, verdict := Merge(&s.c, &s.s, a, now)
	said := fmt.Sprintf("%-22s", line)
	if verdict != Pass {
		return fmt.Sprintf("%s dropped: %v", said, verdict)
	}
	if got.CNP {
		return said + " -> CNP"
	}
	return fmt.Sprintf("%s -> %v psn=%d msn=%d", said, got.Syndrome, got.PSN, got.MSN)
}

func (s *scripted) records() string {
	var b strings.Builder
	b.WriteString("  records")
	for i := range s.n {
		if r := s.s.Acked[i]; r.Epoch == s.c.Epoch {
			fmt.Fprintf(&b, " %d", r.PSN)
		} else {
			b.WriteString(" -")
		}
	}
	fmt.Fprintf(&b, ", told %d", s.s.Passed.PSN)
	return b.String()
}
