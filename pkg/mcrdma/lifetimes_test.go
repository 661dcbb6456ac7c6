package mcrdma

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// A calm is a life whose daemon counts no views, and gives no trouble.
type calm struct {
	life
	t   *testing.T
	now time.Time
}

// formationOf is one with these members, relayed by hosts.
func formationOf(number uint32, members ...string) *mcrdmav1.FormationInfo {
	f := &mcrdmav1.FormationInfo{Formation: number, Path: mcrdmav1.Path_PATH_RELAY}
	for _, a := range members {
		f.Members = append(f.Members, &mcrdmav1.Member{Address: a, Host: "h" + a})
	}
	return f
}

func newCalm(t *testing.T, info *mcrdmav1.FormationInfo) *calm {
	c := &calm{t: t, now: time.Unix(1000, 0)}
	c.created(info)
	c.begins()
	return c
}

// begins: the path of the next formation is there.
func (c *calm) begins() {
	c.t.Helper()
	c.connected(nil, c.now)
	if j, _ := c.next(c.now); j != beginning {
		c.t.Fatalf("job %d", j)
	}
	c.begin()
}

// post posts all that can be, and returns how many operations that are.
func (c *calm) post() (n int) {
	for c.queue.next() != nil {
		c.queue.advance()
		n++
	}
	return n
}

// reformed is a formation after the present one, which has failed.
func (c *calm) reformed(info *mcrdmav1.FormationInfo) {
	c.t.Helper()
	c.ended(errPlay)
	c.answered(info, nil, false, c.now)
	c.begins()
}

// does returns what is to be done since the last call, by its type.
func (c *calm) does() (kinds []string, events []Event) {
	for _, a := range c.out {
		if e, ok := a.(tell); ok {
			events = append(events, e.event)
			continue
		}
		kinds = append(kinds, strings.TrimPrefix(fmt.Sprintf("%T", a), "mcrdma."))
	}
	c.out = nil
	return kinds, events
}

func (c *calm) submit(n int, size uint64) {
	for range n {
		c.queue.push(&Op{Kind: OpSend, size: size})
	}
	for c.queue.next() != nil {
		c.queue.advance()
	}
}

// TestNudges: operations that waited for a member that is out are made to complete, if they
// are those of the present formation.
func TestNudges(t *testing.T) {
	c := newCalm(t, formationOf(1, "a", "b", "c"))
	c.reformed(formationOf(2, "a", "b", "c"))
	c.does()
	removed := func(formation uint32, address string) {
		c.changed(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_REMOVED, Formation: formation, Address: address, Text: "silent"})
	}
	removed(1, "a")
	if kinds, events := c.does(); len(kinds) != 0 || len(events) != 0 || len(c.members) != 3 || len(c.view.Members) != 3 {
		t.Errorf("removed from an earlier formation: %v, %v, %v", kinds, events, c.members)
	}
	removed(2, "a")
	kinds, events := c.does()
	if !slices.Equal(kinds, []string{"nudge", "changed"}) || len(events) != 1 || events[0].Type != EventRemoved || events[0].Address != "a" || events[0].Host != "ha" || events[0].Text != "silent" {
		t.Errorf("removed: %v, %v", kinds, events)
	}
	if len(c.members) != 2 || len(c.view.Members) != 2 || c.view.has("a") || c.info.GetMembers()[0].GetAddress() != "a" {
		t.Errorf("members %v, view %v", c.members, c.view)
	}
	without := formationOf(2, "b")
	without.Departures = []*mcrdmav1.Departure{{Address: "a", Host: "ha", Text: "another reason"}, {Address: "c", Host: "hc", Text: "it has left"}}
	c.resumed(without)
	kinds, events = c.does()
	if !slices.Equal(kinds, []string{"changed", "nudge"}) || len(events) != 2 || events[0].Type != EventResumed || events[0].Formation != 2 || len(c.members) != 1 {
		t.Errorf("resumed: %v, %v, members %v", kinds, events, c.members)
	}
	if e := events[1]; e.Type != EventRemoved || e.Address != "c" || e.Formation != 2 || e.Text != "hc: it has left" {
		t.Errorf("removed while the daemon was not there: %v", e)
	}
	removed(2, "c")
	if _, events := c.does(); len(events) != 0 {
		t.Errorf("told again: %v", events)
	}
	c.resumed(formationOf(3, "b"))
	if kinds, events = c.does(); len(kinds)+len(events) != 0 {
		t.Errorf("resumed in another formation: %v, %v", kinds, events)
	}
}

