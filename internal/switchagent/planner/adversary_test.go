package planner_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/mcrdma/mcrdma/internal/switchagent/planner"
	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

var (
	onlySeed = flag.Uint64("planner.seed", 0, "run the adversary with this seed only")
	tracing  = flag.Bool("planner.trace", false, "print all that happens")
)

// TestAdversary drives transitions of two steps of one group, at the same time, against model
// switches, a disk and a switch of the steps' own. Every seed is another scenario: actions are
// done in any order, fail, or fail and are yet done.
func TestAdversary(t *testing.T) {
	if *onlySeed != 0 {
		if err := run(*onlySeed, "", &tally{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(2000)
	if os.Getenv("MCRDMA_LONG") != "" {
		seeds = 200_000
	}
	var total tally
	for s := uint64(1); s <= seeds && !t.Failed(); s++ {
		if err := run(s, "", &total); err != nil {
			t.Errorf("seed %d: %v\nreplay: go test ./internal/switchagent/planner -run 'TestAdversary$' -planner.seed=%d -planner.trace", s, err, s)
		}
	}
	t.Logf("%d seeds: %+v", seeds, total)
	if n := int(seeds); total.turned < 3*n || total.undone < n || total.unclear < n || total.foreign < n || total.moved < n/2 || total.routed < n || total.behind < n/2 || total.unreached < n/2 {
		t.Errorf("the adversary does not exercise what it should: %+v", total)
	}
}

// A tally counts what has happened, so that a run that tests nothing is noticed.
type tally struct{ turned, undone, unclear, foreign, moved, routed, behind, unreached int }

// mistakes are those that the adversary must find.
var mistakes = []string{
	"a refused hold counts as done",
	"packets turn before the branches are held",
	"a step that packets reach counts as unreached",
	"merging turns before the record is stored",
	"routes are put before the switches were told",
	"a failed record does not stop the change",
	"a receiver that moves is not reached meanwhile",
	"old branches are released before packets turn",
	"undo does not release",
	"undo releases a branch that was held before",
	"undo holds what was to be",
	"undo leaves the new entries",
	"undo leaves the new record",
	"undo releases what another step holds",
	"trim releases nothing",
	"packets on their way are not waited for",
	"trim leaves branches as large as they were",
	"what trim could not do is forgotten",
	"what undo could not do is forgotten",
	"a branch is released twice",
}

// TestMistakes: the adversary finds each.
func TestMistakes(t *testing.T) {
	for _, m := range mistakes {
		found := error(nil)
		for seed := uint64(1); seed <= 3000 && found == nil; seed++ {
			found = run(seed, m, &tally{})
		}
		if found == nil {
			t.Errorf("not found: %s", m)
		} else {
			t.Logf("%s: %v", m, found)
		}
	}
}

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

// key is a group's destination at another switch.
type key = netip.Addr

// An entry is what another switch has.
type entry struct {
	receivers []bifurcation.Receiver
	sequence  uint64
}

// A step has a number for what is on its switch and for its record; 0: nothing.
type step struct {
	name     string
	branches planner.Branches
	copies   bool
	behind   bool
	all      []bifurcation.Receiver
	// on the switch, and on the disk
	early, match, merging, record int
	t                             *planner.Transition
	c                             planner.Change
	next                          int // number of the transition
	was                           step2
	pending                       []call
	faults                        bool // something failed
	routed, told, drained         bool // routes were put, switches told, packets waited for, in this transition
	known                         bool // it has been made once, and packets come
}

// step2 is what a step was before a transition.
type step2 struct {
	match, merging, record int
	branches               planner.Branches
}

// A call is an action under way.
type call struct {
	planner.Action
	sequence uint64
	none     bool // there is nothing to be done
}

type world struct {
	rnd      *rand.Rand
	mistake  string
	tally    *tally
	steps    []*step
	peers    map[bifurcation.Switch]map[key]entry
	held     map[bifurcation.Switch]planner.Holdings[key, *step]
	sequence uint64
	number   int
	left     map[planner.Branch]bool // a switch may have more than is thought, until the next sync
	calm     bool                    // nothing fails any more
	failed   error
}

func (w *world) fail(format string, args ...any) {
	if w.failed == nil {
		w.failed = fmt.Errorf(format, args...)
	}
}

func (w *world) trace(format string, args ...any) {
	if *tracing {
		fmt.Printf(format+"\n", args...)
	}
}

var names = []bifurcation.Switch{"a", "b", "c"}

func run(seed uint64, mistake string, t *tally) error {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 7)), mistake: mistake, tally: t, left: map[planner.Branch]bool{},
		peers: map[bifurcation.Switch]map[key]entry{}, held: map[bifurcation.Switch]planner.Holdings[key, *step]{}}
	for _, n := range names {
		w.peers[n], w.held[n] = map[key]entry{}, planner.Holdings[key, *step]{}
	}
	for i := range 2 {
		w.steps = append(w.steps, &step{name: fmt.Sprint("step ", i), branches: planner.Branches{}})
	}
	for range 60 {
		s := w.steps[w.rnd.IntN(2)]
		if s.t == nil && w.rnd.IntN(4) == 0 {
			w.announce(s)
		} else if s.t == nil {
			w.begin(s, w.plan(s))
		} else {
			w.resolve(s)
		}
		if w.failed != nil {
			return w.failed
		}
	}
	w.calm = true
	for _, s := range w.steps { // a call under way may still fail
		for s.t != nil && w.failed == nil {
			w.resolve(s)
		}
	}
	for range 6 { // the next syncs repair everything
		w.sync()
		for _, s := range w.steps {
			if s.behind && w.failed == nil {
				w.begin(s, planner.Change{Next: s.branches, Receivers: s.all, Copies: s.copies})
			}
			for s.t != nil && w.failed == nil {
				w.resolve(s)
			}
		}
	}
	w.settled("settled")
	for _, s := range w.steps {
		if w.failed == nil {
			w.begin(s, planner.Change{Next: planner.Branches{}, Fresh: true, Record: true})
		}
		for s.t != nil && w.failed == nil {
			w.resolve(s)
		}
	}
	w.sync()
	w.settled("empty")
	for n, p := range w.peers {
		if len(p)+len(w.held[n]) > 0 {
			w.fail("%s has %v and is thought to have %v when all has ended", n, p, w.held[n])
		}
	}
	return w.failed
}

