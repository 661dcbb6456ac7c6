package hostclock

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestMain says what a further process sees.
func TestMain(m *testing.M) {
	if os.Getenv("HOSTCLOCK_SAY") != "" {
		fmt.Printf("%d\n%s\n", Now(), Name())
		return
	}
	os.Exit(m.Run())
}

// ask runs this program once more, and returns what it says.
func ask(t *testing.T, under ...string) (now int64, name string, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	if len(under) > 0 {
		cmd = exec.Command(under[0], append(under[1:], os.Args[0])...)
	}
	cmd.Env = append(os.Environ(), "HOSTCLOCK_SAY=1")
	out, err := cmd.Output()
	if err != nil {
		return 0, "", err
	}
	first, name, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if _, err := fmt.Sscan(first, &now); err != nil {
		t.Fatal(err)
	}
	return now, name, nil
}

// Two processes of a host have the same clock.
func TestProcesses(t *testing.T) {
	before := Now()
	now, name, err := ask(t)
	after := Now()
	if err != nil {
		t.Fatal(err)
	}
	if now < before || now > after {
		t.Errorf("another process reads %d between %d and %d", now, before, after)
	}
	if name != Name() || len(name) < 36 {
		t.Errorf("its clock is %q, this one %q", name, Name())
	}
}

// In another time namespace the clock may say anything: it has another name.
func TestTimeNamespace(t *testing.T) {
	before := Now()
	now, name, err := ask(t, "unshare", "--time", "--fork", "--monotonic", "1000")
	if err != nil {
		testenv.Skip(t, "no time namespace can be made: %v", err)
	}
	if now-before < 999_000_000 {
		t.Fatalf("the clock is not another one: %d, %d", before, now)
	}
	if name == Name() {
		t.Errorf("both clocks are %q", name)
	}
}
