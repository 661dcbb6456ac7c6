package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

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

// A usage is what uses an element of the hardware.
type usage struct {
	By string `json:"used_by"`
}

// A grid is memory blocks: those that are there, and those in use.
type grid struct {
	NRows    int        `json:"nRows"`
	NColumns int        `json:"nColumns"`
	SRAM     []struct{} `json:"srams"`
	TCAM     []struct{} `json:"tcams"`
}

// resources reduces resources.json to a line for each stage and one for all: memory blocks, logical tables, and
// the registers whose stateful ALU is there.
func resources(name, file string) (string, error) {
	var report struct {
		Resources struct {
			MAU struct {
				Stages []struct {
					Number  int  `json:"stage_number"`
					RAMs    grid `json:"rams"`
					TCAMs   grid `json:"tcams"`
					Logical struct {
						IDs []struct {
							Usages []usage
						}
					} `json:"logical_tables"`
					ALUs struct {
						Meters []struct {
							Usages []usage
						}
					} `json:"meter_alus"`
				} `json:"mau_stages"`
			}
		}
	}
	if err := read(file, &report); err != nil {
		return "", err
	}
	stages := report.Resources.MAU.Stages
	if len(stages) == 0 {
		return "", fmt.Errorf("%w: %s: no stages", errReport, file)
	}
	var out strings.Builder
	var sram, srams, tcam, tcams, used int
	for _, s := range stages {
		sram, srams = sram+len(s.RAMs.SRAM), srams+s.RAMs.NRows*s.RAMs.NColumns
		tcam, tcams = tcam+len(s.TCAMs.TCAM), tcams+s.TCAMs.NRows*s.TCAMs.NColumns
		if len(s.Logical.IDs) > 0 {
			used++
		}
		var registers []string
		for _, m := range s.ALUs.Meters {
			for _, u := range m.Usages {
				registers = append(registers, u.By[strings.LastIndexByte(u.By, '.')+1:])
			}
		}
		slices.Sort(registers)
		fmt.Fprintf(&out, "%s.stage.%d tables=%d sram=%d tcam=%d stateful=%s\n", name, s.Number, len(s.Logical.IDs),
			len(s.RAMs.SRAM), len(s.TCAMs.TCAM), strings.Join(slices.Compact(registers), ","))
	}
	fmt.Fprintf(&out, "%s.total stages=%d/%d sram=%d/%d tcam=%d/%d\n", name, used, len(stages), sram, srams, tcam, tcams)
	return out.String(), nil
}

// phv counts the containers that hold something, by kind and width.
func phv(file string) (string, error) {
	var report struct {
		Containers []struct {
			Width  int        `json:"bit_width"`
			Type   string     `json:"container_type"`
			Slices []struct{} `json:"slices"`
		}
	}
	if err := read(file, &report); err != nil {
		return "", err
	}
	n := map[string]int{}
	for _, c := range report.Containers {
		if len(c.Slices) > 0 {
			n[fmt.Sprintf("%s%02d", c.Type, c.Width)]++
		}
	}
	var kinds []string
	for k, n := range n {
		kinds = append(kinds, fmt.Sprintf("%s=%d", k, n))
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " "), nil
}
