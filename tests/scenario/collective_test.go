package scenario

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/collective"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// ranks are the applications of hosts that do collective operations.
type ranks struct {
	l     *lab
	apps  []*app
	comms []*collective.Comm
}

// join joins ranks at the first hosts.
func (l *lab) join(n int, change func(*collective.Config)) *ranks {
	l.t.Helper()
	r := &ranks{l: l}
	var hosts []string
	for _, h := range l.hosts[:n] {
		r.apps = append(r.apps, h.run())
		hosts = append(hosts, h.name)
	}
	r.comms = make([]*collective.Comm, len(hosts))
	r.each(func(ctx context.Context, i int, _ *collective.Comm) (err error) {
		cfg := collective.Config{Service: "c", Hosts: hosts, Rank: i}
		change(&cfg)
		r.comms[i], err = collective.Join(ctx, r.apps[i].client, cfg)
		return err
	})
	return r
}

// each does something at all remaining ranks in parallel.
func (r *ranks) each(f func(ctx context.Context, i int, c *collective.Comm) error) {
	r.l.t.Helper()
	ctx, cancel := context.WithTimeout(r.l.t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i, a := range r.apps {
		if a != nil {
			wg.Go(func() {
				if err := f(ctx, i, r.comms[i]); err != nil {
					r.l.t.Errorf("%s: %v", a.h.name, err)
				}
			})
		}
	}
	wg.Wait()
	if r.l.t.Failed() {
		r.l.t.FailNow()
	}
}

// sums does an allreduce of that many elements, and checks it. combining is called with each
// combination.
func sums(ctx context.Context, c *collective.Comm, n int, combining func()) error {
	buf := make([]float64, n)
	for i := range buf {
		buf[i] = float64(1+c.Rank()) + float64(i)/1024
	}
	err := collective.Allreduce(ctx, c, buf, func(dst, src []float64) {
		combining()
		collective.Sum(dst, src)
	})
	if err != nil {
		return err
	}
	size := float64(c.Size())
	for i, v := range buf {
		if want := size*(size+1)/2 + size*float64(i)/1024; v != want {
			return fmt.Errorf("element %d of %d is %v, and not %v", i, n, v, want)
		}
	}
	return nil
}

func nothing() {}

// close closes all ranks.
func (r *ranks) close() {
	r.l.t.Helper()
	r.each(func(ctx context.Context, _ int, c *collective.Comm) error { return c.Close(ctx) })
}

// aCall is a call that all ranks make repeatedly.
type aCall struct {
	name string
	do   func(ctx context.Context, c *collective.Comm, n int, combining func()) error
}

// theCalls returns all operations, with that many elements at each rank.
func theCalls() []aCall {
	sum := func(combining func()) collective.Op[float64] {
		return func(dst, src []float64) {
			combining()
			collective.Sum(dst, src)
		}
	}
	return []aCall{
		{"allreduce", sums},
		{"broadcast", func(ctx context.Context, c *collective.Comm, n int, _ func()) error {
			return collective.Broadcast(ctx, c, 1, make([]float64, n))
		}},
		{"broadcast of the one that dies", func(ctx context.Context, c *collective.Comm, n int, _ func()) error {
			return collective.Broadcast(ctx, c, min(2, c.Size()-1), make([]float64, n))
		}},
		{"reduce", func(ctx context.Context, c *collective.Comm, n int, combining func()) error {
			return collective.Reduce(ctx, c, 0, make([]float64, n), sum(combining))
		}},
		{"reduce to the one that dies", func(ctx context.Context, c *collective.Comm, n int, combining func()) error {
			return collective.Reduce(ctx, c, min(2, c.Size()-1), make([]float64, n), sum(combining))
		}},
		{"reduce-scatter", func(ctx context.Context, c *collective.Comm, n int, combining func()) error {
			return collective.ReduceScatter(ctx, c, make([]float64, n), make([]float64, n*c.Size()), sum(combining))
		}},
		{"allgather", func(ctx context.Context, c *collective.Comm, n int, _ func()) error {
			return collective.Allgather(ctx, c, make([]float64, n*c.Size()), make([]float64, n))
		}},
		{"barrier", func(ctx context.Context, c *collective.Comm, _ int, _ func()) error { return c.Barrier(ctx) }},
	}
}

// TestCollectiveDeathWithoutRace: a rank dies, or is frozen, when it has sent that many packets since
// operations began. All others get its name, continue without it, and leave nothing behind.
func TestCollectiveDeathWithoutRace(t *testing.T) {
	testenv.WithoutRace(t, "it takes ten times as long, and TestTwoRanksDie has the detector")
	var stories []story
	for _, call := range theCalls() {
		for _, c := range []struct {
			elements int
			packets  int32
			frozen   bool
		}{{8, 1, false}, {1000, 3, false}, {1000, 20, false}, {8, 0, true}} {
			stories = append(stories, story{fmt.Sprintf("%s of %d elements, packet %d, frozen: %v", call.name, c.elements, c.packets, c.frozen), func(l *lab, cfg mcrdma.GroupConfig) {
				l.rankEnds(cfg, call, c.elements, c.packets, c.frozen)
			}})
		}
	}
	for _, packets := range []int32{0, 1, 2} {
		for _, frozen := range []bool{false, true} {
			stories = append(stories, story{fmt.Sprintf("shrink, packet %d, frozen: %v", packets, frozen), func(l *lab, cfg mcrdma.GroupConfig) { l.rankEndsShrinking(cfg, packets, frozen) }})
		}
	}
	everywhere(t, stories)
}

// rankEnds: a rank is killed, or stops acknowledging, when it sends its next packet after that
// many.
func (l *lab) rankEnds(cfg mcrdma.GroupConfig, call aCall, elements int, packets int32, frozen bool) {
	r := l.join(4, func(c *collective.Config) { c.Mode, c.Block, c.Small, c.Degree = cfg.Mode, 1024, 64, 1 })
	const victim = 2
	end := r.ends(victim, packets, frozen)
	within := time.Second // as in docs/failures.md
	if frozen {
		within = 2 * time.Second
		if l.path() == mcrdma.PathRelay {
			within = 4 * time.Second
		}
	}
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		for n := 0; err == nil && n < 100 && !(i == victim && end.over.Load()); n++ {
			err = call.do(ctx, c, elements, nothing)
		}
		if i == victim {
			return nil
		}
		if err := lostRank(err, victim); err != nil {
			return err
		}
		if took := end.since(); took > within {
			return fmt.Errorf("told after %v", took)
		}
		next, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		if r.comms[i] = next; !slices.Equal(next.Hosts(), []string{"h1", "h2", "h4"}) {
			return fmt.Errorf("these go on: %v", next.Hosts())
		}
		return errors.Join(call.do(ctx, next, elements, nothing), sums(ctx, next, elements, nothing))
	})
	end.clear()
	r.close()
}