// plan draws what a step is to become.
func (w *world) plan(s *step) planner.Change {
	c := planner.Change{Next: planner.Branches{}, Copies: w.rnd.IntN(3) > 0, Fresh: w.rnd.IntN(4) > 0,
		Merging: w.rnd.IntN(3) == 0, Record: w.rnd.IntN(2) == 0}
	if c.Merging {
		c.Record = true
	}
	if !c.Fresh {
		c.Copies = s.copies
	}
	for i := range 5 {
		if w.rnd.IntN(4) > 0 {
			c.Receivers = append(c.Receivers, bifurcation.Receiver{Addr: addr(i), QPN: uint32(i + 1)})
		}
	}
	for _, r := range c.Receivers {
		if w.rnd.IntN(4) == 0 {
			continue // it is reached directly
		}
		k := planner.Branch{Next: names[w.rnd.IntN(len(names))], Dst: addr(100 + w.rnd.IntN(2))}
		c.Next[k] = append(c.Next[k], r)
	}
	return c
}

func (w *world) begin(s *step, c planner.Change) {
	w.number++
	c.Was, c.Again = s.branches, s.behind || c.Again
	c.Unreached = !s.known && len(s.all) == 0 && len(s.branches) == 0 && w.rnd.IntN(4) > 0
	if !c.Fresh && !c.Copies && s.copies {
		c.Copies = true
	}
	s.c, s.next, s.faults, s.routed, s.told, s.drained = c, w.number, false, false, false, false
	s.was = step2{s.match, s.merging, s.record, maps.Clone(s.branches)}
	w.trace("%s: transition %d: %+v", s.name, s.next, c)
	wrong := c
	wrong.Unreached = c.Unreached || w.is("a step that packets reach counts as unreached")
	s.t = planner.Begin(wrong)
	switch {
	case w.is("packets turn before the branches are held") && c.Fresh:
		w.turn(s)
	case w.is("merging turns before the record is stored") && c.Merging:
		w.turn(s)
	case w.is("routes are put before the switches were told") && !c.Copies:
		w.route(s)
	case w.is("old branches are released before packets turn"):
		for k := range c.Was {
			if _, ok := c.Next[k]; !ok {
				w.start(s, planner.Action{ID: -1, Kind: planner.Release, Branch: k})
			}
		}
	}
	w.take(s)
}

