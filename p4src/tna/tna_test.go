package tna_test

import (
	"fmt"
	"os"
	"regexp"
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

// TestDocumentedResources: docs/hardware.md has the compiler's figures.
func TestDocumentedResources(t *testing.T) {
	doc, err := os.ReadFile("../../docs/hardware.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, title := range map[string]string{"tofino": "Tofino", "tofino2": "Tofino 2"} {
		row := regexp.MustCompile(`\| ` + title + ` \| (\d+) \| \d+ \| (\d+) of (\d+) \| (\d+) of (\d+) \| (\d+) of (\d+) \| (\d+) of (\d+), (\d+) of (\d+), (\d+) of (\d+) \|`)
		f := row.FindSubmatch(doc)
		if f == nil {
			t.Fatalf("%s has no row", title)
		}
		want := fmt.Sprintf("%s / stages=%s/%s sram=%s/%s tcam=%s/%s / 8b=%s/%s 16b=%s/%s 32b=%s/%s", f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10], f[11], f[12], f[13])
		if made := made.Value(tna.Made, name+".members") + " / " + made.Value(tna.Made, name+".total") + " / " + made.Value(tna.Made, name+".phv"); made != want {
			t.Errorf("docs/hardware.md says %s\nmade.txt %s", want, made)
		}
	}
}
