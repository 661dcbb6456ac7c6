package skew

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const program = `package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

func main() {
	begun := time.Now()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(time.Now().UnixNano(), time.Since(begun).Nanoseconds())
	}
}
`

// A program's clock jumps when it is set, in either direction, and measured times do not.
func TestClock(t *testing.T) {
	dir := t.TempDir()
	overlay, err := Overlay(dir)
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", filepath.Join(dir, "program"), source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c, err := NewClock(filepath.Join(dir, "clock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cmd := exec.Command(filepath.Join(dir, "program"))
	cmd.Env = append(os.Environ(), Variable+"="+filepath.Join(dir, "clock"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	lines := bufio.NewScanner(out)
	for _, ahead := range []time.Duration{0, 3 * time.Hour, -1500 * time.Millisecond, -72 * time.Hour, 1} {
		if err := c.Set(ahead); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		_, _ = fmt.Fprintln(in)
		if !lines.Scan() {
			t.Fatal("it says nothing")
		}
		after := time.Now()
		var wall, measured int64
		if _, err := fmt.Sscan(lines.Text(), &wall, &measured); err != nil {
			t.Fatal(err)
		}
		if now := time.Unix(0, wall).Add(-ahead); now.Before(before.Round(0)) || now.After(after.Round(0)) {
			t.Errorf("set %v ahead, its time is %v ahead", ahead, time.Unix(0, wall).Sub(after))
		}
		if d := time.Duration(measured); d < 0 || d > time.Minute {
			t.Errorf("set %v ahead, it measures %v since its start", ahead, d)
		}
	}
}

// An unknown package time is refused.
func TestUnknown(t *testing.T) {
	if _, err := replace("package time\n\nfunc Now() Time { return now() }\n"); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("%v", err)
	}
}
