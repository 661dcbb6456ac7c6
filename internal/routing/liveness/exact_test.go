package liveness

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A lone is a session whose neighbor is the test. It is ticked when it asks for that.
type lone struct {
	*Session
	t    *testing.T
	now  time.Time
	next time.Time
	sent []Hello
}

// newLone is a session that has just come up, and has said so.
func newLone(t *testing.T, cfg Config) *lone {
	cfg.Discriminator = 7
	s, err := New(cfg, time.Unix(1000, 0))
	if err != nil {
		t.Fatal(err)
	}
	l := &lone{Session: s, t: t, now: time.Unix(1000, 0)}
	l.tick()
	l.hear(Hello{State: Init, Final: true})
	if l.State() != Up {
		t.Fatal(l.State())
	}
	l.hear(Hello{State: Up, Final: true}) // which ends its polling
	return l
}

func (l *lone) tick() []Hello {
	send, next := l.Tick(l.now)
	l.next = next
	l.sent = append(l.sent, send...)
	return send
}

// wait ticks until d has passed.
func (l *lone) wait(d time.Duration) {
	end := l.now.Add(d)
	for !l.next.After(end) {
		l.now = l.next
		l.tick()
	}
	l.now = end
}

// hear receives a hello of a neighbor that has the default intervals.
func (l *lone) hear(h Hello) {
	l.t.Helper()
	if h.DetectMult == 0 {
		h.DetectMult = 3
	}
	h.My, h.Your, h.DesiredMinTx, h.RequiredMinRx = 1, 7, DefaultInterval, DefaultInterval
	if err := l.Receive(l.now, h); err != nil {
		l.t.Fatal(err)
	}
	l.tick()
}

func (l *lone) detects(want time.Duration) {
	l.t.Helper()
	if got := l.DetectionTime(); got != want {
		l.t.Errorf("detects in %v, want %v", got, want)
	}
}

// TestLateHellos: a hello that is late by more than a quarter of the interval adds twice that
// to the detection time, and each that follows takes a part of 256 of it away.
func TestLateHellos(t *testing.T) {
	const ms = time.Millisecond
	l := newLone(t, Config{})
	l.detects(150 * ms)
	l.wait(62500 * time.Microsecond)
	l.hear(Hello{State: Up})
	l.detects(150 * ms)
	l.wait(70 * ms)
	l.hear(Hello{State: Up})
	l.detects(165 * ms)
	l.wait(50 * ms)
	l.hear(Hello{State: Up})
	l.detects(150*ms + 2*(7500*time.Microsecond-29296))

	// However late a hello is, not more than the neighbor's detection time counts.
	l = newLone(t, Config{})
	l.hear(Hello{State: Up, DetectMult: 9})
	l.detects(450 * ms)
	l.wait(300 * ms)
	l.hear(Hello{State: Up})
	l.detects(450 * ms)
	l.hear(Hello{State: Up})
	l.detects(150*ms + 2*(150*ms-150*ms/256))

	// A neighbor with other intervals starts again.
	if err := l.Receive(l.now, Hello{State: Up, DetectMult: 3, My: 1, Your: 7, DesiredMinTx: 80 * ms, RequiredMinRx: 50 * ms}); err != nil {
		t.Fatal(err)
	}
	l.detects(240 * ms)
}

// TestDetects: a silence of the detection time takes the session down, and nothing shorter.
// Tick asks to be called then, also if no hello is to be sent sooner.
func TestDetects(t *testing.T) {
	l := newLone(t, Config{DesiredMinTx: time.Second})
	heard := l.now
	l.tick()
	if !l.next.Equal(heard.Add(150 * time.Millisecond)) {
		t.Errorf("asks for a call %v after the last hello", l.next.Sub(heard))
	}
	l.wait(150*time.Millisecond - 1)
	if l.Expired(l.now) || l.State() != Up {
		t.Error("down before the time")
	}
	l.wait(1)
	if l.State() != Down || l.diag != DiagExpired || l.Remote() != 0 || l.DetectionTime() != 0 {
		t.Errorf("%v, %v, the neighbor is %d, detects in %v", l.State(), l.diag, l.Remote(), l.DetectionTime())
	}
}

