package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/tests/chaos/volume"
	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// volumeRuns carries out plans.
func volumeRuns(t *testing.T, plans ...*volume.Plan) (results []*volumeResult) {
	testenv.WithoutRace(t, noRace)
	if os.Getenv("MCRDMA_E2E") == "" {
		t.Skip("optional: whole racks with volumes belong to \"make e2e\"")
	}
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	p, err := buildVolumes(filepath.Join(base, "volumes"), plans...)
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range plans {
		res, err := oneVolume(t.Context(), p, base, what, manner{}, "")
		if errors.Is(err, lab.ErrUnable) {
			testenv.Skip(t, "%v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		t.Log(reportVolume(what, res))
		results = append(results, res)
	}
	return results
}

// TestVolumesWithoutRace: a row in which all lose power, and a random plan, keep the promises.
func TestVolumesWithoutRace(t *testing.T) {
	const power = 6 // of Rows
	plans := []*volume.Plan{volume.Rows()[power], volume.Make(*seed)}
	for i, res := range volumeRuns(t, plans...) {
		if len(res.Violations) > 0 {
			t.Errorf("replay: go run ./tests/chaos -volumes -%s", plans[i].Name())
		}
		if i == 0 && res.Losses != 1 {
			t.Errorf("power was lost once, and all memory %d times", res.Losses)
		}
	}
}

// TestVolumeClocksWithoutRace: jumps of all hosts' clocks by an hour, back and ahead, change
// nothing, not even the map; and a host that starts with a wrong clock comes back.
func TestVolumeClocksWithoutRace(t *testing.T) {
	rows := slices.DeleteFunc(volume.Rows(), func(p *volume.Plan) bool { return !p.SetsClocks() })
	for i, res := range volumeRuns(t, rows...) {
		if len(res.Violations) > 0 {
			t.Errorf("replay: go run ./tests/chaos -volumes -%s", rows[i].Name())
		}
	}
}

// TestVolumeLiarWithoutRace: disks that report syncs too early are found.
func TestVolumeLiarWithoutRace(t *testing.T) {
	bad := volumeRuns(t, volume.Liar(1))[0].Violations
	for _, v := range bad {
		if strings.HasPrefix(v, "block ") {
			return
		}
	}
	t.Errorf("it is not found: %q", bad)
}
