package p4rt

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

const stoppedAt = "P4RT_TEST_STOPPED_AT"

// TestStoppedWithoutRace: a process that was stopped for longer than a switch may be silent keeps its session. It
// opens one in a process of its own.
func TestStoppedWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "it stops a process")
	if target := os.Getenv(stoppedAt); target != "" {
		s := ready(t, target)
		fmt.Println("open")
		_, _ = os.Stdin.Read(make([]byte, 1))
		time.Sleep(askEach / 2)
		fmt.Println("then:", s.Err())
		return
	}
	r := embedded(t, grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if _, ok := req.(*p4.CapabilitiesRequest); ok {
			time.Sleep(askEach * 3 / 4) // so that it is stopped while it waits for an answer
		}
		return h(ctx, req)
	}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestStoppedWithoutRace$")
	cmd.Env = append(os.Environ(), stoppedAt+"="+r.target)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
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
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	line := func(prefix string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("it ended without %q", prefix)
		return ""
	}
	line("open")
	for range 3 { // at different moments of the second in which it asks
		time.Sleep(askEach / 3)
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(asks*askEach + askEach/2)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	_ = in.Close()
	if got := line("then:"); got != "then: <nil>" {
		t.Error(got)
	}
}