// announce has a switch hold a branch of a step outside of a transition.
func (w *world) announce(s *step) {
	k := planner.Branch{Next: names[w.rnd.IntN(len(names))], Dst: addr(100 + w.rnd.IntN(2))}
	w.sequence++
	if len(s.all) == 0 || !w.held[k.Next].Ask(k.Dst, s, w.sequence) {
		return
	}
	n := w.rnd.IntN(3)
	if n > 0 {
		w.peers[k.Next][k.Dst] = entry{s.all, w.sequence}
	}
	if n > 1 {
		s.branches[k] = s.all
	} else {
		s.behind, w.left[k] = true, true
	}
	_, kept := s.branches[k]
	w.held[k.Next].Answered(k.Dst, kept)
}

func (w *world) is(mistake string) bool { return w.mistake == mistake }

func (w *world) take(s *step) {
	for _, a := range s.t.Take() {
		w.start(s, a)
	}
	if s.t.State() >= planner.Draining && s.t.Err() == nil {
		if s.c.Unreached && !s.known {
			w.tally.unreached++
			w.reached(s, "packets come")
		}
		s.known = true
		s.branches, s.behind, s.copies, s.all = maps.Clone(s.c.Next), false, s.c.Copies, s.c.Receivers
	}
	if s.t.State() == planner.Ended {
		w.ended(s)
	}
}

// start is where a call leaves.
func (w *world) start(s *step, a planner.Action) {
	c := call{Action: a}
	undoing := s.t.State() == planner.Undoing
	switch a.Kind {
	case planner.Hold:
		s.told = true
		if w.is("a receiver that moves is not reached meanwhile") && s.t.State() == planner.Preparing {
			c.Receivers = s.c.Next[a.Branch]
		}
		if w.is("undo holds what was to be") && undoing {
			c.Receivers = s.c.Next[a.Branch]
		}
		w.sequence++
		c.sequence = w.sequence
		if !w.held[a.Branch.Next].Ask(a.Branch.Dst, s, c.sequence) {
			w.tally.foreign++
			c.none = true
			break
		}
		w.shrinks(s, a.Branch, c.Receivers)
	case planner.Release:
		h := w.held[a.Branch.Next]
		owner, there := h[a.Branch.Dst]
		if w.is("undo releases what another step holds") && undoing && there && owner.Owner != s {
			delete(h, a.Branch.Dst)
		}
		if c.none = !h.Release(a.Branch.Dst, s); c.none {
			break
		}
		w.sequence++
		c.sequence = w.sequence
		w.shrinks(s, a.Branch, nil)
	}
	s.pending = append(s.pending, c)
}

// shrinks is called before another switch is asked to hold no more than these: packets must
// not need more.
func (w *world) shrinks(s *step, k planner.Branch, receivers []bifurcation.Receiver) {
	need := s.was.branches
	if s.t.Err() == nil && s.t.State() >= planner.Draining {
		need = s.c.Next
	}
	for _, r := range s.was.branches[k] {
		has := func(list []bifurcation.Receiver) bool {
			return slices.ContainsFunc(list, func(o bifurcation.Receiver) bool { return planner.Same(r, o) })
		}
		if s.t.State() == planner.Trimming && s.t.Err() == nil && !s.c.Merging && !s.drained && has(s.c.Receivers) && !has(receivers) {
			w.fail("%s: %s is asked for %v by %v, and packets to %v are on their way", s.name, k.Next, receivers, k.Dst, r.Addr)
		}
	}
	for _, r := range need[k] {
		gone := s.t.State() < planner.Undoing && !slices.ContainsFunc(s.c.Receivers, func(o bifurcation.Receiver) bool { return planner.Same(r, o) })
		if !gone && !slices.ContainsFunc(receivers, func(o bifurcation.Receiver) bool { return planner.Same(r, o) }) {
			w.fail("%s: %s is asked for %v by %v and packets need %v", s.name, k.Next, receivers, k.Dst, r.Addr)
		}
	}
}

