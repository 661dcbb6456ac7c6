package rdmcfallback_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/rdma"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// A test that needs processes starts its binary again, with the job here.
const jobVariable = "RDMC_TEST_JOB"

func TestMain(m *testing.M) {
	text := os.Getenv(jobVariable)
	if text == "" {
		goleak.VerifyTestMain(m)
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.run()
	}
	fmt.Println("end", err)
	os.Exit(0)
}

// A job is one member of a group that sends some messages.
type job struct {
	RDMA      bool // over a device, not TCP
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

// connect makes the transport of the member that this process is.
func (j *job) connect(ctx context.Context) (rdmcfallback.Transport, error) {
	o := tcp.Options{Members: j.Members, Self: j.Self, DeadAfter: j.DeadAfter}
	if !j.RDMA {
		return tcp.Connect(ctx, o)
	}
	host, _, err := net.SplitHostPort(j.Members[j.Self])
	if err != nil {
		return nil, err
	}
	dev, err := qp.Open("softroce:" + host)
	if err != nil {
		return nil, err
	}
	return rdma.Connect(ctx, rdma.Options{Options: o, Device: dev})
}

func (j *job) run() error {
	// The limit for everything: it ends a process that hangs, and shows where.
	time.AfterFunc(time.Minute, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("member %d hangs", j.Self))
	})
	ctx := context.Background()
	x, err := j.connect(ctx)
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
	complete int
	joined   chan struct{}
	done     chan struct{} // closed when it has ended
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
		if err != nil {
			t.Fatal(err)
		}
		args := []string{exe}
		if through != nil {
			args = append(through(i), exe)
		}
		s := &subject{cmd: exec.Command(args[0], args[1:]...), joined: make(chan struct{}), done: make(chan struct{})}
		s.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
		s.cmd.Stderr = os.Stderr
		out, err := s.cmd.StdoutPipe()
		if err = errors.Join(err, s.cmd.Start()); err != nil {
			t.Fatal(err)
		}
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

// judge waits for the survivors, which have to say the same about a victim (-1 if there is
// none) that was killed then, and returns whether the end was clean.
func judge(t *testing.T, all []*subject, victim, messages int) (clean bool) {
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
			// Then all members have everything, the victim too.
			for k, other := range all {
				if other.complete != messages {
					t.Errorf("member %d ended cleanly, but member %d has %d messages of %d", i, k, other.complete, messages)
				}
			}
		case victim < 0 || !strings.HasPrefix(end, fmt.Sprintf("end suspect=%d complete=%d ", victim, s.complete)):
			t.Errorf("member %d, which has %d messages, ended with %q; the victim is %d", i, s.complete, end, victim)
		}
	}
	return clean
}

// kill kills a random member at a random moment, repeatedly.
func kill(t *testing.T, overRDMA bool, samples int) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	cleans := 0
	for i := range samples {
		n := 3 + r.IntN(5)
		victim := i % n
		j := job{RDMA: overRDMA, Members: addresses(t, n), Algorithm: schedule.Algorithm(r.IntN(4)), BlockSize: 64 << 10, Messages: 150,
			DeadAfter: time.Hour} // by silence no member notices that a process has died
		all := begin(t, j, nil)
		// Some time within what the messages take, or a little later.
		time.Sleep(time.Duration(r.Int64N(int64(800 * time.Millisecond))))
		if err := all[victim].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if judge(t, all, victim, j.Messages) {
			cleans++
		}
		if t.Failed() {
			t.Fatalf("sample %d: %d members, %v, victim %d; lines of the victim: %q", i, n, j.Algorithm, victim, all[victim].lines)
		}
	}
	t.Logf("%d of %d groups ended cleanly before the kill", cleans, samples)
}