// rankEndsShrinking: the same while all ranks shrink, because one has given up.
func (l *lab) rankEndsShrinking(cfg mcrdma.GroupConfig, packets int32, frozen bool) {
	r := l.join(4, usually(cfg))
	const victim = 2
	end := r.ends(victim, packets, frozen)
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		if i == 0 {
			gone, cancel := context.WithCancel(ctx)
			cancel()
			err = c.Barrier(gone)
		} else {
			err = c.Barrier(ctx)
		}
		for i != victim && (c.Size() > 3 || err != nil) {
			if c, err = c.Shrink(ctx); err != nil {
				return err
			}
			if err = c.Barrier(ctx); err != nil {
				if err := lostRank(err, victim); err != nil {
					return err
				}
			}
		}
		if i != victim && !slices.Equal(c.Hosts(), []string{"h1", "h2", "h4"}) {
			return fmt.Errorf("these go on: %v", c.Hosts())
		}
		r.comms[i] = c
		return nil
	})
	end.clear()
	r.close()
}

// An end is the end of a rank.
type end struct {
	r      *ranks
	victim int
	lost   *app
	over   atomic.Bool
	begun  chan struct{}
	wg     sync.WaitGroup
	at     time.Time
}

// ends kills a rank, or stops its acknowledgments, when it sends its next packet after that many.
func (r *ranks) ends(victim int, packets int32, frozen bool) *end {
	e := &end{r: r, victim: victim, lost: r.apps[victim], begun: make(chan struct{})}
	var sent atomic.Int32
	count := func() {
		if sent.Add(1) == packets+1 {
			e.at = time.Now()
			e.over.Store(true)
			close(e.begun)
		}
	}
	e.lost.h.sends.Store(&count)
	e.wg.Go(func() {
		if <-e.begun; frozen {
			e.lost.h.cable.Cut(true)
		} else {
			e.lost.kill()
		}
	})
	return e
}

