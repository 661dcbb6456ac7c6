package liveness

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A wire is two sessions and the link between them, in simulated time.
type wire struct {
	now    time.Time
	end    [2]*Session
	next   [2]time.Time
	cut    [2]bool // cut[i]: what i sends is lost
	delay  time.Duration
	flying []flight
	was    [2]State
	events [2][]event
	sent   [2][]time.Time // periodic hellos while Up, as end 0 and 1 sent them
	lose   func() bool
}

// An event is a change of state.
type event struct {
	at   time.Time
	to   State
	diag Diag
}

type flight struct {
	at   time.Time
	to   int
	data []byte
}

func newWire(t rapid.TB, a, b Config) *wire {
	w := &wire{now: time.Unix(1000, 0), delay: 100 * time.Microsecond, lose: func() bool { return false }}
	for i, cfg := range []Config{a, b} {
		cfg.Discriminator = uint32(7 + i)
		s, err := New(cfg, w.now)
		if err != nil {
			t.Fatal(err)
		}
		w.end[i], w.next[i], w.was[i] = s, w.now, s.State()
	}
	return w
}

// note notes whether an end's state has changed.
func (w *wire) note(i int) {
	if s := w.end[i]; s.State() != w.was[i] {
		w.events[i] = append(w.events[i], event{w.now, s.State(), s.diag})
		w.was[i] = s.State()
	}
}

func (w *wire) tick(t rapid.TB, i int) {
	send, next := w.end[i].Tick(w.now)
	w.note(i)
	w.next[i] = next
	if !next.After(w.now) {
		t.Fatalf("end %d wants to be called again at once, for ever", i)
	}
	for _, h := range send {
		if h.State == Up && !h.Poll && !h.Final {
			w.sent[i] = append(w.sent[i], w.now)
		}
		if !w.cut[i] && !w.lose() {
			w.flying = append(w.flying, flight{w.now.Add(w.delay), 1 - i, h.Append(nil)})
		}
	}
}

func (w *wire) run(t rapid.TB, d time.Duration) {
	for end := w.now.Add(d); ; {
		at := minTime(w.next[0], w.next[1])
		if len(w.flying) > 0 {
			at = minTime(at, w.flying[0].at)
		}
		if at.After(end) {
			w.now = end
			return
		}
		if at.After(w.now) {
			w.now = at
		}
		for len(w.flying) > 0 && !w.flying[0].at.After(w.now) {
			f := w.flying[0]
			w.flying = w.flying[1:]
			h, err := Parse(f.data)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.end[f.to].Receive(w.now, h); err != nil && !errors.Is(err, ErrNotOurs) {
				t.Fatal(err)
			}
			w.note(f.to)
			w.tick(t, f.to)
		}
		for i := range w.end {
			if !w.next[i].After(w.now) {
				w.tick(t, i)
			}
		}
	}
}

func (w *wire) up() bool { return w.end[0].State() == Up && w.end[1].State() == Up }

func TestComesUp(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	w.run(t, 3*time.Second)
	if !w.up() {
		t.Fatalf("states %v and %v", w.end[0].State(), w.end[1].State())
	}
	for i, s := range w.end {
		if got := s.DetectionTime(); got != 150*time.Millisecond {
			t.Errorf("end %d detects in %v, want 150ms", i, got)
		}
		if s.polling {
			t.Errorf("end %d is still polling", i)
		}
	}
	if w.end[0].Remote() != 8 || w.end[1].Remote() != 7 {
		t.Error("discriminators", w.end[0].Remote(), w.end[1].Remote())
	}
}