// TestLongIntervals: what does not fit into the field is the most that does.
func TestLongIntervals(t *testing.T) {
	for _, c := range []struct{ is, sent time.Duration }{
		{-1, 0}, {1<<32*time.Microsecond - 1, (1<<32 - 1) * time.Microsecond}, {1 << 32 * time.Microsecond, (1<<32 - 1) * time.Microsecond},
	} {
		h, err := Parse(Hello{DetectMult: 1, My: 1, DesiredMinTx: c.is, RequiredMinRx: c.is}.Append(nil))
		if err != nil || h.DesiredMinTx != c.sent || h.RequiredMinRx != c.sent {
			t.Errorf("%v becomes %+v, %v", c.is, h, err)
		}
	}
}

// TestLateTicks: what Tick is late does not count as silence, whether a hello or a tick is
// next, and after a delay of half an interval hellos have an interval more to be read.
func TestLateTicks(t *testing.T) {
	for _, c := range []struct {
		late, want time.Duration
	}{
		{0, 150 * time.Millisecond}, {25*time.Millisecond - 1, 150 * time.Millisecond},
		{25 * time.Millisecond, 200 * time.Millisecond}, {time.Hour, 200 * time.Millisecond},
	} {
		l := newLone(t, Config{})
		heard := l.now
		l.wait(40 * time.Millisecond)
		l.tick()
		due := l.next
		if l.Expired(due.Add(c.late)) {
			t.Errorf("late by %v: taken for silence", c.late)
		}
		l.detects(c.want)
		l.now = due.Add(c.late)
		l.tick()
		silent := due.Sub(heard) // before
		if end := l.now.Add(c.want - silent); l.Expired(end.Add(-1)) {
			t.Errorf("late by %v: down too soon", c.late)
		}
		l.now = due.Add(c.late)
		l.hear(Hello{State: Up})
		l.detects(150 * time.Millisecond)
	}
}

// TestReceiveAfterDelay: hellos that waited while this end was held up are not late.
func TestReceiveAfterDelay(t *testing.T) {
	l := newLone(t, Config{})
	l.now = l.next.Add(time.Second)
	l.hear(Hello{State: Up})
	l.detects(150 * time.Millisecond)
	if l.State() != Up {
		t.Error(l.State())
	}
}

// TestTransitions is the state machine of RFC 5880 §6.8.6.
func TestTransitions(t *testing.T) {
	for _, c := range []struct {
		is, hears, then State
		diag            Diag // if it changes
		sends           bool // at once
	}{
		{AdminDown, AdminDown, AdminDown, 0, false}, {AdminDown, Down, AdminDown, 0, false},
		{AdminDown, Init, AdminDown, 0, false}, {AdminDown, Up, AdminDown, 0, false},
		{Down, AdminDown, Down, 0, false}, {Down, Down, Init, DiagAdminDown, true},
		{Down, Init, Up, DiagNone, true}, {Down, Up, Down, 0, true},
		{Init, AdminDown, Down, DiagPeerDown, true}, {Init, Down, Init, 0, false},
		{Init, Init, Up, DiagNone, true}, {Init, Up, Up, DiagNone, true},
		{Up, AdminDown, Down, DiagPeerDown, true}, {Up, Down, Down, DiagPeerDown, true},
		{Up, Init, Up, 0, false}, {Up, Up, Up, 0, false},
	} {
		now := time.Unix(1000, 0)
		s, err := New(Config{Discriminator: 7, Rand: rand.New(rand.NewPCG(1, 1))}, now)
		if err != nil {
			t.Fatal(err)
		}
		s.Tick(now)
		hear := func(state State) {
			if err := s.Receive(now, Hello{State: state, DetectMult: 3, My: 1, Your: 7, DesiredMinTx: DefaultInterval, RequiredMinRx: DefaultInterval}); err != nil {
				t.Fatal(err)
			}
		}
		switch c.is {
		case AdminDown:
			if s.SetAdminDown(true); s.diag != DiagAdminDown {
				t.Errorf("to AdminDown: %v", s.diag)
			}
		case Down: // as after AdminDown, except for the reason
			s.diag = DiagAdminDown
		case Init:
			hear(Down)
		case Up:
			hear(Init)
		}
		if s.State() != c.is {
			t.Fatalf("%v, want %v", s.State(), c.is)
		}
		s.Tick(now)
		want := s.diag
		if c.then != c.is {
			want = c.diag
		}
		if hear(c.hears); s.State() != c.then || s.diag != want {
			t.Errorf("%v hears %v: %v, %v; want %v, %v", c.is, c.hears, s.State(), s.diag, c.then, want)
		}
		if c.then == Up && c.is != Up && !s.Hello().Poll {
			t.Error("comes up, and does not poll")
		}
		if send, _ := s.Tick(now); len(send) > 0 != c.sends {
			t.Errorf("%v hears %v: sends %+v", c.is, c.hears, send)
		}
	}
}