// resolve lets one of the calls under way end.
func (w *world) resolve(s *step) {
	i := w.rnd.IntN(len(s.pending))
	c := s.pending[i]
	s.pending = slices.Delete(s.pending, i, i+1)
	done, err := true, error(nil)
	if !w.calm && c.Kind != planner.TurnBack && c.Kind != planner.Drain {
		switch n := w.rnd.IntN(20); {
		case n < 2:
			done, err = false, errors.New("refused")
		case n < 4:
			err = errors.New("no answer")
			w.tally.unclear++
		}
	}
	if c.none && c.Kind == planner.Hold {
		done, err = false, errors.New("another step holds it")
	} else if c.none {
		done, err = false, nil
	}
	w.trace("%s: %v of %v %v: done %t, %v", s.name, c.Kind, c.Branch, c.Receivers, done, err)
	undoing, trimming := s.t.State() == planner.Undoing, s.t.State() == planner.Trimming
	if s.faults = s.faults || err != nil && (undoing || trimming); err != nil && c.Kind == planner.Release {
		w.left[c.Branch] = true
	}
	switch {
	case w.is("undo does not release") && undoing && c.Kind == planner.Release,
		w.is("undo leaves the new entries") && c.Kind == planner.TurnBack,
		w.is("undo leaves the new record") && c.Kind == planner.RecordBack,
		w.is("trim releases nothing") && trimming && c.Kind == planner.Release,
		w.is("trim leaves branches as large as they were") && trimming && c.Kind == planner.Hold:
		done, err = false, nil
	case w.is("undo releases a branch that was held before") && undoing && c.Kind == planner.Hold:
		c.Kind, done = planner.Release, true
	}
	if done {
		w.perform(s, c)
	}
	if c.Kind == planner.Hold && !c.none {
		_, kept := s.branches[c.Branch]
		w.held[c.Branch.Next].Answered(c.Branch.Dst, err == nil || kept)
	}
	if w.is("a refused hold counts as done") && c.Kind == planner.Hold ||
		w.is("a failed record does not stop the change") && c.Kind == planner.Record ||
		w.is("what trim could not do is forgotten") && trimming || w.is("what undo could not do is forgotten") && undoing {
		err = nil
	}
	if c.ID < 0 {
		return
	}
	s.t.Done(c.ID, err)
	w.take(s)
}

// perform does what an action says.
func (w *world) perform(s *step, c call) {
	peer := w.peers[c.Branch.Next]
	switch c.Kind {
	case planner.Hold:
		if e := peer[c.Branch.Dst]; e.sequence > c.sequence {
			return // overtaken
		}
		peer[c.Branch.Dst] = entry{c.Receivers, c.sequence}
	case planner.Release:
		e, ok := peer[c.Branch.Dst]
		if ok && e.sequence < c.sequence {
			delete(peer, c.Branch.Dst)
		}
		if again := w.is("a branch is released twice"); again {
			delete(peer, c.Branch.Dst) // also if another step has it by now
		}
	case planner.Early:
		s.early = s.next
	case planner.Turn:
		w.turn(s)
	case planner.TurnBack:
		s.early, s.match, s.merging = 0, s.was.match, s.was.merging
	case planner.Record:
		s.record = s.next
	case planner.RecordBack:
		s.record = s.was.record
	case planner.Route:
		w.route(s)
	case planner.Drain:
		s.drained = !w.is("packets on their way are not waited for")
	}
}

// turn is when packets meet the new entries.
func (w *world) turn(s *step) {
	if !s.c.Unreached {
		w.reached(s, "packets turn")
	}
	if !s.c.Copies && !s.routed {
		w.fail("%s: packets follow the routes, which are not on the switch", s.name)
	}
	if s.c.Fresh && s.c.Copies && s.told && s.early != s.next && !s.c.Unreached {
		w.fail("%s: the entries are written only when the other switches have answered", s.name)
	}
	if s.c.Merging && s.record != s.next {
		w.fail("%s: merging turns, and the record is not stored", s.name)
	}
	if s.c.Fresh {
		s.match = s.next
	}
	if s.c.Merging {
		s.merging = s.next
	}
	s.early = 0
}