// TestStallTimes: how long nothing may complete before the daemon is told.
func TestStallTimes(t *testing.T) {
	const ms = time.Millisecond
	const timeout = 4096 << 14 * time.Nanosecond // of code 14: 67.1 ms
	for _, c := range []struct {
		code  uint32 // 0: no connection
		usual time.Duration
		want  time.Duration
	}{
		{0, 0, 500 * ms}, {0, time.Second, 500 * ms},
		{14, 0, timeout + timeout/32}, {14, timeout, timeout + timeout/32},
		{14, 96 * ms, 99 * ms}, {14, time.Second, 3 * (timeout + timeout/32)},
		{20, 0, 500 * ms}, {20, 640 * ms, 660 * ms}, {20, time.Hour, 1500 * ms},
	} {
		info := formationOf(1, "a")
		if c.code > 0 {
			info.Connection = &mcrdmav1.Connection{Timeout: c.code}
		}
		l := newCalm(t, info)
		l.usual = c.usual
		if next, stall := l.lookedAt(l.now, l.now.Add(-time.Hour)); next != c.want || stall {
			t.Errorf("%+v: nothing under way: %v, %v", c, next, stall)
		}
		l.submit(1, 1)
		moved := l.now
		if next, stall := l.lookedAt(moved.Add(c.want-ms), moved); next != ms || stall {
			t.Errorf("%+v: before: %v, %v", c, next, stall)
		}
		if next, stall := l.lookedAt(moved.Add(c.want), moved); next != c.want || !stall {
			t.Errorf("%+v: after: %v, %v", c, next, stall)
		}
		if next, stall := l.lookedAt(moved.Add(c.want+ms), moved); next != c.want-ms || stall {
			t.Errorf("%+v: told once: %v, %v", c, next, stall)
		}
		if next, stall := l.lookedAt(moved.Add(2*c.want), moved); next != c.want || !stall {
			t.Errorf("%+v: again: %v, %v", c, next, stall)
		}
		if l.ended(errPlay); l.state != reForming {
			t.Fatal(l.state)
		}
		if next, stall := l.lookedAt(moved.Add(time.Hour), moved); next != c.want || stall {
			t.Errorf("%+v: without a formation: %v, %v", c, next, stall)
		}
		l.stop(errClosing)
		l.finish()
		if next, stall := l.lookedAt(moved.Add(2*time.Hour), moved); next != 500*ms || stall {
			t.Errorf("%+v: closed: %v, %v", c, next, stall)
		}
	}
}

