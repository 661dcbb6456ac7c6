package tna_test

import (
	"os"
	"testing"

	"github.com/mcrdma/mcrdma/internal/made"
	"github.com/mcrdma/mcrdma/p4src/tna"
)

// TestArtifactsAreCurrent fails when the sources have changed and were not compiled.
func TestArtifactsAreCurrent(t *testing.T) {
	sources, shim, err := tna.Hash(os.DirFS("."), tna.Shim)
	if err != nil {
		t.Fatal(err)
	}
	if was := made.Value(tna.Made, "sources"); was != sources {
		t.Errorf("made.txt and shim.json are of other sources (%s, now %s); run: make p4-tna", was, sources)
	}
	if was := made.Value(tna.Made, "shim"); was != shim {
		t.Errorf("shim.json was edited (%s, compiled as %s); run: make p4-tna", shim, was)
	}
}
