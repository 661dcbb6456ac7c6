package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// An action is one possible next event.
type action struct {
	kind     kind
	member   byte
	over     byte   // 1: an answer overtakes the previous one
	outcomes uint16 // of the sent packets: three bits each
	anew     bool   // the switch loses its state, and is programmed again, directly before
}

type kind byte

const (
	send         kind = iota // the sender's next packet reaches the switch, and copies leave it; an outcome for each member
	loseSend                 // the packet does not reach the switch
	late                     // held data reaches a member
	answer                   // an answer reaches the switch; an outcome for the answer to the sender
	loseAnswer               //
	doubleAnswer             // the answer reaches the switch, and stays in flight
	lateMerged               // a held merged answer reaches the sender
	timeout                  // the sender's ACK timer expires
	earlyTimeout             // the same, although answers are in flight
	retry                    // the sender's RNR wait ends
	die                      // a member stops answering
	remove                   // the control plane removes a member
	lie                      // a false answer from a liar reaches the switch; outcomes say which
)

// The names of the kinds in scripts.
var kindNames = [...]string{"send", "lose-send", "late", "answer", "lose-answer", "double-answer", "late-merged",
	"timeout", "early-timeout", "retry", "die", "remove", "lie"}

// ofMember reports whether the action is about one member.
func (k kind) ofMember() bool { return k >= late && k <= doubleAnswer || k >= die && k <= lie }

// An outcome is what happens to a sent packet.
type outcome byte

const (
	arrives outcome = iota
	lost
	held    // until the next one has overtaken it, or nothing else moves
	doubled // arrives twice
	echoed  // arrives, and arrives again as if held
)

var outcomeNames = [...]string{"arrives", "lost", "held", "doubled", "echoed"}

func (f outcome) of(i int) uint16 { return uint16(f) << (3 * i) }

// String returns the action in the form of scripts.
func (a action) String() string {
	s := kindNames[a.kind]
	if a.kind.ofMember() {
		s += fmt.Sprintf(" %d", a.member+1)
	}
	if a.over > 0 {
		s += fmt.Sprintf(" overtakes=%d", a.over)
	}
	if a.anew {
		s += " after-restart"
	}
	if a.kind == lie {
		return s + fmt.Sprintf(" %s=%d", [...]string{"ack", "nak"}[a.outcomes%2], claims[a.outcomes/2])
	}
	for i := range maxMembers {
		if f := a.outcome(i); f != arrives && a.kind == send {
			s += fmt.Sprintf(" %d=%s", i+1, outcomeNames[f])
		} else if f != arrives {
			s += " merged=" + outcomeNames[f]
		}
	}
	return s
}

// parseAction is the inverse of String.
func parseAction(s string) (a action, err error) {
	words := strings.Fields(s)
	if len(words) == 0 {
		return a, errors.New("no action")
	}
	k := -1
	for i, name := range kindNames {
		if words[0] == name {
			k = i
		}
	}
	if k < 0 {
		return a, fmt.Errorf("%s: no such action", words[0])
	}
	a.kind = kind(k)
	for _, w := range words[1:] {
		key, value, isOption := strings.Cut(w, "=")
		var n int
		switch {
		case key == "after-restart":
			a.anew = true
		case !isOption:
			_, err = fmt.Sscan(key, &n)
			a.member = byte(n - 1)
		case key == "overtakes":
			_, err = fmt.Sscan(value, &a.over)
		case key == "ack" || key == "nak":
			c := 0
			_, err = fmt.Sscan(value, &c)
			if a.outcomes = uint16(2 * slices.Index(claims[:], c)); key == "nak" {
				a.outcomes++
			}
		default:
			i := 0
			if key != "merged" {
				_, err = fmt.Sscan(key, &n)
				i = n - 1
			}
			for f, name := range outcomeNames {
				if value == name {
					a.outcomes |= outcome(f).of(i)
				}
			}
		}
		if err != nil || a.member >= maxMembers || n < 0 || n > maxMembers {
			return a, fmt.Errorf("%s: cannot read %q", s, w)
		}
	}
	return a, nil
}

// actions appends everything that can happen in w. Some actions prove to be impossible when they
// are taken.
func (m *machine) actions(w *world, to []action) []action {
	m.sender.LoadState(w.sender, instant)
	f := &w.left
	if m.canSend() { // at once
		if f.losses > 0 {
			to = append(to, action{kind: loseSend})
		}
		return sends(w, to)
	}
	for i := range w.n {
		b := &w.members[i]
		at := action{member: byte(i)}
		to = m.answers(w, b, at, to)
		if f.lies > 0 && b.liar && !b.dead {
			to = lies(f, at, to)
		}
		if f.deaths > 0 && !b.dead {
			to = append(to, at.of(die))
		}
		if (f.removals > 0 || b.dead || b.liar) && b.current {
			to = append(to, at.of(remove))
		}
	}
	return append(to, m.timers(w)...)
}

// lies appends the possible answers of a liar, also as the first answer to a switch that has lost
// its state.
func lies(f *faults, at action, to []action) []action {
	for i := range 2 * len(claims) {
		at.outcomes = uint16(i)
		to = append(to, at.of(lie))
		if f.restarts > 0 {
			a := at.of(lie)
			a.anew = true
			to = append(to, a)
		}
	}
	return to
}

func (a action) of(k kind) action {
	a.kind = k
	return a
}

// sends appends a send for each combination of outcomes that the faults allow.
func sends(w *world, to []action) []action {
	var choose func(i int, a action, f faults)
	choose = func(i int, a action, f faults) {
		if i == w.n {
			to = append(to, a)
			return
		}
		choose(i+1, a, f)
		if !w.reaches(i) {
			return
		}
		for x := lost; x <= echoed; x++ {
			left, b := f, a
			if left.spend(x) {
				b.outcomes |= x.of(i)
				choose(i+1, b, left)
			}
		}
	}
	choose(0, action{kind: send}, w.left)
	return to
}

// answers appends the actions on a member's answers. A switch that loses its state does so directly
// before an answer: earlier, it would make no difference.
func (m *machine) answers(w *world, b *member, at action, to []action) []action {
	f := &w.left
	for i := range min(b.answers.n, 2) {
		at.over = i
		for x := arrives; x <= echoed; x++ {
			left := *f
			if i > 0 && !left.spend(held) { // overtaking is also a reordering
				break
			}
			if left.spend(x) {
				at.outcomes = x.of(0)
				to = append(to, at.of(answer))
				if f.restarts > 0 {
					a := at.of(answer)
					a.anew = true
					to = append(to, a)
				}
			}
		}
	}
	at.over = 0
	at.outcomes = 0
	at.over = 0
	if b.answers.n > 0 && f.losses > 0 {
		to = append(to, at.of(loseAnswer))
	}
	if b.answers.n > 0 && f.duplicates > 0 {
		to = append(to, at.of(doubleAnswer))
	}
	return to
}
