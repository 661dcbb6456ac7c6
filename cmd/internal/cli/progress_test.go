package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestProgress: no output in the first second, and then once a second.
func TestProgress(t *testing.T) {
	var b testenv.SyncBuffer
	p := NewProgress(&b)
	p.Say(func() string { return "1 of 100 groups" })
	if b.String() != "" {
		t.Errorf("%q", b.String())
	}
	p.last = p.last.Add(-time.Second)
	p.Say(func() string { return "2 of 100 groups" })
	p.Say(func() string { return "3 of 100 groups" })
	p.Done()
	if b.String() != "2 of 100 groups\n" {
		t.Errorf("%q", b.String())
	}
	p.live, p.last = true, p.last.Add(-time.Second)
	p.Say(func() string { return "4 of 100 groups" })
	p.Done()
	if want := "\r\x1b[K4 of 100 groups\r\x1b[K"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("%q", b.String())
	}
}
