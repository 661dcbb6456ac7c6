// Package planner decides the order in which a step of a group changes. A [Transition] takes the
// step from its current to its new version, at its own switch, in the agent's state file and at the
// next switches, or leaves everything unchanged. It is a state machine: Begin and Done are its
// events, Take returns the resulting actions, and the caller carries them out concurrently.
//
// # States and their transitions
//
//	state      actions                                        then
//	Preparing  Early, Hold, Record; Turn, if nothing has to   Routing where no copies are to be made, else
//	           be done before it, or if no packets come yet   Turning; Undoing if anything failed
//	Routing    Route: packets that are not copied follow      Turning; Undoing
//	           the routes, which must be those of the plan
//	Turning    Turn, unless it is done already                Draining if receivers have moved, else Trimming;
//	                                                          Undoing
//	Draining   Drain                                          Trimming
//	Trimming   Release, and Hold of fewer receivers           Ended
//	Undoing    TurnBack, RecordBack, Hold, Release            Ended
//
// A state ends when all its actions are done. Up to Turning nothing that packets need is removed: a
// receiver that moves from one branch to another is reached by both, also while earlier copies are
// still in flight. After a failure in Trimming or Undoing the step must be made again.
//
// [Holdings] are the branches that another switch holds for this one.
package planner

import (
	"net/netip"
	"slices"

	"github.com/mcrdma/mcrdma/pkg/bifurcation"
)

// A Branch is a part of a group's tree at another switch, which packets reach by Dst.
type Branch struct {
	Next bifurcation.Switch
	Dst  netip.Addr
}

// Branches are what is behind each.
type Branches map[Branch][]bifurcation.Receiver

// A Change is what a step is, and is to be.
type Change struct {
	Was, Next Branches
	Receivers []bifurcation.Receiver // of the step, as it is to be
	Again     bool                   // switches are told also what they have been told
	Copies    bool                   // copies are made here then; else packets follow the routes
	Fresh     bool                   // the switch gets other entries
	Unreached bool                   // no packets come before the change is done: no switch has been told that the step is here
	Merging   bool                   // Turn changes merging, too
	Record    bool                   // the step's record changes
}

// A Kind of actions.
type Kind uint8

// The kinds. Turn and Early may fail and yet be done later, until TurnBack is done.
const (
	Early      Kind = iota + 1 // write the new entries, but for the match
	Turn                       // write the match, with merging and all that is missing; then delete the old entries
	TurnBack                   // the opposite
	Record                     // store the new record
	RecordBack                 // store the old one
	Hold                       // have another switch hold a branch
	Release                    // have it release one
	Route                      // put the routes of the plan on the switch
	Drain                      // wait for packets on their way to other switches
)

// An Action is what the caller has to do.
type Action struct {
	ID        int
	Kind      Kind
	Branch    Branch                 // of Hold and Release
	Receivers []bifurcation.Receiver // of Hold
	Back      bool                   // Hold as it was before the change
}

// A State of a Transition.
type State uint8

// The states; see the package's comment.
const (
	Preparing State = iota + 1
	Routing
	Turning
	Draining
	Trimming
	Undoing
	Ended
)

// A Transition is a change of a step under way.
type Transition struct {
	c       Change
	state   State
	turning bool         // Turn has begun
	record  int          // the action that stores the record; 0: none, or it is done
	during  Branches     // until packets have turned
	told    Branches     // of these, what the switches have to be told
	open    map[int]bool // actions
	last    int
	actions []Action
	err     error
	behind  bool
}

// Begin begins a change.
func Begin(c Change) *Transition {
	t := &Transition{c: c, state: Preparing, during: Branches{}, told: Branches{}, open: map[int]bool{}}
	for k, r := range c.Next {
		t.during[k] = union(r, c.Was[k], c.Receivers)
		if c.Again || !Equal(t.during[k], c.Was[k]) {
			t.told[k] = t.during[k]
		}
	}
	if c.Record {
		t.record = t.do(Action{Kind: Record})
	}
	switch {
	case t.atOnce():
		t.turn()
	case c.Fresh && c.Copies && len(t.told) > 0:
		t.do(Action{Kind: Early})
	}
	for k, r := range t.told {
		t.do(Action{Kind: Hold, Branch: k, Receivers: r})
	}
	t.next()
	return t
}

// atOnce says that packets can turn while all else is done: nothing has to be done first,
// or none come before the end.
func (t *Transition) atOnce() bool {
	return (len(t.told) == 0 || t.c.Unreached) && (t.c.Copies || !t.c.Fresh && !t.c.Merging)
}