// When the link is cut at any time, in one or both directions, with any jitter, both ends are down
// in under 200 ms, and up again after the repair.
func TestCutIsNoticed(t *testing.T) {
	for _, cut := range [][2]bool{{true, true}, {true, false}, {false, true}} {
		var worst time.Duration
		for seed := range uint64(200) {
			w := newWire(t, Config{Rand: rand.New(rand.NewPCG(seed, 1))}, Config{Rand: rand.New(rand.NewPCG(seed, 2))})
			w.run(t, 3*time.Second+time.Duration(seed)*time.Millisecond)
			if !w.up() {
				t.Fatal("not up")
			}
			at := w.now
			w.cut, w.events = cut, [2][]event{}
			w.run(t, 10*time.Second)
			for i := range w.end {
				if len(w.events[i]) == 0 || w.events[i][0].to != Down {
					t.Fatalf("cut %v: end %d: %+v", cut, i, w.events[i])
				}
				worst = max(worst, w.events[i][0].at.Sub(at))
				for _, e := range w.events[i] {
					if e.to == Up {
						t.Fatalf("cut %v: end %d came up", cut, i)
					}
				}
				wantDiag := DiagExpired
				if !cut[1-i] {
					wantDiag = DiagPeerDown
				}
				if got := w.events[i][0].diag; got != wantDiag {
					t.Fatalf("cut %v: end %d: %v, want %v", cut, i, got, wantDiag)
				}
			}
			w.cut = [2]bool{}
			w.run(t, 3*time.Second)
			if !w.up() {
				t.Fatalf("cut %v: not up after the repair", cut)
			}
		}
		if worst >= 200*time.Millisecond {
			t.Errorf("cut %v noticed after %v, want under 200ms", cut, worst)
		}
		t.Logf("cut %v: noticed within %v", cut, worst)
	}
}

func TestIntervalsAreNegotiated(t *testing.T) {
	w := newWire(t, Config{DesiredMinTx: 10 * time.Millisecond, DetectMult: 1}, Config{RequiredMinRx: 80 * time.Millisecond, DesiredMinTx: 30 * time.Millisecond, DetectMult: 5})
	w.run(t, 20*time.Second)
	if !w.up() || len(w.events[0]) != 2 {
		t.Fatalf("events %+v", w.events[0])
	}
	check := func(i int, interval, least time.Duration) {
		sent := w.sent[i][5:]
		for k := 1; k < len(sent); k++ {
			if gap := sent[k].Sub(sent[k-1]); gap < interval*3/4 || gap > interval-least {
				t.Fatalf("end %d: hello %v after the last, want %v less up to a quarter and at least %v", i, gap, interval, least)
			}
		}
	}
	check(0, 80*time.Millisecond, 8*time.Millisecond)
	check(1, 50*time.Millisecond, 0)
	if a, b := w.end[0].DetectionTime(), w.end[1].DetectionTime(); a != 250*time.Millisecond || b != 80*time.Millisecond {
		t.Errorf("detection times %v, %v", a, b)
	}
}

func TestAdminDown(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	w.run(t, 3*time.Second)
	w.end[0].SetAdminDown(true)
	w.tick(t, 0)
	w.run(t, time.Millisecond)
	if w.end[0].State() != AdminDown || w.end[1].State() != Down || w.end[1].diag != DiagPeerDown {
		t.Fatal(w.end[0].State(), w.end[1].State(), w.end[1].diag)
	}
	w.run(t, 5*time.Second)
	if w.end[1].State() != Down {
		t.Fatal(w.end[1].State())
	}
	w.end[0].SetAdminDown(false)
	w.run(t, 5*time.Second)
	if !w.up() {
		t.Fatal("not up again")
	}
}

