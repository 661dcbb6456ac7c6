package main

import (
	"fmt"
	"strings"
	"time"
)

// each carries out plans, and reports the result of each, and of all if there are several.
func each[P interface{ Name() string }](plans []P, run func(P) (text string, kept bool, err error), sum func() string) error {
	begun, failed := time.Now(), []string{}
	for _, p := range plans {
		text, kept, err := run(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
		fmt.Println(text)
		if !kept {
			failed = append(failed, p.Name())
		}
	}
	if len(plans) > 1 {
		fmt.Printf("%d runs in %v: %s\n", len(plans), time.Since(begun).Round(time.Second), sum())
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d runs failed: %s", len(failed), len(plans), strings.Join(failed, ", "))
	}
	return nil
}

// verdict is the last line of a report.
func verdict(violations []string, took time.Duration) string {
	if len(violations) == 0 {
		return fmt.Sprintf("  all promises were kept (%.1f s)", took.Seconds())
	}
	return "  VIOLATION " + strings.Join(violations, "\n  VIOLATION ")
}

// copiesText describes the mode of the ICRC before the first fault, and the number of copies in the
// kernel; "": no switch made copies.
func copiesText(copies int, inKernel uint64) (text string) {
	if copies > 0 {
		text = fmt.Sprintf("  switches keep the ICRC of their copies, for %d receivers\n", copies)
	}
	if inKernel > 0 {
		text += fmt.Sprintf("  %d packets were copied in the kernel\n", inKernel)
	}
	return text
}
