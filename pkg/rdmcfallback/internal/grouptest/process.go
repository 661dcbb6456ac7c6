package grouptest

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
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// A test that needs processes starts its binary again, with the job here.
const jobVariable = "RDMC_TEST_JOB"

// A ConnectProcess makes the transport of the member that this process is.
type ConnectProcess func(ctx context.Context, j *Job) (rdmcfallback.Transport, error)

// MainOfProcess is to be called first by TestMain: in a process that is a member, it
// does the member's job and doesn't return.
func MainOfProcess(connect ConnectProcess) {
	text := os.Getenv(jobVariable)
	if text == "" {
		return
	}
	var j Job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.run(connect)
	}
	fmt.Println("end", err)
	os.Exit(0)
}

// A Job is one member of a group that sends some messages.
type Job struct {
	Members   []string
	Self      int
	Algorithm schedule.Algorithm
	BlockSize int
	Messages  int
	DeadAfter time.Duration
	Slow      time.Duration // the root waits so long between messages
}

// message is what message i of a job consists of.
func (j *Job) message(i int) []byte {
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

func (j *Job) run(connect ConnectProcess) error {
	// The limit for everything: it ends a process that hangs, and shows where.
	time.AfterFunc(time.Minute, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("member %d hangs", j.Self))
	})
	ctx := context.Background()
	x, err := connect(ctx, j)
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

// A Subject is a member as a process.
type Subject struct {
	Cmd      *exec.Cmd
	mu       sync.Mutex
	lines    []string
	ended    time.Time
	complete int
	joined   chan struct{}
	Done     chan struct{} // closed when it has ended
}

// Begin starts all members, through the given command if any, and waits until
// they have joined.
func Begin(t *testing.T, j Job, through func(i int) []string) []*Subject {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var all []*Subject
	for i := range j.Members {
		j.Self = i
		text, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		args := []string{exe}
		if through != nil {
			args = append(through(i), exe)
		}
		s := &Subject{Cmd: exec.Command(args[0], args[1:]...), joined: make(chan struct{}), Done: make(chan struct{})}
		s.Cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
		s.Cmd.Stderr = os.Stderr
		out, err := s.Cmd.StdoutPipe()
		if err = errors.Join(err, s.Cmd.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = s.Cmd.Process.Kill()
			<-s.Done
			_ = s.Cmd.Wait()
		})
		go s.read(out)
		all = append(all, s)
	}
	for i, s := range all {
		select {
		case <-s.joined:
		case <-s.Done:
			t.Fatalf("member %d: %q", i, s.report())
		}
	}
	return all
}

func (s *Subject) read(out io.Reader) {
	defer close(s.Done)
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
func (s *Subject) report() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) == 0 {
		return ""
	}
	return s.lines[len(s.lines)-1]
}

// Judge waits for the survivors, which have to say the same about a victim (-1 if there is
// none) that was killed then, and returns whether the end was clean.
func Judge(t *testing.T, all []*Subject, victim, messages int, then time.Time, bound time.Duration) (clean bool) {
	t.Helper()
	for _, s := range all {
		select {
		case <-s.Done:
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
			// Then all members have everything, the victim too.
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

// Kill kills a random member at a random moment, repeatedly. addresses returns addresses
// for n members.
func Kill(t *testing.T, addresses func(n int) []string) {
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
		j := Job{Members: addresses(n), Algorithm: schedule.Algorithm(r.IntN(4)), BlockSize: 64 << 10, Messages: 150}
		all := Begin(t, j, nil)
		// Some time within what the messages take, or a little later.
		time.Sleep(time.Duration(r.Int64N(int64(800 * time.Millisecond))))
		then := time.Now()
		if err := all[victim].Cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if Judge(t, all, victim, j.Messages, then, 5*time.Second) {
			cleans++
		}
		if t.Failed() {
			t.Fatalf("sample %d: %d members, %v, victim %d; lines of the victim: %q", i, n, j.Algorithm, victim, all[victim].lines)
		}
	}
	t.Logf("%d of %d groups ended cleanly before the kill", cleans, samples)
}
