package tcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// A test that needs processes starts this binary again, with the job here.
const jobVariable = "RDMC_TEST_JOB"

func TestMain(m *testing.M) {
	if text := os.Getenv(jobVariable); text != "" {
		var j job
		err := json.Unmarshal([]byte(text), &j)
		if err == nil {
			err = j.run()
		}
		fmt.Println("end", err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// A job is one member of a group that sends some messages.
type job struct {
	Members   []string
	Self      int
	Algorithm schedule.Algorithm
	BlockSize int
	Messages  int
	DeadAfter time.Duration
	Slow      time.Duration // the root waits so long between messages
}

// message is what message i of a job consists of.
func (j *job) message(i int) []byte {
	r := rand.New(rand.NewPCG(uint64(i), 5))
	b := make([]byte, r.IntN(12*j.BlockSize))
	if i%2 == 0 {
		b = b[:min(len(b), r.IntN(9000))] // one for the ring
	}
	for at := range b {
		b[at] = byte(r.Uint32())
	}
	return b
}

func (j *job) run() error {
	// The bound for everything: whoever hangs ends by it, and shows where.
	time.AfterFunc(time.Minute, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("member %d hangs", j.Self))
	})
	ctx := context.Background()
	x, err := tcp.Connect(ctx, tcp.Options{Members: j.Members, Self: j.Self, DeadAfter: j.DeadAfter})
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	complete := 0
	g, err := rdmcfallback.Join(ctx, rdmcfallback.Config{
		Members: j.Members, Self: j.Self, Algorithm: j.Algorithm, BlockSize: j.BlockSize,
		Complete: func(msg []byte) {
			if string(msg) != string(j.message(complete)) {
				fmt.Println("torn", complete)
			}
			complete++
			fmt.Println("complete", complete)
		},
	}, x)
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	fmt.Println("joined")
	for i := range j.Messages {
		if j.Self == 0 {
			select {
			case <-time.After(j.Slow):
			case <-g.Done():
			}
			if err := g.Send(ctx, j.message(i)); err != nil {
				break // Close says why
			}
		}
	}
	err = g.Close(ctx)
	if f, ok := errors.AsType[*rdmcfallback.FailedError](err); ok {
		return fmt.Errorf("suspect=%d complete=%d %w", f.Suspect, f.Complete, f)
	}
	return err
}

// A subject is a member as a process.
type subject struct {
	cmd      *exec.Cmd
	mu       sync.Mutex
	lines    []string
	ended    time.Time
	complete int
	joined   chan struct{}
	done     chan struct{}
}

// begin starts all members, through the given command if any, and waits until
// they have joined.
func begin(t *testing.T, j job, through func(i int) []string) []*subject {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var all []*subject
	for i := range j.Members {
		j.Self = i
		text, err := json.Marshal(j)
		check(t, err)
		args := []string{exe}
		if through != nil {
			args = append(through(i), exe)
		}
		s := &subject{cmd: exec.Command(args[0], args[1:]...), joined: make(chan struct{}), done: make(chan struct{})}
		s.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
		s.cmd.Stderr = os.Stderr
		out, err := s.cmd.StdoutPipe()
		check(t, err)
		check(t, s.cmd.Start())
		t.Cleanup(func() {
			_ = s.cmd.Process.Kill()
			<-s.done
			_ = s.cmd.Wait()
		})
		go s.read(out)
		all = append(all, s)
	}
	for i, s := range all {
		select {
		case <-s.joined:
		case <-s.done:
			t.Fatalf("member %d: %q", i, s.report())
		}
	}
	return all
}

func (s *subject) read(out io.Reader) {
	defer close(s.done)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		s.mu.Lock()
		s.lines = append(s.lines, lines.Text())
		if n, ok := strings.CutPrefix(lines.Text(), "complete "); ok {
			s.complete, _ = strconv.Atoi(n)
		}
		s.ended = time.Now()
		s.mu.Unlock()
		if lines.Text() == "joined" {
			close(s.joined)
		}
	}
}

// report returns the last line.
func (s *subject) report() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) == 0 {
		return ""
	}
	return s.lines[len(s.lines)-1]
}

// judge waits for the survivors, who have to say the same about a victim (-1 if
// there is none) that was killed then, and returns whether the end was clean.
func judge(t *testing.T, all []*subject, victim, messages int, then time.Time, bound time.Duration) (clean bool) {
	t.Helper()
	for _, s := range all {
		select {
		case <-s.done:
		case <-time.After(70 * time.Second):
			t.Fatal("a member hangs")
		}
	}
	for i, s := range all {
		for _, line := range s.lines {
			if strings.HasPrefix(line, "torn") {
				t.Errorf("member %d: a message has other bytes than were sent: %q", i, s.lines)
			}
		}
		if i == victim {
			continue
		}
		end := s.report()
		switch {
		case end == "end <nil>":
			clean = true
			// Then everybody has everything, the victim too.
			for k, other := range all {
				if other.complete != messages {
					t.Errorf("member %d ended cleanly, but member %d has %d messages of %d", i, k, other.complete, messages)
				}
			}
		case victim < 0 || !strings.HasPrefix(end, fmt.Sprintf("end suspect=%d complete=%d ", victim, s.complete)):
			t.Errorf("member %d, which has %d messages, ended with %q; the victim is %d", i, s.complete, end, victim)
		case s.ended.Sub(then) > bound:
			t.Errorf("member %d heard after %v", i, s.ended.Sub(then))
		}
	}
	return clean
}