// since returns the time since that.
func (e *end) since() time.Duration {
	<-e.begun
	return time.Since(e.at)
}

// clear removes the remains of the rank.
func (e *end) clear() {
	e.wg.Wait()
	e.lost.h.sends.Store(nil)
	e.lost.h.cable.Cut(false)
	_ = e.r.comms[e.victim].Close(e.r.l.t.Context())
	e.r.apps[e.victim] = nil
}

// TestTwoRanksDie: the second rank dies while groups are formed without the first, which delays the others no more than one death.
func TestTwoRanksDie(t *testing.T) {
	var stories []story
	for gap := range 16 {
		apart := time.Duration(gap) * 500 * time.Microsecond
		stories = append(stories, story{fmt.Sprintf("%v apart", apart), func(l *lab, cfg mcrdma.GroupConfig) { l.ranksDieTogether(cfg, apart) }})
	}
	bySwitches(t, stories[:2])
	byHosts(t, stories) // form anew after each death
}

func (l *lab) ranksDieTogether(cfg mcrdma.GroupConfig, apart time.Duration) {
	r := l.join(4, usually(cfg))
	first := r.ends(1, 0, false)
	second := &end{r: r, victim: 2, lost: r.apps[2], begun: first.begun}
	second.wg.Go(func() {
		first.wg.Wait()
		time.Sleep(apart)
		second.lost.kill()
	})
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		for err == nil && (i == 0 || i == 3) && c.Size() > 2 {
			if err = sums(ctx, c, 100, nothing); errors.Is(err, collective.ErrLost) {
				c, err = c.Shrink(ctx)
			}
		}
		for n := 0; (i == 1 || i == 2) && n < 100 && err == nil; n++ {
			err = sums(ctx, c, 100, nothing)
		}
		if r.comms[i] = c; i == 1 || i == 2 {
			return nil
		}
		if took := first.since(); took > 2*time.Second {
			l.t.Errorf("rank %d goes on after %v", i, took)
		}
		return errors.Join(err, sums(ctx, c, 100, nothing))
	})
	first.clear()
	second.clear()
	r.close()
}

// TestCollectiveFails: other causes that end operations.
func TestCollectiveFails(t *testing.T) {
	everywhere(t, []story{
		{"a rank's host goes silent", rankSilent},
		{"a rank that was frozen resumes", func(l *lab, cfg mcrdma.GroupConfig) { rankResumes(l, cfg, 3, 2) }},
		{"the first rank was frozen, and resumes", func(l *lab, cfg mcrdma.GroupConfig) { rankResumes(l, cfg, 4, 0) }},
		{"the first of three was frozen: the last one's group has all members in another rack", func(l *lab, cfg mcrdma.GroupConfig) { rankResumes(l, cfg, 3, 0) }},
		{"a rank is frozen, and others close as soon as they know", ranksCloseSoon},
		{"a rank gives an operation up", rankGivesUp},
		{"a rank's context ends before its turn", rankTooLate},
		{"a rank's function ends its goroutine", rankExits},
		{"ranks do different things", ranksDiffer},
		{"ranks wait for one another in different calls", ranksWait},
		{"ranks wait for one another in different calls, and another lane is busy", ranksWaitAndWork},
		{"a rank waits for one that is in a later call", func(l *lab, cfg mcrdma.GroupConfig) {
			rankWaits(l, cfg, "rank 1 has gone on to reduce", func(ctx context.Context, c *collective.Comm) error {
				return collective.Reduce(ctx, c, 1, make([]int32, 100), collective.Sum)
			})
		}},
		{"a rank waits for one that is in no call", func(l *lab, cfg mcrdma.GroupConfig) {
			rankWaits(l, cfg, "rank 1 has ended its call", func(ctx context.Context, c *collective.Comm) error {
				time.Sleep(5 * time.Second)
				return c.Barrier(ctx)
			})
		}},
		{"a rank closes, and others go on", func(l *lab, cfg mcrdma.GroupConfig) { rankCloses(l, cfg, 2) }},
		{"the first rank closes, and others go on", func(l *lab, cfg mcrdma.GroupConfig) { rankCloses(l, cfg, 0) }},
		{"ranks close during an operation of another lane", ranksClose},
		{"a rank closes while it shrinks", rankClosesShrinking},
		{"a rank gives up too often, and an operation of another lane is under way", rankGivesUpTooOften},
		{"two ranks die, and a rank of the others' Comm after that", ranksDie},
		{"a rank never joins", rankMissing},
		{"a rank has the hosts in another order", ranksOrder},
		{"a rank dies while it joins", rankDiesJoining},
		{"connections break while ranks join", connectionsBreakJoining},
	})
}

