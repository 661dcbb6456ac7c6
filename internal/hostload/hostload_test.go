package hostload

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestBusy(t *testing.T) {
	begun := time.Unix(1000, 0)
	text := func(avg10 float64, waited time.Duration) []byte {
		return fmt.Appendf(nil, "some avg10=%.2f avg60=0.00 avg300=0.00 total=%d\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=9\n", avg10, waited.Microseconds())
	}
	var m Meter
	for i, c := range []struct {
		after  time.Duration
		text   []byte
		want   bool
		reason string
	}{
		{0, text(0, time.Hour), false, "nothing to compare with"},
		{100 * time.Millisecond, text(0, time.Hour+89*time.Millisecond), false, "less than nine tenths"},
		{200 * time.Millisecond, text(0, time.Hour+179*time.Millisecond), true, "nine tenths of the time"},
		{300 * time.Millisecond, text(79.99, time.Hour+179*time.Millisecond), false, "nothing waits any more"},
		{400 * time.Millisecond, text(80, time.Hour+179*time.Millisecond), true, "four fifths of ten seconds"},
		{500 * time.Millisecond, []byte("some avg10=x"), false, "not to be read"},
		{600 * time.Millisecond, nil, false, "empty"},
	} {
		if m.look(c.text, begun.Add(c.after)); m.busy != c.want {
			t.Errorf("%d, %s: busy is %v", i, c.reason, m.busy)
		}
	}
}

// TestBusyKeepsFile: the file is opened once, and each look reads all of it, as it is then.
func TestBusyKeepsFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "cpu")
	write := func(avg10 int) {
		t.Helper()
		if err := os.WriteFile(name, fmt.Appendf(nil, "some avg10=%d.00 avg60=0.00 avg300=0.00 total=9\n", avg10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	m := Meter{file: file}
	now := time.Unix(1000, 0)
	for i, busy := range []bool{false, true, false} {
		write(map[bool]int{false: 7, true: 90}[busy])
		if now = now.Add(between); m.Busy(now) != busy || m.file != file {
			t.Errorf("look %d: busy is %v", i, !busy)
		}
	}
	write(90)
	if m.Busy(now.Add(between - 1)) {
		t.Error("looks again too soon")
	}
}