// turn has packets turn, unless merging has to wait for the record: the switch must not know
// a later use of a slot than the agent's state.
func (t *Transition) turn() {
	if t.turning || t.err != nil || t.c.Merging && t.record != 0 {
		return
	}
	t.turning = true
	if t.c.Fresh || t.c.Merging || t.state == Turning {
		t.do(Action{Kind: Turn})
	}
}

func (t *Transition) do(a Action) int {
	t.last++
	a.ID = t.last
	t.open[a.ID] = true
	t.actions = append(t.actions, a)
	return a.ID
}

// Take returns what is to be done now.
func (t *Transition) Take() []Action {
	list := t.actions
	t.actions = nil
	return list
}

// Done says that an action was done, or failed.
func (t *Transition) Done(id int, err error) {
	delete(t.open, id)
	switch {
	case err == nil || t.state == Draining:
	case t.state == Trimming:
		t.behind = true
	case t.state == Undoing:
		t.behind = len(t.c.Was) > 0
	case t.err == nil:
		t.err = err
	}
	if id == t.record {
		if t.record = 0; t.state == Preparing && t.atOnce() {
			t.turn()
		}
	}
	t.next()
}

// next goes on to the states whose actions are all done.
func (t *Transition) next() {
	for len(t.open) == 0 && t.state != Ended {
		switch {
		case t.state == Trimming || t.state == Undoing:
			t.state = Ended
		case t.err != nil:
			t.undo()
		case t.state == Preparing && !t.c.Copies:
			t.state = Routing
			t.do(Action{Kind: Route})
		case t.state != Turning && t.state != Draining && !t.turning:
			t.state = Turning
			t.turn()
		case t.state != Draining && t.moved():
			t.state = Draining
			t.do(Action{Kind: Drain})
		default:
			t.trim()
		}
	}
}

// moved says that a branch loses a receiver which the step keeps. A change of the members themselves does not wait: who
// asked for it does, and the sender sends again what such a receiver has missed.
func (t *Transition) moved() bool {
	if t.c.Merging {
		return false
	}
	for k, was := range t.c.Was {
		for _, r := range was {
			same := func(x bifurcation.Receiver) bool { return Same(x, r) }
			if !slices.ContainsFunc(t.c.Next[k], same) && slices.ContainsFunc(t.c.Receivers, same) {
				return true
			}
		}
	}
	return false
}

// trim has released what packets no longer need.
func (t *Transition) trim() {
	t.state = Trimming
	for k := range t.c.Was {
		if _, ok := t.c.Next[k]; !ok {
			t.do(Action{Kind: Release, Branch: k})
		}
	}
	for k, r := range t.c.Next {
		if !Equal(r, t.during[k]) {
			t.do(Action{Kind: Hold, Branch: k, Receivers: r})
		}
	}
}

func (t *Transition) undo() {
	t.state = Undoing
	if t.c.Fresh || t.c.Merging {
		t.do(Action{Kind: TurnBack})
	}
	if t.c.Record {
		t.do(Action{Kind: RecordBack})
	}
	for k := range t.told {
		if r, ok := t.c.Was[k]; ok {
			t.do(Action{Kind: Hold, Branch: k, Receivers: r, Back: true})
		} else {
			t.do(Action{Kind: Release, Branch: k})
		}
	}
}

// State is the present one.
func (t *Transition) State() State { return t.state }

// During is what is held at other switches until packets have turned.
func (t *Transition) During() Branches { return t.during }

// Err is why packets have not turned; nil: they have.
func (t *Transition) Err() error { return t.err }

// Behind says that other switches may hold something else than the step's branches: those that
// are to be, or if packets have not turned, those that were.
func (t *Transition) Behind() bool { return t.behind }

// union is what a branch reaches while packets turn: its receivers, and its former ones
// that the step still has elsewhere. The order is the step's.
func union(next, was, all []bifurcation.Receiver) []bifurcation.Receiver {
	if len(was) == 0 || Equal(next, was) {
		return next
	}
	var out []bifurcation.Receiver
	for _, r := range all {
		same := func(x bifurcation.Receiver) bool { return Same(x, r) }
		if slices.ContainsFunc(next, same) || slices.ContainsFunc(was, same) {
			out = append(out, r)
		}
	}
	return out
}

// Equal says whether two lists are of the same receivers.
func Equal(a, b []bifurcation.Receiver) bool { return slices.EqualFunc(a, b, Same) }

// Same says whether two receivers are the same, with the same regions.
func Same(a, b bifurcation.Receiver) bool {
	return a.Addr == b.Addr && a.QPN == b.QPN && slices.Equal(a.Regions, b.Regions)
}