// goOn makes all remaining ranks fail with an operation, and continue together.
func (r *ranks) goOn(fails func(i int, err error) error) {
	r.l.t.Helper()
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		for n := 0; err == nil && n < 1000; n++ {
			err = sums(ctx, c, 100, func() { time.Sleep(time.Millisecond) })
		}
		if err := fails(i, err); err != nil {
			return err
		}
		if r.comms[i], err = c.Shrink(ctx); err == nil {
			err = sums(ctx, r.comms[i], 100, nothing)
		}
		return err
	})
}

func usually(cfg mcrdma.GroupConfig) func(*collective.Config) {
	return func(c *collective.Config) { c.Mode = cfg.Mode }
}

// lostRank reports whether an error is the loss of a rank.
func lostRank(err error, rank int) error {
	if e, ok := errors.AsType[*collective.Error](err); !ok || !errors.Is(err, collective.ErrLost) || e.Lost[0].Rank != rank {
		return fmt.Errorf("rank %d is not named: %w", rank, err)
	}
	return nil
}

func rankSilent(l *lab, cfg mcrdma.GroupConfig) {
	l.wait = leases
	r := l.join(4, usually(cfg))
	silent, begun := r.apps[3], time.Now()
	silent.h.silence(true)
	silent.h.cable.Cut(true)
	r.apps[3] = nil
	r.goOn(func(_ int, err error) error {
		if took := time.Since(begun); took > 3*time.Second {
			return fmt.Errorf("told after %v", took)
		}
		return lostRank(err, 3)
	})
	silent.h.silence(false)
	silent.h.cable.Cut(false)
	time.Sleep(10 * time.Second)
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	if err := r.comms[3].Barrier(ctx); err == nil || ctx.Err() != nil {
		l.t.Errorf("the rank that was silent: %v", err)
	}
	_ = r.comms[3].Close(ctx)
	r.close()
}

// rankResumes: a rank that is frozen for long learns that the others have gone on without it. It does not go on by itself, with results of its own.
func rankResumes(l *lab, cfg mcrdma.GroupConfig, size, victim int) {
	r := l.join(size, usually(cfg))
	frozen, c := r.apps[victim], r.comms[victim]
	frozen.h.cable.Cut(true)
	r.apps[victim] = nil
	r.goOn(func(_ int, err error) error {
		if err := lostRank(err, victim); err != nil {
			return err
		}
		if e, _ := errors.AsType[*collective.Error](err); strings.Contains(e.Lost[0].Why, "receiver ") {
			return fmt.Errorf("the cause is not told: %w", err)
		}
		return nil
	})
	frozen.h.cable.Cut(false)
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	if err := sums(ctx, c, 8, nothing); err == nil || ctx.Err() != nil {
		l.t.Errorf("the rank that was frozen: %v", err)
	}
	if next, err := c.Shrink(ctx); !errors.Is(err, collective.ErrExcluded) || next != c || !strings.Contains(err.Error(), "goes on without this rank") {
		l.t.Errorf("it shrinks: %v", err)
	}
	_ = c.Close(ctx)
	r.each(func(ctx context.Context, _ int, c *collective.Comm) error { return sums(ctx, c, 100, nothing) })
	r.close()
}

