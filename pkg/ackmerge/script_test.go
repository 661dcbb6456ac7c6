package ackmerge_test

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/tests/answers"
)

// TestScripts runs testdata: what each member says, and what the sender hears.
//
//	group members=3 psn=0 [epoch=1] [learn] [without=3] [cnp-gap=50us]   installs or changes the group; records stay
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
	c *ackmerge.Config
	s ackmerge.State
	n int // members that the group had at first
}

func (s *scripted) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "group":
		var args []string
		for _, arg := range d.CmdArgs {
			args = append(args, arg.String())
		}
		c, err := answers.Group(args)
		if err != nil {
			t.Fatal(err)
		}
		s.c = c
		if !d.HasArg("without") {
			s.n = bits.Len16(c.Members)
		}
		return ""
	case "restart":
		s.s = ackmerge.State{}
		return ""
	}
	var out strings.Builder
	for _, line := range strings.Split(d.Input, "\n") {
		fmt.Fprintf(&out, "%s\n", s.say(t, line))
	}
	return out.String()
}

// say runs one line of a script, such as "ack 2 psn=5".
func (s *scripted) say(t *testing.T, line string) string {
	if line == "records" {
		return s.records()
	}
	a, now, err := answers.Answer(line)
	if err != nil {
		t.Fatal(err)
	}
	got, verdict := ackmerge.Merge(s.c, &s.s, a, now)
	said := fmt.Sprintf("%-22s", line)
	if verdict != ackmerge.Pass {
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
