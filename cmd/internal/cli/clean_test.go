package cli

import (
	"fmt"
	"strings"
	"testing"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain – ü 漢": "plain – ü 漢", "a\x1b[31mb": "a\uFFFD[31mb", "a\nb\tc\r": "a b c\uFFFD", "\u202egnp": "\uFFFDgnp", "\u009b2J": "\uFFFD2J",
	} {
		if got := Clean(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	const bad, good = "x\x1b[2J", "x\uFFFD[2J"
	m := &mcrdmav1.GetStatusResponse{Name: bad, Problems: []string{"a", bad}, P4Runtime: &mcrdmav1.P4RuntimeStatus{Error: bad},
		Peers: []*mcrdmav1.PeerStatus{{Name: "b"}, {Agent: bad}}}
	CleanMessage(m)
	if s := fmt.Sprint(m.Name, m.Problems[1], m.P4Runtime.Error, m.Peers[1].Agent); s != strings.Repeat(good, 4) {
		t.Errorf("%q", s)
	}
}