// ranksCloseSoon: a rank that leaves because another one is lost tells the others first who that is.
func ranksCloseSoon(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(4, usually(cfg))
	r.apps[0].h.cable.Cut(true)
	frozen := r.apps[0]
	r.apps[0] = nil
	r.each(func(ctx context.Context, _ int, c *collective.Comm) error {
		err := collective.Broadcast(ctx, c, 1, make([]int32, 100)) // the second rank is the first to find out
		if err == nil {
			err = c.Barrier(ctx)
		}
		return errors.Join(lostRank(err, 0), c.Close(ctx))
	})
	frozen.h.cable.Cut(false)
	_ = r.comms[0].Close(l.t.Context())
}

func rankGivesUp(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(4, usually(cfg))
	r.giveUp()
	r.close()
}

// giveUp makes a rank give up, and the ranks continue.
func (r *ranks) giveUp() {
	r.each(func(ctx context.Context, i int, c *collective.Comm) error {
		if i == 1 {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if err := c.Lane(1).Barrier(short); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, collective.ErrGivenUp) || !strings.Contains(err.Error(), "; it has waited for rank 0 (h1)") {
				return fmt.Errorf("the one that gives up: %w", err)
			}
		}
		return nil
	})
	r.goOn(func(i int, err error) error {
		says := "by rank 1 (h2), whose context has ended"
		if i == 1 {
			says = "by this rank: context deadline exceeded"
		}
		if !errors.Is(err, collective.ErrGivenUp) || !strings.Contains(err.Error(), says) {
			return fmt.Errorf("it was not given up, or not for that: %w", err)
		}
		return nil
	})
}

// rankTooLate: a context that has ended before an operation begins, or while it waits for another
// one of its lane, has the same effect as one that ends later.
func rankTooLate(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(3, usually(cfg))
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if i == 1 {
			time.Sleep(time.Second)
			ctx = short
		}
		if err := c.Barrier(ctx); !errors.Is(err, collective.ErrGivenUp) || (i == 1) != errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("its context has ended before: %w", err)
		}
		r.comms[i], err = c.Shrink(l.t.Context())
		return err
	})
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		if i == 1 {
			long := ctx
			wg.Go(func() { _ = c.Barrier(long) }) // the others do not join: they are on another lane
			time.Sleep(time.Millisecond)
			ctx = short
		} else {
			c = c.Lane(1)
		}
		if err := c.Barrier(ctx); !errors.Is(err, collective.ErrGivenUp) || (i == 1) != errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("its context ends before its turn: %w", err)
		}
		wg.Wait()
		r.comms[i], err = r.comms[i].Shrink(l.t.Context())
		return err
	})
	r.close()
}

// rankExits: a function that never returns, and does not panic either, ends the operation with an
// error.
func rankExits(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(3, usually(cfg))
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		says := "by rank 1 (h2), whose Op has not returned"
		if i == 1 {
			says = "or ended its goroutine"
			var wg sync.WaitGroup
			wg.Go(func() { _ = sums(ctx, c, 2000, runtime.Goexit) })
			wg.Wait()
			err = c.Err()
		} else {
			err = sums(ctx, c, 2000, nothing)
		}
		if !errors.Is(err, collective.ErrGivenUp) || !strings.Contains(err.Error(), says) {
			return fmt.Errorf("it does not say %q: %w", says, err)
		}
		r.comms[i], err = c.Shrink(ctx)
		return err
	})
	r.close()
}

