package collective

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/pkg/collective/core"
	"github.com/mcrdma/mcrdma/pkg/collective/model"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRack: three ranks on a rack, with sockets and real time. All else is tested in virtual time, in tests/scenario.
func TestRack(t *testing.T) {
	rack := mcrdmatest.Start(t, 3)
	hosts := []string{"h1", "h2", "h3"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for rank, h := range hosts {
		client := rack.Dial(h)
		wg.Go(func() {
			c, err := Join(ctx, client, Config{Service: "s", Hosts: hosts, Rank: rank})
			if err != nil {
				t.Error(err)
				return
			}
			if c.Rank() != rank || c.Size() != 3 || !slices.Equal(c.Hosts(), hosts) || c.Err() != nil || c.Lane(0) != c || !strings.Contains(c.Explain(), "4096 bytes, 3 ranks") {
				t.Error(c.Rank(), c.Size(), c.Hosts(), c.Err(), c.Explain())
			}
			small, large := []int64{int64(rank), 7}, make([]float32, 30000)
			large[29999] = float32(rank)
			if err := errors.Join(Allreduce(ctx, c, small, Max), Allreduce(ctx, c, large, Sum), c.Close(ctx)); err != nil || small[0] != 2 || small[1] != 7 || large[29999] != 3 {
				t.Error(err, small, large[29999])
			}
			if err := c.Barrier(ctx); !errors.Is(err, ErrClosed) {
				t.Error("after Close: ", err)
			}
		})
	}
	wg.Wait()
}

// TestJoinsAgain: a rank may begin anew while others are missing.
func TestJoinsAgain(t *testing.T) {
	rack := mcrdmatest.Start(t, 3)
	hosts := []string{"h1", "h2", "h3"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	join := func(rank int, client *mcrdma.Client) {
		wg.Go(func() {
			c, err := Join(ctx, client, Config{Service: "s", Hosts: hosts, Rank: rank})
			if err == nil {
				err = c.Close(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	second := rack.Dial("h2")
	join(0, rack.Dial("h1"))
	cfg := Config{Service: "s", Hosts: hosts, Rank: 1}
	_ = cfg.check() // for the defaults
	memory := mcrdma.Region{Name: cfg.regionName(1), Length: uint64(core.Paths * cfg.layout().Half())}
	group, err := second.Create(ctx, mcrdma.GroupConfig{Service: "s", Receivers: hosts[:1], Wait: time.Minute, Regions: []mcrdma.Region{memory}})
	if err == nil {
		err = group.Close(ctx)
	}
	if err != nil {
		t.Error(err)
	}
	join(1, second)
	join(2, rack.Dial("h3"))
	wg.Wait()
}

// What is wrong with calls is said before anything is sent.
func TestBadCalls(t *testing.T) {
	ctx := t.Context()
	hosts := []string{"h1", "h2"}
	for _, c := range []struct {
		cfg  Config
		says string
	}{
		{Config{Hosts: hosts}, "Service"},
		{Config{Service: "s"}, "0 Hosts"},
		{Config{Service: "s", Hosts: make([]string, 18)}, "both at"},
		{Config{Service: "s", Hosts: hosts, Rank: 2}, "Rank 2"},
		{Config{Service: "s", Hosts: hosts, Lanes: 5}, "Lanes"},
		{Config{Service: "s", Hosts: hosts, Slots: 129}, "Slots"},
		{Config{Service: "s", Hosts: hosts, Block: 24}, "Block"},
		{Config{Service: "s", Hosts: hosts, Small: 1 << 16}, "Small"},
		{Config{Service: "s", Hosts: hosts, Degree: 2}, "Degree"},
		{Config{Service: "s", Hosts: hosts, Wait: -1}, "Wait"},
	} {
		if _, err := Join(ctx, nil, c.cfg); !errors.Is(err, mcrdma.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	client := mcrdmatest.Start(t, 2).Dial("h1")
	if _, err := Join(ctx, client, Config{Service: "s", Hosts: []string{"h1", "h2", "h3"}, Rank: 1}); !errors.Is(err, mcrdma.ErrInvalid) || !strings.Contains(err.Error(), "rank 1 is h2, but this client is on h1") {
		t.Error("another rank's host: ", err)
	}
	c, err := Join(ctx, client, Config{Service: "s", Hosts: []string{"h1"}})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]int, 3)
	if err := Allgather(ctx, c, buf, buf); err != nil {
		t.Error(err)
	}
	for _, err := range []error{Allgather(ctx, c, buf[:2], buf[1:]), ReduceScatter(ctx, c, buf[1:], buf[:2], Sum), Broadcast(ctx, c, 1, make([]int, 1)), Reduce(ctx, c, -1, make([]int, 1), Sum), Allreduce[int](ctx, c, nil, nil),
		ReduceScatter(ctx, c, make([]int, 2), make([]int, 1), Sum), Allgather(ctx, c, make([]int, 2), make([]int, 1))} {
		if !errors.Is(err, mcrdma.ErrInvalid) {
			t.Error(err)
		}
	}
	gone, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("no time"))
	if err := c.Barrier(gone); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrGivenUp) || !errors.Is(c.Err(), ErrGivenUp) || !strings.HasSuffix(c.Err().Error(), "by this rank: no time") {
		t.Error("a call whose context has ended: ", err, c.Err())
	}
	if c, err = c.Shrink(ctx); err != nil || c.Barrier(ctx) != nil {
		t.Error(err)
	}
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

// What Explain prints is what is used, each size once.
func TestExplain(t *testing.T) {
	costs := model.Params{Message: 1000, Combine: 1}
	for _, c := range []struct {
		small, degree int
		want          []string // lines
	}{
		{-1, 0, []string{"a barrier, 16 ranks:.* chosen: 15"}},
		{16, 0, []string{"a barrier.*", "4 bytes.*", "16 bytes, 16 ranks:.* chosen: 15"}},
		{4096, 3, []string{"a barrier.* set: 3", "4 bytes.*", "1024 bytes.*", "4096 bytes, 16 ranks:.* set: 3"}},
	} {
		text := (&Config{Small: c.small, Degree: c.degree}).explain(costs, 16)
		if want := "^a message: .*\n" + strings.Join(c.want, "\n") + "\n$"; !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("Small %d, Degree %d: %s", c.small, c.degree, text)
		}
	}
}

// A rank with another Config, or another host, gets no memory.
func TestAsks(t *testing.T) {
	cfg := Config{Service: "s", Hosts: []string{"h1", "10.0.0.2", "h3"}, Rank: 2}
	if err := cfg.check(); err != nil {
		t.Fatal(err)
	}
	request := func(rank int, sender, source string, change func(*Config)) *mcrdma.Request {
		other := cfg
		change(&other)
		return &mcrdma.Request{Sender: sender, Group: mcrdma.GroupID{Source: source}, Regions: []mcrdma.Region{{Name: other.regionName(rank), Length: uint64(2 * other.layout().Half())}}}
	}
	same := func(*Config) {}
	for rank, r := range []*mcrdma.Request{request(0, "h1", "10.0.0.1", same), request(1, "h2", "10.0.0.2", same)} {
		if got, err := cfg.asks(r); got != rank || err != nil {
			t.Error(got, err)
		}
	}
	says := map[string]string{}
	short := request(0, "h1", "10.0.0.1", same)
	short.Regions[0].Length--
	for what, r := range map[string]*mcrdma.Request{
		"another host": request(0, "h3", "10.0.0.3", same), "its own rank": request(2, "h3", "10.0.0.3", same), "no rank": request(3, "h1", "10.0.0.1", same),
		"fewer slots": request(0, "h1", "10.0.0.1", func(c *Config) { c.Slots = 4 }), "no region": {},
		"another Small": request(0, "h1", "10.0.0.1", func(c *Config) { c.Small = 64 }), "another Degree": request(0, "h1", "10.0.0.1", func(c *Config) { c.Degree = 3 }), "too few bytes": short,
	} {
		if _, err := cfg.asks(r); err == nil {
			t.Error(what)
		} else {
			says[what] = err.Error()
		}
	}
	if s := says["another Small"]; !strings.Contains(s, "Small 64, Degree 0") || !strings.Contains(s, "Small 4096, Degree 0") {
		t.Error(s)
	}
	for _, what := range []string{"another host", "its own rank"} {
		if s := says[what]; !strings.Contains(s, "another order") {
			t.Errorf("%s: %s", what, s)
		}
	}
}

// Errors name the ranks.
func TestErrors(t *testing.T) {
	e := fmt.Errorf("allreduce: %w", &Error{kind: ErrLost, Lost: []Lost{{Rank: 1, Host: "h2", Why: "it has ended"}, {Rank: 3, Host: "h4"}}})
	if got, want := e.Error(), "allreduce: rank 1 (h2) was lost: it has ended; rank 3 (h4) was lost"; got != want || !errors.Is(e, ErrLost) {
		t.Errorf("%q", got)
	}
	e = &Error{kind: ErrGivenUp, text: "by this rank", cause: context.Canceled}
	if got, want := e.Error(), "an operation was given up: by this rank"; got != want || !errors.Is(e, context.Canceled) || !errors.Is(e, ErrGivenUp) {
		t.Errorf("%q", got)
	}
}

// TestDepartures: a rank that this rank's group has lost is lost once it is known why, so that the error says it.
func TestDepartures(t *testing.T) {
	cfg := Config{Hosts: []string{"h1", "h2", "10.0.0.3"}}
	e := &engine{cfg: cfg, node: core.NewNode(0, 3, cfg.layout()), peers: []*peer{nil, {}, {}}}
	c := &Comm{e: e, group: e.node.Group()}
	gone := []mcrdma.Departure{{Peer: mcrdma.Peer{Host: "h2"}}, {Peer: mcrdma.Peer{Host: "h3", Address: "10.0.0.3"}}}
	if e.departures(gone); c.Err() != nil {
		t.Error("nothing is known yet: ", c.Err())
	}
	gone[1].Why = "h3: it has ended"
	if e.departures(gone); c.Err() == nil || c.Err().Error() != "rank 2 (10.0.0.3) was lost: h3: it has ended" {
		t.Error(c.Err())
	}
}

type fakePoller struct{ polls []time.Duration }

func (p *fakePoller) PollFor(d time.Duration) { p.polls = append(p.polls, d) }

// Waits in small operations poll, and others do not.
func TestPoll(t *testing.T) {
	for _, c := range []struct {
		small, size, polls int
	}{{4096, 0, 1}, {4096, 4096, 1}, {4096, 4097, 0}, {-1, 0, 1}, {-1, 1, 0}} {
		var p fakePoller
		(&engine{cfg: Config{Small: c.small, Poll: time.Millisecond}, device: &p}).poll(c.size)
		if len(p.polls) != c.polls || c.polls > 0 && p.polls[0] != time.Millisecond {
			t.Errorf("%+v: %v", c, p.polls)
		}
	}
	(&engine{}).poll(0) // a device that cannot
	client := mcrdmatest.Start(t, 2).Dial("h1")
	for poll, want := range map[time.Duration]bool{0: true, time.Second: true, -1: false} {
		c, err := Join(t.Context(), client, Config{Service: "s", Hosts: []string{"h1"}, Poll: poll})
		if err != nil {
			t.Fatal(err)
		}
		if (c.e.device != nil) != want {
			t.Errorf("Poll %v: the device polls: %v, want %v", poll, !want, want)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