func (w *world) route(s *step) {
	w.tally.routed++
	s.routed = true
	w.reached(s, "packets follow the routes")
}

// reached wants the branches to be held that packets come to, unless they were lost before.
func (w *world) reached(s *step, when string) {
	for k, receivers := range s.c.Next {
		e := w.peers[k.Next][k.Dst]
		for _, r := range s.t.During()[k] {
			has := slices.ContainsFunc(e.receivers, func(o bifurcation.Receiver) bool { return planner.Same(r, o) })
			if !has {
				w.fail("%s: %s, and %s does not hold %v by %v, of %v", s.name, when, k.Next, r.Addr, k.Dst, receivers)
			}
		}
		if len(receivers) < len(s.t.During()[k]) {
			w.tally.moved++
		}
	}
}

// ended is when a transition has ended.
func (w *world) ended(s *step) {
	behind := s.t.Behind()
	if behind {
		w.tally.behind++
	}
	if len(s.pending) > 0 && s.pending[0].ID > 0 {
		w.fail("%s: it has ended, and %v is under way", s.name, s.pending)
	}
	if err := s.t.Err(); err != nil {
		w.tally.undone++
		if behind && len(s.branches) == 0 {
			w.fail("%s: it is behind, and had no branches", s.name)
		}
		if s.match != s.was.match || s.merging != s.was.merging || s.early != 0 {
			w.fail("%s: undone, the switch has match %d, merging %d, early entries %d, and had %d, %d, none", s.name, s.match, s.merging, s.early, s.was.match, s.was.merging)
		}
		if s.record != s.was.record && !s.faults {
			w.fail("%s: undone, the record is that of change %d, and was that of %d", s.name, s.record, s.was.record)
		}
		s.behind = s.behind || behind
	} else {
		w.tally.turned++
		if s.c.Fresh && s.match != s.next || s.c.Merging && s.merging != s.next || s.early != 0 {
			w.fail("%s: it is done, and packets have not turned", s.name)
		}
		if s.c.Record && s.record != s.next {
			w.fail("%s: it is done, and not recorded", s.name)
		}
		s.behind = s.behind || behind
	}
	if !s.faults && !s.behind {
		w.exact(s, "it has ended")
	}
	s.t, s.pending = nil, nil
	if slices.ContainsFunc(w.steps, func(o *step) bool { return o.t != nil }) {
		return // it may be releasing
	}
	for n, peer := range w.peers {
		for k, e := range peer {
			if _, ok := w.held[n][k]; !ok && !w.left[planner.Branch{Next: n, Dst: k}] {
				w.fail("%s: it has ended, and %s holds %v by %v, for no step", s.name, n, e.receivers, k)
			}
		}
	}
}

// exact wants other switches to hold a step's branches, and no other for it.
func (w *world) exact(s *step, when string) {
	for k, r := range s.branches {
		if e := w.peers[k.Next][k.Dst]; !planner.Equal(e.receivers, r) {
			w.fail("%s: %s, %s holds %v by %v, and should hold %v", s.name, when, k.Next, e.receivers, k.Dst, r)
		}
	}
}

// sync tells all switches what they hold: they release what is not named.
func (w *world) sync() {
	clear(w.left)
	for n, peer := range w.peers {
		for k := range peer {
			if _, ok := w.held[n][k]; !ok {
				delete(peer, k)
			}
		}
	}
}

// settled wants each switch to hold exactly what the steps want.
func (w *world) settled(when string) {
	for _, s := range w.steps {
		w.exact(s, when)
	}
	for n, h := range w.held {
		for k, x := range h {
			if _, ok := x.Owner.branches[planner.Branch{Next: n, Dst: k}]; !ok || x.Asking {
				w.fail("%s: %s is thought to hold %v for %s, asking: %t, and the step has only %v", when, n, k, x.Owner.name, x.Asking, x.Owner.branches)
			}
		}
		for k := range w.peers[n] {
			if _, ok := h[k]; !ok {
				w.fail("%s: %s holds %v for no step", when, n, k)
			}
		}
	}
}
