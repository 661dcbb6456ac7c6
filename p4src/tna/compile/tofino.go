package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A target is a chip, and how many members its groups have.
type target struct {
	name, arch, number string
	members            int
}

var targets = []target{{"tofino", "tna", "1", 6}, {"tofino2", "t2na", "2", 14}}

// compile compiles and assembles tna.p4. It returns lines that say what it takes of the chip.
func (t *target) compile(ctx context.Context, to string) (string, error) {
	if err := command(ctx, "p4c-barefoot", "--target", t.name, "--arch", t.arch, "-D__TARGET_TOFINO__="+t.number,
		fmt.Sprintf("-DMEMBERS=%d", t.members), "-g", "-o", to, "tna.p4"); err != nil {
		return "", err
	}
	pipe := filepath.Join(to, "pipe")
	if err := command(ctx, "bfas", "--target", t.name, "-o", pipe, filepath.Join(pipe, "tna.bfa")); err != nil {
		return "", err
	}
	logs := filepath.Join(pipe, "logs")
	stages, err := stages(t.name, filepath.Join(logs, "resources.json"))
	if err != nil {
		return "", err
	}
	containers, err := containers(filepath.Join(logs, "phv.json"))
	return fmt.Sprintf("%s.members %d\n%s.phv %s\n%s", t.name, t.members, t.name, containers, stages), err
}

var errReport = errors.New("the compiler's report is not what was expected")

func read(file string, v any) error {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errReport, file, err)
	}
	return nil
}

// A grid is memory blocks: those that are there, and those in use.
type grid struct {
	NRows    int        `json:"nRows"`
	NColumns int        `json:"nColumns"`
	SRAM     []struct{} `json:"srams"`
	TCAM     []struct{} `json:"tcams"`
}

// stages returns a line for all stages and one for each: memory blocks, logical tables, and the registers whose
// stateful ALU is there. The compiler places tables in more stages than there are, too: that is an error.
func stages(name, file string) (string, error) {
	var report struct {
		Resources struct {
			MAU struct {
				NStages int `json:"nStages"`
				Stages  []struct {
					Number  int  `json:"stage_number"`
					RAMs    grid `json:"rams"`
					TCAMs   grid `json:"tcams"`
					Logical struct {
						IDs []struct{} `json:"ids"`
					} `json:"logical_tables"`
					ALUs struct {
						Meters []struct {
							Usages []struct {
								By string `json:"used_by"`
							} `json:"usages"`
						} `json:"meters"`
					} `json:"meter_alus"`
				} `json:"mau_stages"`
			} `json:"mau"`
		} `json:"resources"`
	}
	if err := read(file, &report); err != nil {
		return "", err
	}
	mau := report.Resources.MAU
	if n := len(mau.Stages); n == 0 || n > mau.NStages {
		return "", fmt.Errorf("%s has %d stages, and the program takes %d", name, mau.NStages, n)
	}
	var lines strings.Builder
	var sram, tcam int
	for _, s := range mau.Stages {
		sram, tcam = sram+len(s.RAMs.SRAM), tcam+len(s.TCAMs.TCAM)
		var registers []string
		for _, m := range s.ALUs.Meters {
			for _, u := range m.Usages {
				registers = append(registers, u.By[strings.LastIndexByte(u.By, '.')+1:])
			}
		}
		slices.Sort(registers)
		fmt.Fprintf(&lines, "%s.stage.%d tables=%d sram=%d tcam=%d alus=%s\n", name, s.Number, len(s.Logical.IDs),
			len(s.RAMs.SRAM), len(s.TCAMs.TCAM), strings.Join(registers, ","))
	}
	first := mau.Stages[0]
	return fmt.Sprintf("%s.total stages=%d/%d sram=%d/%d tcam=%d/%d\n", name, len(mau.Stages), mau.NStages,
		sram, mau.NStages*first.RAMs.NRows*first.RAMs.NColumns, tcam, mau.NStages*first.TCAMs.NRows*first.TCAMs.NColumns) + lines.String(), nil
}

// containers counts those that hold something, of those that there are, by width in bits.
func containers(file string) (string, error) {
	var report struct {
		Containers []struct {
			Width  int        `json:"bit_width"`
			Slices []struct{} `json:"slices"`
		} `json:"containers"`
		Resources []struct { // twice: as the deparser groups them, too
			Group string `json:"group_type"`
			Width int    `json:"bit_width"`
			N     int    `json:"num_containers"`
		} `json:"resources"`
	}
	if err := read(file, &report); err != nil {
		return "", err
	}
	used, there := map[int]int{}, map[int]int{}
	for _, c := range report.Containers {
		if len(c.Slices) > 0 {
			used[c.Width]++
		}
	}
	for _, r := range report.Resources {
		if r.Group == "mau" {
			there[r.Width] += r.N
		}
	}
	var out []string
	for _, w := range []int{8, 16, 32} {
		if used[w] > there[w] || there[w] == 0 {
			return "", fmt.Errorf("%w: %s: %d containers of %d bits, of %d", errReport, file, used[w], w, there[w])
		}
		out = append(out, fmt.Sprintf("%db=%d/%d", w, used[w], there[w]))
	}
	return strings.Join(out, " "), nil
}