// TestAdminDownEnds: the neighbor of before is forgotten.
func TestAdminDownEnds(t *testing.T) {
	l := newLone(t, Config{})
	if l.SetAdminDown(false); l.State() != Up || l.Remote() == 0 {
		t.Errorf("%v, the neighbor is %d", l.State(), l.Remote())
	}
	l.SetAdminDown(true)
	if l.SetAdminDown(false); l.State() != Down || l.diag != DiagNone || l.Remote() != 0 {
		t.Errorf("%v, %v, the neighbor is %d", l.State(), l.diag, l.Remote())
	}
}

// TestPollIsAnswered: at once, by a Final, and this end's own question is not in the same hello.
func TestPollIsAnswered(t *testing.T) {
	l := newLone(t, Config{})
	l.sent = nil
	l.hear(Hello{State: Up, Poll: true})
	if len(l.sent) != 1 || !l.sent[0].Final || l.sent[0].Poll {
		t.Errorf("answers %+v", l.sent)
	}
	l.hear(Hello{State: Down})
	l.hear(Hello{State: Down})
	l.sent = nil
	l.hear(Hello{State: Up, Poll: true}) // it comes up, and asks
	if len(l.sent) != 2 || !l.sent[0].Final || l.sent[0].Poll || l.sent[1].Final || !l.sent[1].Poll {
		t.Errorf("asks and answers %+v", l.sent)
	}
	l.hear(Hello{State: Up}) // no answer: it asks again
	l.wait(DefaultInterval)
	if last := l.sent[len(l.sent)-1]; !last.Poll {
		t.Errorf("%+v", last)
	}
	l.hear(Hello{State: Up, Final: true})
	if l.Hello().Poll {
		t.Error("polls after the answer")
	}
}

// TestNothingToAsk: an end whose interval does not change when it comes up asks for no answer.
func TestNothingToAsk(t *testing.T) {
	l := newLone(t, Config{DesiredMinTx: time.Second})
	for _, h := range l.sent {
		if h.Poll || h.DesiredMinTx != time.Second {
			t.Errorf("%+v", h)
		}
	}
	if len(l.sent) < 2 {
		t.Errorf("%d hellos", len(l.sent))
	}
}

// TestUnwanted: a neighbor that wants no hellos gets none except answers; hellos resume, in time,
// when it wants them.
func TestUnwanted(t *testing.T) {
	l := newLone(t, Config{})
	unwanted := Hello{State: Up, DetectMult: 3, My: 1, Your: 7, DesiredMinTx: DefaultInterval}
	l.sent = nil
	for range 40 {
		if err := l.Receive(l.now, unwanted); err != nil {
			t.Fatal(err)
		}
		l.tick()
		l.wait(DefaultInterval)
	}
	if len(l.sent) != 0 || l.State() != Up {
		t.Errorf("%d hellos, %v", len(l.sent), l.State())
	}
	begin := l.now
	l.hear(Hello{State: Up})
	l.wait(DefaultInterval)
	if len(l.sent) == 0 {
		t.Errorf("none since %v", begin)
	}
	l.sent = nil
	l.SendNow()
	if sent := l.tick(); len(sent) != 1 {
		t.Errorf("%+v", sent)
	}
}

// TestHelloAgain: encoding and parsing return the same hello, for any diagnostic.
func TestHelloAgain(t *testing.T) {
	for diag := range Diag(32) {
		in := Hello{Diag: diag, State: Up, Poll: diag%2 == 0, Final: diag%2 == 1, DetectMult: 3, My: 7, Your: 8, DesiredMinTx: time.Second, RequiredMinRx: time.Millisecond}
		out, err := Parse(in.Append(nil))
		if err != nil || out != in {
			t.Errorf("%+v became %+v, %v", in, out, err)
		}
	}
}