// A neighbor that restarts knows nothing of the session; it must come back.
func TestNeighborRestarts(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	w.run(t, 3*time.Second)
	s, err := New(Config{Discriminator: 99}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	w.end[1], w.next[1] = s, w.now
	w.run(t, 4*time.Second)
	if !w.up() || w.end[0].Remote() != 99 {
		t.Fatal(w.end[0].State(), w.end[1].State(), w.end[0].Remote())
	}
}

// Whatever is cut and lost and however long, the ends agree soon after the link
// is repaired, and an end that hears nothing is never Up for long.
func TestRandomFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mult := rapid.Uint8Range(1, 5)
		w := newWire(t, Config{DetectMult: mult.Draw(t, "mult 0")}, Config{DetectMult: mult.Draw(t, "mult 1")})
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		loss := 0.0
		w.lose = func() bool { return rnd.Float64() < loss }
		for range rapid.IntRange(1, 10).Draw(t, "faults") {
			w.cut = [2]bool{rapid.Bool().Draw(t, "cut 0"), rapid.Bool().Draw(t, "cut 1")}
			loss = rapid.Float64Range(0, 0.9).Draw(t, "loss")
			w.run(t, time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms"))*time.Millisecond)
		}
		w.cut, loss = [2]bool{true, false}, 0
		w.run(t, 6*time.Second) // a detection time may still be slow: 5 × 1 s
		if w.end[0].State() == Up || w.end[1].State() == Up {
			t.Fatalf("one-way link: %v, %v", w.end[0].State(), w.end[1].State())
		}
		w.cut = [2]bool{}
		w.run(t, 10*time.Second)
		if !w.up() {
			t.Fatalf("healed link: %v, %v", w.end[0].State(), w.end[1].State())
		}
	})
}

