package udplink

import (
	"testing"
	"time"
)

// spin is one wait, with polls that were asked for or not, until there is a packet, in which each poll takes so long, and a turn of other goroutines before it. It returns the number of polls.
func spin(s *spinner, now *time.Time, asked bool, poll, turn, packet time.Duration) (polls int) {
	begin := *now
	for s.start(begin); s.polls(asked); {
		polls++
		*now = now.Add(turn)
		s.yielded(*now)
		*now = now.Add(poll)
		s.polled(*now, asked)
		if now.Sub(begin) >= packet {
			break
		}
	}
	if at := begin.Add(packet); now.Before(at) {
		*now = at
	}
	s.end(*now)
	return polls
}

func TestSpinner(t *testing.T) {
	const us = time.Microsecond
	now := time.Unix(1000, 0)
	s := &spinner{limit: 100 * us}
	for i, w := range []struct {
		what               string
		pause              time.Duration
		poll, turn, packet time.Duration
		polls              int
	}{
		{"the first wait blocks", 0, us, 0, 50 * us, 0},
		{"it was short: the next polls until a packet comes", 0, us, 0, 30 * us, 30},
		{"one that takes too long polls no longer than the limit", 0, us, 0, 500 * us, 100},
		{"so the next blocks", 0, us, 0, 20 * us, 0},
		{"turns of goroutines here are no sign of others", 0, us, 30 * us, 90 * us, 3},
		{"a poll that was held up is the last", 0, 21 * us, 0, 90 * us, 1},
		{"and there are none for a while", 0, us, 0, 20 * us, 0},
		{"nor later, as long as that lasts", 200 * us, us, 0, 20 * us, 0},
		{"until it has passed", 200 * us, us, 0, 20 * us, 20},
		{"as long as a poll may take", 0, 20 * us, 0, 40 * us, 2},
	} {
		now = now.Add(w.pause)
		if got := spin(s, &now, false, w.poll, w.turn, w.packet); got != w.polls {
			t.Errorf("%d, %s: %d polls, want %d", i, w.what, got, w.polls)
		}
	}
	off := &spinner{limit: -1}
	spin(off, &now, false, us, 0, us)
	if got := spin(off, &now, false, us, 0, us); got != 0 {
		t.Errorf("%d polls, although polling is off", got)
	}
	asked := &spinner{limit: -1}
	for i, w := range []struct {
		what               string
		poll, turn, packet time.Duration
		polls              int
	}{
		{"the first wait polls, too", us, us, 30 * us, 15},
		{"for longer than the limit", 100 * us, 0, 5000 * us, 50},
		{"one that lets others run may take until they poll", 1000 * us, 0, 2000 * us, 2},
		{"but not as long as one that works", 1001 * us, 0, 2000 * us, 1},
		{"and there are none for a while", us, 0, 20 * us, 0},
	} {
		if got := spin(asked, &now, true, w.poll, w.turn, w.packet); got != w.polls {
			t.Errorf("asked for, %d, %s: %d polls, want %d", i, w.what, got, w.polls)
		}
	}
}
