package watch

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test's own binary is the watched program, and calls Exec itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "watched" {
		fmt.Println(Exec(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	if len(os.Args) > 2 && os.Args[1] == "write" {
		f, err := os.Create(os.Args[2])
		for n := 1; err == nil; n++ {
			if _, err = f.WriteString("x"); err == nil {
				err = unix.Fdatasync(int(f.Fd())) //nolint:gosec // a descriptor
			}
			fmt.Println(n)
			time.Sleep(time.Millisecond)
		}
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A process dies directly before the given write, each time it is started.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	var process *os.Process
	w, err := Listen(filepath.Join(dir, "socket"), func() {
		mu.Lock()
		defer mu.Unlock()
		_ = process.Kill()
	})
	if err != nil {
		t.Fatal(err)
	}
	for round, n := range []int{1, 7, 2} {
		died := w.Arm(n, time.Duration(round)*20*time.Millisecond)
		cmd := exec.Command(os.Args[0], "watched", filepath.Join(dir, "socket"), os.Args[0], "write", filepath.Join(dir, "file"))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		before := w.Writes()
		mu.Lock()
		err = cmd.Start()
		process = cmd.Process
		mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		last := ""
		for s := bufio.NewScanner(out); s.Scan(); {
			last = s.Text()
		}
		if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Fatalf("%v; it said %q", err, last)
		}
		<-died
		if want := fmt.Sprint(n - 1); last != want && (n > 1 || last != "") {
			t.Errorf("it was killed before write %d, and its last was %s", n, last)
		}
		if got := w.Writes() - before; got != n {
			t.Errorf("%d writes were counted, want %d", got, n)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