func ranksDiffer(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(4, usually(cfg))
	for _, other := range []func(context.Context, *collective.Comm) error{
		func(ctx context.Context, c *collective.Comm) error {
			return collective.Broadcast(ctx, c, 0, make([]int32, 101))
		},
		func(ctx context.Context, c *collective.Comm) error {
			return collective.Broadcast(ctx, c, 0, make([]float32, 100))
		},
	} {
		r.each(func(ctx context.Context, i int, c *collective.Comm) error {
			var err, want error
			if i == 3 {
				err, want = other(ctx, c), collective.ErrMismatch
			} else {
				err = collective.Broadcast(ctx, c, 0, make([]int32, 100))
			}
			if !errors.Is(err, want) && !errors.Is(err, collective.ErrGivenUp) {
				return fmt.Errorf("%w, and not %w", err, want)
			}
			return nil
		})
		r.goOn(func(i int, err error) error {
			if !errors.Is(err, collective.ErrGivenUp) {
				return fmt.Errorf("rank %d: %w", i, err)
			}
			return nil
		})
	}
	r.giveUp() // which does not depend on what was before
	r.close()
}

// ranksWait: of two ranks that are each the root of a reduction, neither gets a message of the other's, but both soon learn of it.
func ranksWait(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(2, usually(cfg))
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		begun := time.Now()
		err = collective.Reduce(ctx, c, i, make([]int32, 100), collective.Sum)
		if took := time.Since(begun); !errors.Is(err, collective.ErrMismatch) && !errors.Is(err, collective.ErrGivenUp) || took > time.Second {
			return fmt.Errorf("after %v: %w", took, err)
		}
		r.comms[i], err = c.Shrink(ctx)
		return err
	})
	r.close()
}

// ranksWaitAndWork: what differs on a lane is found out also while messages of another lane come.
func ranksWaitAndWork(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(2, usually(cfg))
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		var wg sync.WaitGroup
		wg.Go(func() {
			for c.Lane(1).Barrier(ctx) == nil {
				time.Sleep(10 * time.Millisecond)
			}
		})
		begun := time.Now()
		err = collective.Reduce(ctx, c, i, make([]int32, 100), collective.Sum)
		wg.Wait()
		if took := time.Since(begun); !errors.Is(err, collective.ErrMismatch) && !errors.Is(err, collective.ErrGivenUp) || took > time.Second {
			return fmt.Errorf("after %v: %w", took, err)
		}
		r.comms[i], err = c.Shrink(ctx)
		return err
	})
	r.close()
}

// rankWaits: a rank waits for a message to it alone of one that has done something else before.
func rankWaits(l *lab, cfg mcrdma.GroupConfig, says string, then func(context.Context, *collective.Comm) error) {
	r := l.join(2, usually(cfg))
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		begun := time.Now()
		if i == 0 {
			err = collective.Reduce(ctx, c, 0, make([]int32, 100), collective.Sum)
			if took := time.Since(begun); !errors.Is(err, collective.ErrMismatch) || !strings.Contains(err.Error(), says) || took > time.Second {
				return fmt.Errorf("after %v: %w", took, err)
			}
		} else {
			err = errors.Join(collective.Broadcast(ctx, c, 1, make([]int32, 100)), then(ctx, c))
			if !errors.Is(err, collective.ErrGivenUp) {
				return fmt.Errorf("it is not given up: %w", err)
			}
		}
		r.comms[i], err = c.Shrink(ctx)
		return err
	})
	r.close()
}

// rankCloses: Close at one rank does not match a barrier at others, which get the name of the
// closing rank. They continue.
func rankCloses(l *lab, cfg mcrdma.GroupConfig, closes int) {
	r := l.join(4, usually(cfg))
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		if i == closes {
			if err := c.Close(ctx); !errors.Is(err, collective.ErrMismatch) && !errors.Is(err, collective.ErrGivenUp) {
				return fmt.Errorf("not all close: %w", err)
			}
			return nil
		}
		err = c.Barrier(ctx)
		says, also := fmt.Sprintf("rank %d closes", closes), fmt.Sprintf("rank %d (h%d) closes", closes, closes+1)
		if err == nil || !strings.Contains(err.Error(), says) && !strings.Contains(err.Error(), also) {
			return fmt.Errorf("it does not learn who closes: %w", err)
		}
		for c.Size() > 3 || c.Err() != nil {
			if c, err = c.Shrink(ctx); err != nil {
				return err
			}
			_ = c.Barrier(ctx) // it fails together with the rank that leaves
		}
		r.comms[i] = c
		return nil
	})
	r.apps[closes] = nil
	r.close()
}

