package main

import (
	_ "embed"
	"fmt"
	"strings"
)

// listed are mutations that no test can tell from the code: blocks of
//
//	FILE FUNC
//	- the lines as they are
//	+ the lines as the mutation has them
//	= why both do the same
//
//go:embed equivalents.txt
var listed string

// key says which change of which function a mutation is. It names no line, so that it stays
// when others change.
func (m *mutation) key() string { return key(m.File+" "+m.Func, m.Old, m.New) }

func key(where, old, by string) string { return where + "\n- " + old + "\n+ " + by }

// readEquivalents returns the reasons by key.
func readEquivalents(text string) (map[string]string, error) {
	reasons := map[string]string{}
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if block == "" {
			continue
		}
		var where string
		parts := map[byte][]string{}
		for line := range strings.SplitSeq(block, "\n") {
			switch {
			case strings.HasPrefix(line, "#"):
			case where == "":
				where = line
			case len(line) > 2 && strings.IndexByte("-+=", line[0]) >= 0 && line[1] == ' ':
				parts[line[0]] = append(parts[line[0]], line[2:])
			default:
				return nil, fmt.Errorf("equivalents: the line %q of the block %q begins neither with -, nor + nor =", line, where)
			}
		}
		if where == "" {
			continue
		}
		k := key(where, strings.Join(parts['-'], "\n"), strings.Join(parts['+'], "\n"))
		if len(parts['-']) == 0 || len(parts['=']) == 0 || reasons[k] != "" {
			return nil, fmt.Errorf("equivalents: the block %q has no line, no reason, or is there twice", where)
		}
		reasons[k] = strings.Join(parts['='], " ")
	}
	return reasons, nil
}

// block is a mutation as the list has it, but for the reason.
func (m *mutation) block() string {
	b := m.File + " " + m.Func + "\n- " + strings.ReplaceAll(m.Old, "\n", "\n- ")
	if m.New != "" {
		b += "\n+ " + strings.ReplaceAll(m.New, "\n", "\n+ ")
	}
	return b
}
