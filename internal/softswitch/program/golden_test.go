package program

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestGolden runs the scripts in testdata/golden. Their commands are
//
//	load <file>      loads testdata/<file>.json and prints the program or the error
//	broken <file>    loads it after the edits that follow, and prints the error
//
// An edit is "path = JSON", "path -" (take it away) or "path + JSON" (append to an
// array), where a path's elements are member names, indices, or [name] for the
// array's object of that name.
func TestGolden(t *testing.T) {
	datadriven.Walk(t, "testdata/golden", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			text := readSample(t, d.CmdArgs[0].Key)
			switch d.Cmd {
			case "load":
			case "broken":
				text = edit(t, text, d.Input)
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			p, err := Load(text)
			switch {
			case err != nil:
				return err.Error() + "\n"
			case d.Cmd == "broken":
				t.Errorf("%s: loads nevertheless", d.Pos)
				return ""
			}
			return p.String()
		})
	})
}

func readSample(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// edit applies edits, one on each line, to a JSON text.
func edit(t testing.TB, text []byte, edits string) []byte {
	t.Helper()
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(edits) {
		path, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		op, value, _ := strings.Cut(rest, " ")
		var v any
		if op != "-" {
			if err := json.Unmarshal([]byte(value), &v); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		var err error
		if tree, err = change(tree, strings.Split(path, "/"), op, v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	out, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// change returns tree with one edit applied to what path leads to.
func change(tree any, path []string, op string, v any) (any, error) {
	if len(path) == 0 {
		switch l, ok := tree.([]any); {
		case op == "=":
			return v, nil
		case op == "+" && ok:
			return append(l, v), nil
		}
		return nil, fmt.Errorf("cannot %s", op)
	}
	switch n := tree.(type) {
	case map[string]any:
		if op == "-" && len(path) == 1 {
			if _, ok := n[path[0]]; !ok {
				return nil, fmt.Errorf("no member %s", path[0])
			}
			delete(n, path[0])
			return n, nil
		}
		sub, err := change(n[path[0]], path[1:], op, v)
		n[path[0]] = sub
		return n, err
	case []any:
		i, err := position(n, path[0])
		if err != nil {
			return nil, err
		}
		if op == "-" && len(path) == 1 {
			return append(n[:i], n[i+1:]...), nil
		}
		n[i], err = change(n[i], path[1:], op, v)
		return n, err
	}
	return nil, fmt.Errorf("%s is beneath a scalar", path[0])
}

func position(list []any, at string) (int, error) {
	for i, e := range list {
		if o, ok := e.(map[string]any); ok && "["+fmt.Sprint(o["name"])+"]" == at {
			return i, nil
		}
	}
	i, err := strconv.Atoi(at)
	if err != nil || i < 0 || i >= len(list) {
		return 0, fmt.Errorf("no element %s", at)
	}
	return i, nil
}