// TestPauses: between two tries to form the group the pause doubles, up to a second, and ten
// tries are enough unless the daemon cannot be reached.
func TestPauses(t *testing.T) {
	for _, err := range []error{errPlay, fmt.Errorf("%w: away", ErrUnreachable)} {
		c := newCalm(t, formationOf(1, "a"))
		c.ended(errPlay)
		for try := 1; try <= 12; try++ {
			if c.job != asking {
				t.Fatalf("job %d before try %d", c.job, try)
			}
			c.answered(nil, err, true, c.now)
			if try == 10 && errors.Is(err, errPlay) {
				if c.state != closing || !errors.Is(c.err, ErrFailed) {
					t.Errorf("%v, %v after %d tries", c.state, c.err, try)
				}
				break
			}
			want := min(10*time.Millisecond<<try, time.Second)
			if j, until := c.next(c.now); j != pausing || !until.Equal(c.now.Add(want)) {
				t.Fatalf("try %d: job %d, pause of %v, want %v", try, j, until.Sub(c.now), want)
			}
			if j, _ := c.next(c.now.Add(want - 1)); j != pausing {
				t.Errorf("try %d: the pause ends too soon", try)
			}
			c.now = c.now.Add(want)
			if j, until := c.next(c.now); j != asking || !until.IsZero() {
				t.Errorf("try %d: job %d after the pause, until %v", try, j, until)
			}
		}
		if !errors.Is(err, ErrUnreachable) {
			continue
		}
		for try := 1; try <= 10; try++ { // when it is back, the tries before do not count
			if c.state != reForming {
				t.Errorf("%v after %d tries since then", c.state, try-1)
			}
			if c.answered(nil, errPlay, true, c.now); try == 10 && c.state != closing {
				t.Errorf("%v after %d tries since then", c.state, try)
			}
			c.now = c.now.Add(time.Second)
			c.next(c.now)
		}
	}
	c := newCalm(t, formationOf(1, "a"))
	c.ended(errPlay)
	if c.answered(nil, errPlay, false, c.now); c.state != closing || !errors.Is(c.err, errPlay) || errors.Is(c.err, ErrFailed) {
		t.Errorf("%v, %v, and no other try may help", c.state, c.err)
	}
}

// TestFruitless: after ten formations in which nothing was completed there is no other, unless
// nothing was under way.
func TestFruitless(t *testing.T) {
	c := newCalm(t, formationOf(1, "a"))
	for i := range 20 {
		c.reformed(formationOf(uint32(i+2), "a"))
	}
	c.submit(1, 1)
	number := uint32(30)
	for range 9 {
		c.reformed(formationOf(number, "a"))
		number++
	}
	for c.queue.next() != nil {
		c.queue.advance()
	}
	c.complete(1)
	c.submit(1, 1)
	again := func(why error, have uint64) {
		info := formationOf(number, "a")
		info.Have = have
		c.ended(why)
		c.answered(info, nil, false, c.now)
		c.begins()
		number++
	}
	for range 20 {
		again(errAdding, 1)
	}
	for range 9 {
		again(errPlay, 1)
	}
	c.submit(1, 1)
	for c.queue.next() != nil {
		c.queue.advance()
	}
	again(errPlay, 2) // it shows that the first operation was completed
	for range 10 {
		again(errPlay, 2)
	}
	if c.state != active || c.stats.Completed != 2 {
		t.Fatalf("%v, %v, %d operations are complete", c.state, c.err, c.stats.Completed)
	}
	if c.ended(errPlay); c.state != closing || !errors.Is(c.err, ErrFailed) || !errors.Is(c.err, errPlay) {
		t.Errorf("%v, %v", c.state, c.err)
	}
}

// TestCounts: what is complete is counted, with its bytes, and so are formations.
func TestCounts(t *testing.T) {
	c := newCalm(t, formationOf(1, "a"))
	c.submit(3, 100)
	c.complete(2)
	if c.stats.Completed != 2 || c.stats.Bytes != 200 || c.stats.Formations != 1 || len(c.batch) != 2 || c.queue.ops.len() != 1 {
		t.Errorf("%+v, %d handed back", c.stats, len(c.batch))
	}
	c.does()
	c.drain()
	if kinds, _ := c.does(); len(kinds) != 0 {
		t.Errorf("%v with an operation under way", kinds)
	}
	if err := c.add(&addition{receivers: []string{"b"}}); !errors.Is(err, ErrClosed) {
		t.Errorf("added while draining: %v", err)
	}
	c.complete(1)
	if kinds, _ := c.does(); !slices.Equal(kinds, []string{"drained"}) || c.stats.Bytes != 300 || len(c.batch) != 1 {
		t.Errorf("%v, %+v", kinds, c.stats)
	}
}