func TestReceiveRefuses(t *testing.T) {
	s, err := New(Config{Discriminator: 7}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		h    Hello
		want error
	}{
		{Hello{State: Down, DetectMult: 3, My: 8, Your: 9}, ErrNotOurs},
		{Hello{State: Down, DetectMult: 3, My: 7}, ErrNotOurs}, // a looped link
		{Hello{State: Up, DetectMult: 3, My: 8}, ErrField},
		{Hello{State: Down, My: 8}, ErrField},
		{Hello{State: Down, DetectMult: 3}, ErrField},
	} {
		if err := s.Receive(time.Unix(0, 0), c.h); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.h, err, c.want)
		}
	}
	if s.State() != Down || s.Remote() != 0 {
		t.Error("a refused hello had an effect")
	}
	for _, cfg := range []Config{{}, {Discriminator: 1, DesiredMinTx: time.Microsecond}, {Discriminator: 1, SlowTx: time.Hour}} {
		if _, err := New(cfg, time.Unix(0, 0)); err == nil {
			t.Errorf("%+v passed", cfg)
		}
	}
	for _, cfg := range []Config{{Discriminator: 1, DesiredMinTx: time.Millisecond}, {Discriminator: 1, SlowTx: time.Minute}} {
		if _, err := New(cfg, time.Unix(0, 0)); err != nil {
			t.Error(err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := Hello{State: Up, DetectMult: 3, My: 1, Your: 2, DesiredMinTx: 50 * time.Millisecond, RequiredMinRx: time.Second}.Append(nil)
	want := []byte{0x20, 0xc0, 3, 24, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0xc3, 0x50, 0, 0x0f, 0x42, 0x40, 0, 0, 0, 0}
	if !bytes.Equal(good, want) {
		t.Fatalf("encoded %x, want %x", good, want)
	}
	if _, err := Parse(append(bytes.Clone(good), 0, 0)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at    int
		value byte
		want  error
	}{
		{0, 0x40, ErrVersion}, {1, 0xc4, ErrUnknown}, {1, 0xc1, ErrUnknown}, {1, 0xf0, ErrField},
		{2, 0, ErrField}, {3, 23, ErrField}, {3, 25, ErrField}, {7, 0, ErrField}, {11, 0, ErrField},
	} {
		b := bytes.Clone(good)
		b[c.at] = c.value
		if _, err := Parse(b); !errors.Is(err, c.want) {
			t.Errorf("byte %d = %#x: %v, want %v", c.at, c.value, err, c.want)
		}
	}
	if _, err := Parse(good[:23]); !errors.Is(err, ErrShort) {
		t.Error(err)
	}
}

// For any bytes: no panic, what Parse accepts survives encoding and parsing, and no hello makes a
// session ask forever to be called at once.
func FuzzParse(f *testing.F) {
	f.Add(Hello{State: Down, DetectMult: 3, My: 1}.Append(nil))
	f.Add(Hello{State: Up, Poll: true, DetectMult: 3, My: 1, Your: 7, DesiredMinTx: time.Second}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Parse(b)
		if err != nil {
			return
		}
		if again, err := Parse(h.Append(nil)); err != nil || again != h {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
		now := time.Unix(0, 0)
		s, err := New(Config{Discriminator: 7}, now)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			_ = s.Receive(now, h) // refusal is fine
			_, next := s.Tick(now)
			if !next.After(now) {
				t.Fatalf("%+v: next call at %v, now is %v", h, next, now)
			}
			now = next
		}
	})
}

// TestBusy: an end that announces that it is busy may be silent three times as long, even if it has
// been late, and no longer once it announces that it is not.
func TestBusy(t *testing.T) {
	for _, c := range []struct {
		busy, late bool
		want       time.Duration
	}{{false, false, 150 * time.Millisecond}, {true, false, 450 * time.Millisecond}, {true, true, 450 * time.Millisecond}, {false, true, 350 * time.Millisecond}} {
		w := newWire(t, Config{}, Config{})
		w.run(t, 3*time.Second)
		s := w.end[0]
		w.end[1].Busy(true)
		if h := w.end[1].Hello(); h.DetectMult != 9 {
			t.Errorf("a busy end's multiplier is %d", h.DetectMult)
		}
		w.end[1].Busy(c.busy)
		now := w.now
		for i := range 3 {
			s.Tick(now)
			if err := s.Receive(now, w.end[1].Hello()); err != nil {
				t.Fatal(err)
			}
			now = now.Add(DefaultInterval)
			if c.late && i == 1 {
				for range 3 { // 125 ms later than a quarter after the interval
					s.Tick(now)
					now = now.Add(DefaultInterval / 2)
				}
				now = now.Add(DefaultInterval)
			}
		}
		if got := s.DetectionTime(); got != c.want && !c.late || got > 450*time.Millisecond || c.late && got <= 150*time.Millisecond {
			t.Errorf("busy %v, late %v: %v", c.busy, c.late, got)
		}
	}
	w := newWire(t, Config{DetectMult: 100}, Config{})
	w.end[0].Busy(true)
	if h := w.end[0].Hello(); h.DetectMult != 255 {
		t.Errorf("multiplier %d", h.DetectMult)
	}
}

// TestHeldUp: an end that is not scheduled for up to seconds, at any time and as often as not,
// never takes a link down whose hellos keep coming. A link that is cut is down within three
// times its detection time, and an interval, of that end's own time.
func TestHeldUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWire(t, Config{}, Config{})
		w.run(t, 3*time.Second)
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		often := rapid.Float64Range(0, 0.5).Draw(t, "often")
		s := w.end[0]
		due, hello := w.next[0], w.now
		var waiting int
		var own time.Duration // since the cut
		cut := w.now.Add(time.Duration(rapid.IntRange(1, 10_000).Draw(t, "cut")) * time.Millisecond)
		for now := w.now; ; {
			late := time.Duration(0)
			if rnd.Float64() < often {
				late = time.Duration(rnd.Int64N(int64(3 * time.Second)))
			}
			before := now
			now = due.Add(late)
			for ; hello.Before(now) && hello.Before(cut); hello = hello.Add(DefaultInterval) {
				waiting++
			}
			read := func() {
				for ; waiting > 0; waiting-- {
					h := Hello{State: Up, DetectMult: 3, My: 8, Your: 7, DesiredMinTx: DefaultInterval, RequiredMinRx: DefaultInterval}
					if err := s.Receive(now, h); err != nil {
						t.Fatal(err)
					}
				}
			}
			first := rnd.IntN(2) == 0
			if first {
				read()
			}
			_, next := s.Tick(now)
			if !first {
				read()
				_, next = s.Tick(now)
			}
			due = next
			switch {
			case now.Before(cut) && s.State() != Up:
				t.Fatalf("down although hellos come: %v", s.diag)
			case s.State() != Up:
				return
			case !before.Before(cut):
				own += now.Sub(before) - late
			}
			if most := 3*3*DefaultInterval + 3*DefaultInterval; own > most {
				t.Fatalf("a link is up %v after its end", own)
			}
		}
	})
}
