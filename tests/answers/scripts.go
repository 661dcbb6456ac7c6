// Package answers reads the scripts of pkg/ackmerge/testdata, which tell what a group's members
// answer, for tests of whatever merges.
package answers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/pkg/ackmerge"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A Step is a line of a script: a group that is installed or changed, a restart of the switch, or
// else an answer.
type Step struct {
	Where   string
	Group   *ackmerge.Config
	Restart bool
	Answer  ackmerge.Answer
	Now     time.Duration
}

// Scripts reads the scripts of a directory, in order of their names.
func Scripts(dir string) (all [][]Step, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		steps, err := script(filepath.Base(name), string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, steps)
	}
	return all, nil
}

// script reads what comes before each line of dashes; what follows is what comes of it.
func script(name, text string) (steps []Step, err error) {
	results := false
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		s := Step{Where: fmt.Sprintf("%s:%d: %s", name, i+1, line)}
		switch {
		case len(words) == 0:
			results = false
			continue
		case line == "----":
			results = true
			continue
		case results, words[0] == "say", words[0] == "records", strings.HasPrefix(line, "#"):
			continue
		case words[0] == "restart":
			s.Restart = true
		case words[0] == "group":
			s.Group, err = Group(words[1:])
		default:
			s.Answer, s.Now, err = Answer(line)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// Group reads the arguments of "group".
func Group(args []string) (*ackmerge.Config, error) {
	c := &ackmerge.Config{Epoch: 1}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		var n uint32
		var err error
		switch key {
		case "learn":
			c.Learn = true
		case "cnp-gap":
			c.CNPGap, err = time.ParseDuration(value)
		default:
			_, err = fmt.Sscanf(value, "%v", &n)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arg, err)
		}
		switch key {
		case "members":
			c.Members = 1<<n - 1
		case "without":
			c.Members &^= 1 << (n - 1)
		case "psn":
			c.InitialPSN = rocev2.PSN(n)
		case "epoch":
			c.Epoch = uint16(n)
		}
	}
	return c, nil
}

var syndromes = map[string]rocev2.Syndrome{"ack": 0, "nak": rocev2.NakSequence, "refuse": rocev2.NakRemoteAccess}

// Answer reads a line such as "ack 2 psn=5", and when it is said.
func Answer(line string) (a ackmerge.Answer, now time.Duration, err error) {
	words := strings.Fields(line)
	a = ackmerge.Answer{Syndrome: syndromes[words[0]], CNP: words[0] == "cnp"}
	if _, err := fmt.Sscan(words[1], &a.Member); err != nil {
		return a, 0, fmt.Errorf("%s: %w", line, err)
	}
	a.Member--
	for _, w := range words[2:] {
		key, value, _ := strings.Cut(w, "=")
		var n uint32
		if key == "at" {
			now, err = time.ParseDuration(value)
		} else {
			_, err = fmt.Sscanf(value, "%v", &n)
		}
		if err != nil {
			return a, 0, fmt.Errorf("%s: %s: %w", line, w, err)
		}
		switch key {
		case "psn":
			a.PSN = rocev2.PSN(n)
		case "msn":
			a.MSN = n
		case "timer":
			a.Syndrome = rocev2.RNRSyndrome(uint8(n))
		case "syndrome", "credits":
			a.Syndrome = rocev2.Syndrome(n)
		}
	}
	return a, now, nil
}