// TestAdditionsLetGoOn: receivers that are added again and again leave time for operations.
func TestAdditionsLetGoOn(t *testing.T) {
	c := newCalm(t, formationOf(1, "a"))
	cuts := func(want ...string) {
		t.Helper()
		if kinds, _ := c.does(); !slices.Equal(kinds, want) {
			t.Errorf("%v, want %v", kinds, want)
		}
	}
	add := func(receiver string) {
		t.Helper()
		if err := c.add(&addition{receivers: []string{receiver}, done: make(chan answer, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	c.submit(2, 1)
	for c.queue.next() != nil {
		c.queue.advance()
	}
	c.does()
	add("b")
	cuts("cut") // at once: operations may wait for a receiver that is slow
	c.ended(errAdding)
	add("d") // while the group is formed
	info := formationOf(2, "a", "b")
	c.answered(info, nil, false, c.now)
	c.begins()
	c.does()
	c.addNext()
	cuts() // nothing is complete since
	c.complete(1)
	c.addNext()
	cuts("cut")
}

// TestAdditions: a receiver that is there already is refused; what comes while a formation is
// made waits for the next; each addition has its own answer.
func TestAdditions(t *testing.T) {
	c := newCalm(t, formationOf(1, "a"))
	for _, r := range []string{"a", "ha"} {
		if err := c.add(&addition{receivers: []string{"b", r}}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", r, err)
		}
	}
	c.does()
	first, second, third := &addition{receivers: []string{"b", "hc"}}, &addition{receivers: []string{"d"}}, &addition{receivers: []string{"e"}}
	for _, w := range []*addition{first, second} {
		if err := c.add(w); err != nil {
			t.Fatal(err)
		}
	}
	if kinds, _ := c.does(); !slices.Equal(kinds, []string{"cut", "cut"}) {
		t.Errorf("%v", kinds)
	}
	c.ended(errAdding)
	req := c.re.request()
	if !slices.Equal(req.GetAdd(), []string{"b", "hc", "d"}) || req.GetFormation() != 1 || req.GetReason() != errAdding.Error() {
		t.Errorf("asks %v", req)
	}
	if err := c.add(third); err != nil {
		t.Fatal(err)
	}
	if kinds, _ := c.does(); len(kinds) != 0 {
		t.Errorf("%v while the group is formed", kinds)
	}
	c.answered(formationOf(2, "a", "b", "c"), nil, false, c.now)
	c.begins()
	answers := map[*addition]error{}
	for _, a := range c.out {
		if a, ok := a.(answer); ok {
			answers[a.to] = a.err
		}
	}
	if err, ok := answers[first]; !ok || err != nil {
		t.Errorf("the first: %v, %v", ok, err)
	}
	if err := answers[second]; !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "receiver d") {
		t.Errorf("the second: %v", err)
	}
	if _, ok := answers[third]; ok {
		t.Error("the third has an answer")
	}
	kinds, events := c.does()
	var types []EventType
	for _, e := range events {
		types = append(types, e.Type)
	}
	if !slices.Equal(kinds, []string{"changed", "answer", "answer", "cut"}) || !slices.Equal(types, []EventType{EventAdded, EventAdded, EventReformed}) {
		t.Errorf("%v, %v", kinds, types)
	}
	c.ended(errAdding)
	if c.answered(nil, errPlay, false, c.now); c.job != pausing {
		t.Errorf("job %d after a refusal of receivers", c.job)
	}
	if kinds, _ := c.does(); !slices.Equal(kinds, []string{"answer"}) || len(c.adding) != 0 {
		t.Errorf("%v", kinds)
	}
}

// TestAddedWithoutSwitch: if switches cannot copy for receivers that are to be added, the group is formed without these.
// Otherwise another try may help.
func TestAddedWithoutSwitch(t *testing.T) {
	for _, r := range []string{"b", ""} {
		c := newCalm(t, formationOf(1, "a"))
		var want []string
		if r != "" {
			want = []string{"answer"}
			if err := c.add(&addition{receivers: []string{r}}); err != nil {
				t.Fatal(err)
			}
		}
		c.ended(errPlay)
		c.does()
		c.answered(nil, ErrNoSwitch, true, c.now)
		if kinds, _ := c.does(); !slices.Equal(kinds, want) || c.job != pausing || len(c.adding) != 0 {
			t.Errorf("%q is to be added: %v, job %d", r, kinds, c.job)
		}
	}
}

// TestAddedWhileWaiting: additions for which switches cannot copy do not end a group that waits for receivers.
func TestAddedWhileWaiting(t *testing.T) {
	c := newCalm(t, formationOf(1, "a"))
	c.waits = true
	c.ended(errPlay)
	c.does()
	for i := range 2 * maxFruitless {
		c.answered(nil, ErrMinSize, false, c.now)
		c.now = c.now.Add(2 * time.Second)
		if err := c.add(&addition{receivers: []string{"b"}}); err != nil {
			t.Fatalf("addition %d: %v; the group: %v", i, err, c.err)
		}
		c.next(c.now)
		c.answered(nil, ErrNoSwitch, true, c.now)
		c.now = c.now.Add(2 * time.Second)
		c.next(c.now)
	}
}

// TestAddedAndRemoved: who asked for a receiver that joined a formation which did not begin, and was
// removed then, learns why.
func TestAddedAndRemoved(t *testing.T) {
	c := newCalm(t, formationOf(1, "a"))
	for _, r := range []string{"b", "hb"} {
		if err := c.add(&addition{receivers: []string{r}}); err != nil {
			t.Fatal(err)
		}
	}
	c.ended(errAdding)
	c.answered(formationOf(2, "a", "b"), nil, false, c.now)
	c.connected(errPlay, c.now)
	c.now = c.now.Add(time.Second)
	if j, _ := c.next(c.now); j != asking {
		t.Fatalf("job %d", j)
	}
	f := formationOf(3, "a")
	f.Departures = []*mcrdmav1.Departure{{Address: "b", Host: "hb", Text: "the application has ended"}}
	c.answered(f, nil, false, c.now)
	c.begins()
	answers := 0
	for _, a := range c.out {
		if a, ok := a.(answer); ok {
			answers++
			wants(t, a.to.receivers[0], a.err, ErrUnreachable, "the application has ended")
		}
	}
	if answers != 2 {
		t.Errorf("%d answers", answers)
	}
}

// TestAddedTwice: a receiver that two calls ask for is added once, and both get the same answer.
func TestAddedTwice(t *testing.T) {
	c := newCalm(t, formationOf(1, "a"))
	for _, receivers := range [][]string{{"b"}, {"c", "b"}} {
		if err := c.add(&addition{receivers: receivers}); err != nil {
			t.Fatal(err)
		}
	}
	c.ended(errAdding)
	if req := c.re.request(); !slices.Equal(req.GetAdd(), []string{"b", "c"}) {
		t.Errorf("asks %v", req)
	}
	c.answered(formationOf(2, "a", "b", "c"), nil, false, c.now)
	c.begins()
	answers := 0
	for _, a := range c.out {
		if a, ok := a.(answer); ok {
			if answers++; a.err != nil {
				t.Errorf("%v: %v", a.to.receivers, a.err)
			}
		}
	}
	if answers != 2 || len(c.adding) > 0 {
		t.Errorf("%d answers, %d wait", answers, len(c.adding))
	}
}

// TestCatchesUp: where switches would show a member older bytes again, hosts relay what the
// others lack, and no more; then the group is formed anew.
func TestCatchesUp(t *testing.T) {
	c := newCalm(t, formationOf(1, "a", "b"))
	for _, k := range []Kind{OpWrite, OpSend, OpWrite, OpSend, OpSend} {
		c.queue.push(&Op{Kind: k, size: 8})
	}
	for range 4 {
		c.queue.advance()
	}
	c.ended(errPlay)
	found := func(number uint32, path mcrdmav1.Path) *mcrdmav1.FormationInfo {
		f := formationOf(number, "a", "b")
		f.Path, f.Members[1].Have = path, 2
		return f
	}
	for number := range uint32(2) {
		c.answered(found(2+number, mcrdmav1.Path_PATH_SWITCH), nil, false, c.now)
		if req := c.re.request(); req.GetReason() != errCatchUp.Error() || req.GetFormation() != 2+number || len(req.GetSuspects())+len(req.GetAdd()) != 0 {
			t.Fatalf("asks %v", req)
		}
		if number == 1 {
			if c.job != pausing {
				t.Fatalf("job %d, and the daemon does not let hosts relay", c.job)
			}
			c.now = c.now.Add(time.Second)
			c.next(c.now)
			c.answered(found(4, mcrdmav1.Path_PATH_SWITCH), nil, false, c.now)
		}
	}
	c.answered(found(5, mcrdmav1.Path_PATH_RELAY), nil, false, c.now)
	c.begins()
	if posted := c.post(); posted != 4 {
		t.Errorf("%d operations are relayed, want 4", posted)
	}
	c.does()
	c.complete(3)
	if kinds, _ := c.does(); len(kinds) != 0 {
		t.Errorf("%v, and one lacks an operation", kinds)
	}
	c.complete(1)
	if kinds, _ := c.does(); !slices.Equal(kinds, []string{"cut"}) {
		t.Errorf("%v, and all have the same", kinds)
	}
}

// TestTooLongForSwitches: an operation that hosts would have relayed has too many packets for the next formation's
// switches. Hosts relay all up to it, and then the group goes on through switches.
func TestTooLongForSwitches(t *testing.T) {
	c := newCalm(t, formationOf(1, "a", "b"))
	for _, size := range []uint64{8, 13 * 256, 8} {
		c.queue.push(&Op{Kind: OpWrite, size: size})
	}
	c.ended(errPlay)
	byswitch := func(number uint32) *mcrdmav1.FormationInfo {
		f := formationOf(number, "a", "b")
		f.Path, f.Connection = mcrdmav1.Path_PATH_SWITCH, &mcrdmav1.Connection{Mtu: 256, MaxPackets: 16}
		return f
	}
	c.answered(byswitch(2), nil, false, c.now)
	if req := c.re.request(); req.GetReason() != errTooLong.Error() || req.GetFormation() != 2 {
		t.Fatalf("asks %v", req)
	}
	c.answered(formationOf(3, "a", "b"), nil, false, c.now)
	c.begins()
	if posted := c.post(); posted != 2 {
		t.Errorf("%d operations are relayed, want 2", posted)
	}
	c.does()
	c.complete(2)
	if kinds, _ := c.does(); !slices.Equal(kinds, []string{"cut"}) {
		t.Errorf("%v, and the switches can take the rest", kinds)
	}
	c.ended(errCaughtUp)
	c.answered(byswitch(4), nil, false, c.now)
	c.begins()
	if c.queue.next() == nil {
		t.Error("the rest is not posted")
	}
}

// TestCatchesUpWithoutTheMost: the only receiver that had more than the others is not in the
// formation that was to bring them what it had: the group is formed anew at once.
func TestCatchesUpWithoutTheMost(t *testing.T) {
	c := newCalm(t, formationOf(1, "a", "b"))
	for range 2 {
		c.queue.push(&Op{Kind: OpWriteImm, size: 8})
		c.queue.advance()
	}
	c.ended(errPlay)
	ahead := formationOf(2, "a", "b")
	ahead.Path, ahead.Members[1].Have = mcrdmav1.Path_PATH_SWITCH, 2
	c.answered(ahead, nil, false, c.now)
	if req := c.re.request(); req.GetReason() != errCatchUp.Error() {
		t.Fatalf("asks %v", req)
	}
	c.does()
	c.answered(formationOf(3, "a"), nil, false, c.now)
	c.begins()
	if c.queue.next() != nil {
		t.Error("operations are relayed")
	}
	if kinds, _ := c.does(); !slices.Contains(kinds, "cut") {
		t.Errorf("%v, and nothing is to be relayed", kinds)
	}
}

// TestFirstPathFails: a group whose first formation gets no path fails, and says why.
func TestFirstPathFails(t *testing.T) {
	c := &calm{now: time.Unix(1000, 0)}
	c.created(formationOf(1, "a"))
	c.connected(errPlay, c.now)
	if j, _ := c.next(c.now); j != ending || c.state != closing || !errors.Is(c.err, ErrFailed) || !errors.Is(c.err, errPlay) {
		t.Errorf("job %d, %v, %v", j, c.state, c.err)
	}
}

// TestToldAtTheEnd: a group that ends before the daemon has said why a member is out tells so first.
func TestToldAtTheEnd(t *testing.T) {
	c := newCalm(t, formationOf(1, "a", "b"))
	c.changed(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_VIEW, Formation: 1, View: 1, Members: []string{"b"}})
	c.hooked(1, nil)
	if _, events := c.does(); len(events) != 0 {
		t.Errorf("told before the daemon has said why: %+v", events)
	}
	c.stop(errClosing)
	c.finish()
	c.over()
	if _, events := c.does(); len(events) != 2 || events[0].Type != EventRemoved || events[0].Address != "a" || events[1].Type != EventClosed {
		t.Errorf("%+v", events)
	}
}

// TestViewsBegin: a daemon that begins to count views, after one that did not, may have let the
// switches go on without a member before: that has only what was complete when the formation began.
func TestViewsBegin(t *testing.T) {
	info := formationOf(1, "a", "b")
	info.Path = mcrdmav1.Path_PATH_SWITCH
	c := newCalm(t, info)
	c.submit(3, 8)
	c.complete(2)
	c.changed(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_VIEW, Formation: 1, View: 1, Members: []string{"b"}})
	c.hooked(1, nil)
	c.does()
	if p := c.present(); len(p) != 1 || p[0].Address != "b" {
		t.Errorf("completions are of view 1, and the members %+v", p)
	}
	c.changed(&mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_REMOVED, Formation: 1, Address: "a"})
	if _, events := c.does(); len(events) != 1 || events[0].Type != EventRemoved || events[0].Operation != 0 {
		t.Errorf("%+v", events)
	}
}

// TestOvertaken: a formation whose member has ended is not waited for, whether that is known before it is connected, or meanwhile.
func TestOvertaken(t *testing.T) {
	again := &mcrdmav1.GroupChanged{Type: mcrdmav1.GroupChanged_TYPE_REFORM, Formation: 2, Text: "a: it has ended"}
	for _, before := range []bool{true, false} {
		c := newCalm(t, formationOf(1, "a", "b", "c"))
		c.ended(errPlay)
		c.does()
		if before {
			c.changed(again)
		}
		c.answered(formationOf(2, "a", "b"), nil, false, c.now)
		if kinds, _ := c.does(); slices.Contains(kinds, "cut") {
			t.Errorf("before: %v: %v", before, kinds)
		}
		if c.overtaken(); !before {
			c.changed(again)
		}
		if kinds, _ := c.does(); !slices.Contains(kinds, "cut") {
			t.Errorf("before: %v: it is waited for: %v", before, kinds)
		}
	}
	c := &calm{t: t, now: time.Unix(1000, 0)}
	c.created(formationOf(2, "a", "b"))
	c.changed(again)
	if kinds, _ := c.does(); !slices.Contains(kinds, "cut") {
		t.Errorf("the first formation is waited for: %v", kinds)
	}
}