// TestKill kills one member, whichever, at a random moment.
func TestKill(t *testing.T) {
	samples := 16
	if os.Getenv("MCRDMA_LONG") == "1" {
		samples = 300
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	cleans := 0
	for i := range samples {
		n := 3 + r.IntN(5)
		victim := i % n
		ls, addrs := listen(t, n)
		for _, l := range ls {
			check(t, l.Close()) // for the members to use
		}
		j := job{Members: addrs, Algorithm: schedule.Algorithm(r.IntN(4)), BlockSize: 64 << 10, Messages: 40}
		all := begin(t, j, nil)
		// Some time within what the messages take, or a little later.
		time.Sleep(time.Duration(r.Int64N(int64(800 * time.Millisecond))))
		then := time.Now()
		check(t, all[victim].cmd.Process.Kill())
		if judge(t, all, victim, j.Messages, then, 5*time.Second) {
			cleans++
		}
		if t.Failed() {
			t.Fatalf("sample %d: %d members, %v, victim %d; lines of the victim: %q", i, n, j.Algorithm, victim, all[victim].lines)
		}
	}
	t.Logf("%d of %d groups ended cleanly before the kill", cleans, samples)
}

// A process that is stopped, as by a debugger, is found by its silence.
func TestStop(t *testing.T) {
	for victim := range 3 {
		ls, addrs := listen(t, 3)
		for _, l := range ls {
			check(t, l.Close())
		}
		j := job{Members: addrs, BlockSize: 64 << 10, Messages: 1000, DeadAfter: time.Second, Slow: time.Millisecond}
		all := begin(t, j, nil)
		then := time.Now()
		check(t, all[victim].cmd.Process.Signal(syscall.SIGSTOP))
		for i, s := range all {
			if i != victim {
				<-s.done
			}
		}
		check(t, all[victim].cmd.Process.Kill())
		judge(t, all, victim, j.Messages, then, 3*time.Second)
	}
}

// A host that vanishes from the network, in the middle of all or when nothing
// happens.
func TestNamespaceVanishes(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprint("idle=", idle), func(t *testing.T) { vanish(t, idle) })
	}
}

func vanish(t *testing.T, idle bool) {
	const n = 3
	j := job{BlockSize: 64 << 10, Messages: 1 << 20, DeadAfter: time.Second}
	if idle {
		j.Messages, j.Slow = 1, time.Hour
	}
	ip := func(format string, args ...any) {
		t.Helper()
		line := fmt.Sprintf(format, args...)
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	ns := func(i int) string { return fmt.Sprintf("rdmcv%d-%d", os.Getpid(), i) } // n is the one with the bridge
	for i := n; i >= 0; i-- {
		ip("netns add %s", ns(i))
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns(i)).Run() })
		if i == n {
			ip("-n %s link add bridge type bridge", ns(n))
			ip("-n %s link set bridge up", ns(n))
			continue
		}
		ip("-n %s link add name e0 type veth peer name port%d netns %s", ns(i), i, ns(n))
		ip("-n %s addr add 10.98.0.%d/24 dev e0", ns(i), i+1)
		ip("-n %s link set e0 up", ns(i))
		ip("-n %s link set port%d master bridge up", ns(n), i)
	}
	for i := range n {
		j.Members = append(j.Members, fmt.Sprintf("10.98.0.%d:4000", i+1))
	}
	all := begin(t, j, func(i int) []string { return []string{"ip", "netns", "exec", ns(i)} })
	const victim = 1
	then := time.Now()
	ip("-n %s link set port%d down", ns(n), victim)
	for i, s := range all {
		if i != victim {
			<-s.done
		}
	}
	<-all[victim].done // it knows as well
	judge(t, all, victim, j.Messages, then, 3*time.Second)
}

// Nobody is killed: all ends cleanly.
func TestProcesses(t *testing.T) {
	ls, addrs := listen(t, 6)
	for _, l := range ls {
		check(t, l.Close())
	}
	j := job{Members: addrs, BlockSize: 64 << 10, Messages: 20}
	if !judge(t, begin(t, j, nil), -1, j.Messages, time.Now(), 0) {
		t.Error("not clean")
	}
}
