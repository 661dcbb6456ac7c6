package findings

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	list := []Finding{
		{Error, "torA", "is down", "no power", "plug it in"},
		{Error, "torB", "is down", "", ""},
		{Note, "h1", "is old", "", ""},
	}
	var b strings.Builder
	if err := Text(&b, list, "3 things", false); err != nil {
		t.Fatal(err)
	}
	want := `ERROR    torA: is down
         why: no power
         do:  plug it in
ERROR    torB: is down
NOTE     h1: is old

2 errors, 1 note; looked at 3 things
`
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	b.Reset()
	if err := Text(&b, list[2:], "it", true); err != nil || !strings.Contains(b.String(), "\x1b[36mNOTE    \x1b[0m h1") {
		t.Errorf("%q, %v", b.String(), err)
	}
	b.Reset()
	if err := Text(&b, nil, "it", true); err != nil || b.String() != "all is well; looked at it\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// TestList: the worst findings come first, and only an error makes a command fail.
func TestList(t *testing.T) {
	var l List
	l.Add(Note, "a", "", "", "")
	if l.Add(Warning, "b", "", "", ""); Failed(l.Sorted(), Error) != nil || Failed(nil, Error) != nil {
		t.Error("a warning is no failure")
	}
	if l.Add(Error, "c", "", "", ""); Failed(l.Sorted(), Error) == nil || l.Sorted()[0].Subject != "c" || l.Sorted()[2].Subject != "a" {
		t.Errorf("%v", l)
	}
	if text, err := json.Marshal(Finding{Severity: Warning, Subject: "x", What: "y"}); err != nil || string(text) != `{"severity":"warning","subject":"x","what":"y"}` {
		t.Errorf("%s, %v", text, err)
	}
}