// ranksClose: Close returns when functions of other operations have.
func ranksClose(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(2, usually(cfg))
	r.each(func(ctx context.Context, _ int, c *collective.Comm) error {
		var combining atomic.Bool
		other := make(chan error)
		go func() {
			other <- sums(ctx, c.Lane(1), 100000, func() {
				combining.Store(true)
				time.Sleep(time.Second)
				combining.Store(false)
			})
		}()
		time.Sleep(100 * time.Millisecond)
		if !combining.Load() {
			return errors.New("nothing is under way")
		}
		err := c.Close(ctx)
		if combining.Load() {
			err = errors.Join(err, errors.New("Close has returned, and an operation looks at its memory"))
		}
		if is := <-other; !errors.Is(is, collective.ErrClosed) {
			err = errors.Join(err, fmt.Errorf("the operation under way: %w", is))
		}
		return err
	})
}

// rankClosesShrinking: Shrink, which waits for a rank that is frozen, ends when the Comm is closed.
func rankClosesShrinking(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(3, usually(cfg))
	frozen := r.apps[2]
	frozen.h.cable.Cut(true)
	r.apps[2] = nil
	r.each(func(ctx context.Context, i int, c *collective.Comm) error {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if err := c.Barrier(gone); !errors.Is(err, collective.ErrGivenUp) {
			return fmt.Errorf("it is not given up: %w", err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Shrink(ctx); !errors.Is(err, collective.ErrClosed) {
				l.t.Errorf("Shrink at rank %d: %v", i, err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		err := c.Close(ctx)
		wg.Wait()
		return err
	})
	frozen.h.cable.Cut(false)
	_ = r.comms[2].Close(l.t.Context())
}

// rankGivesUpTooOften: that ends the operations of all its lanes, also while the other rank sends nothing.
func rankGivesUpTooOften(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(2, usually(cfg))
	done := make(chan struct{})
	r.each(func(ctx context.Context, i int, c *collective.Comm) (err error) {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		for n := 0; err == nil && (i == 0 || n < 120); n++ {
			if i == 1 {
				err = c.Barrier(ctx)
			} else {
				other := make(chan error)
				go func() { other <- c.Lane(1).Barrier(ctx) }()
				time.Sleep(10 * time.Millisecond)
				_ = c.Barrier(gone)
				err = <-other
			}
			if errors.Is(err, collective.ErrGivenUp) {
				c, err = c.Shrink(ctx)
			}
		}
		if i == 1 {
			<-done
			return errors.Join(err, c.Close(ctx))
		}
		close(done)
		if !errors.Is(err, collective.ErrClosed) || ctx.Err() != nil {
			return fmt.Errorf("it has given up too often: %w", err)
		}
		return c.Close(ctx)
	})
}

func ranksDie(l *lab, cfg mcrdma.GroupConfig) {
	r := l.join(4, usually(cfg))
	die := func(i, rank int) {
		victim := r.comms[i]
		r.apps[i].kill()
		r.apps[i] = nil
		_ = victim.Close(l.t.Context())
		r.goOn(func(_ int, err error) error { return lostRank(err, rank) })
	}
	die(1, 1)
	die(0, 0)
	die(3, 1) // of the remaining ones, h3 and h4
	r.close()
}

// rankMissing: the error also says who asked to join, and was refused: it may be the one that is missing.
func rankMissing(l *lab, cfg mcrdma.GroupConfig) {
	a, other := l.hosts[0].run(), l.hosts[1].run()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := other.client.Create(l.t.Context(), mcrdma.GroupConfig{Service: "c", Receivers: []string{"h1"}, Regions: []mcrdma.Region{{Name: "rank 1 of 3", Length: 64}}, Wait: time.Second})
		l.fails(err, mcrdma.ErrDenied, "h1")
	})
	_, err := collective.Join(l.t.Context(), a.client, collective.Config{Service: "c", Hosts: []string{"h1", "h2"}, Mode: cfg.Mode, Wait: 2 * time.Second})
	if l.fails(err, mcrdma.ErrUnreachable, "h2"); !strings.Contains(err.Error(), `; h2 was refused: it joins as "rank 1 of 3"`) {
		l.t.Error(err)
	}
	wg.Wait()
}

// ranksOrder: a rank whose group was made, because its own number is right, says why the others are not there: it has refused them.
func ranksOrder(l *lab, cfg mcrdma.GroupConfig) {
	var wg sync.WaitGroup
	for rank, hosts := range [][]string{{"h1", "h2", "h3"}, {"h1", "h2", "h3"}, {"h2", "h1", "h3"}} {
		client := l.hosts[rank].run().client
		wg.Go(func() {
			_, err := collective.Join(l.t.Context(), client, collective.Config{Service: "c", Hosts: hosts, Rank: rank, Mode: cfg.Mode})
			if err == nil || !strings.Contains(err.Error(), "Hosts have another order there, or Rank is wrong") {
				l.t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
}

// rankDiesJoining: a rank dies when it is a member of the others' groups, and has not created its
// own, which they wait for.
func rankDiesJoining(l *lab, cfg mcrdma.GroupConfig) {
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	victim := l.hosts[1].run()
	listener, err := victim.client.Listen(ctx, mcrdma.ListenConfig{Service: "c", Accept: func(r *mcrdma.Request) (*mcrdma.Grant, error) {
		m, err := victim.client.Alloc(int(r.Regions[0].Length))
		if err != nil {
			return nil, err
		}
		return &mcrdma.Grant{Regions: []mcrdma.Piece{m.All()}, Receives: make([]mcrdma.Piece, 8), Replenish: true}, nil
	}})
	if err != nil {
		l.t.Fatal(err)
	}
	var died time.Time
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 2 {
			if _, err := listener.Accept(ctx); err != nil {
				l.t.Error(err)
			}
		}
		time.Sleep(100 * time.Millisecond)
		died = time.Now()
		victim.kill()
	})
	for _, rank := range []int{0, 2} {
		wg.Go(func() {
			_, err := collective.Join(ctx, l.hosts[rank].run().client, collective.Config{Service: "c", Hosts: []string{"h1", "h2", "h3"}, Rank: rank, Mode: cfg.Mode})
			if took := time.Since(died); took > time.Second {
				l.t.Errorf("told after %v", took)
			}
			if err := lostRank(err, 1); err != nil {
				l.t.Error(err)
			}
		})
	}
	wg.Wait()
}

// connectionsBreakJoining: the connections of two ranks' applications break once, when one has sent some packets. All
// ranks join nevertheless.
func connectionsBreakJoining(l *lab, cfg mcrdma.GroupConfig) {
	r := &ranks{l: l, comms: make([]*collective.Comm, 3)}
	for _, h := range l.hosts[:3] {
		r.apps = append(r.apps, h.run())
	}
	for packets := int32(1); ; packets += 1 + packets/4 {
		var sent atomic.Int32
		broken := make(chan struct{})
		count := func() {
			if sent.Add(1) == packets {
				go func() {
					l.net.Break("h1/app", "h2/app")
					close(broken)
				}()
			}
		}
		l.hosts[0].sends.Store(&count)
		r.each(func(ctx context.Context, i int, _ *collective.Comm) (err error) {
			r.comms[i], err = collective.Join(ctx, r.apps[i].client, collective.Config{Service: "c", Hosts: []string{"h1", "h2", "h3"}, Rank: i, Mode: cfg.Mode})
			if err != nil {
				return fmt.Errorf("connections broke after packet %d: %w", packets, err)
			}
			return nil
		})
		l.hosts[0].sends.Store(nil)
		r.each(func(ctx context.Context, _ int, c *collective.Comm) error {
			return errors.Join(sums(ctx, c, 100, nothing), c.Close(ctx))
		})
		if sent.Load() < packets {
			return
		}
		<-broken
	}
}
