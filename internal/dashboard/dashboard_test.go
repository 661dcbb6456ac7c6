package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// get asks the dashboard as the page does.
func get[T any](t testing.TB, d *Dashboard, path string) (v T) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.AddCookie(&http.Cookie{Name: "mcrdma-dashboard-example.com", Value: "secret"})
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return v
}

type drawn struct{ SVG string }

// A stream is an open page's connection.
type stream struct {
	mu      sync.Mutex
	header  http.Header
	notices []notice
	at      []time.Time
}

func (s *stream) Header() http.Header              { return s.header }
func (s *stream) WriteHeader(int)                  {}
func (s *stream) Flush()                           {}
func (s *stream) SetWriteDeadline(time.Time) error { return nil }
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n notice
	err := json.Unmarshal([]byte(strings.TrimPrefix(string(b), "data: ")), &n)
	s.notices, s.at = append(s.notices, n), append(s.at, time.Now())
	return len(b), err
}

// open opens a page, which stays open until the test ends.
func open(t *testing.T, d *Dashboard) *stream {
	s := &stream{header: http.Header{}}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/live?key=secret", nil)
	done := make(chan struct{})
	go func() { defer close(done); d.Handler().ServeHTTP(s, r) }()
	t.Cleanup(func() { <-done })
	return s
}

// TestCutCable: the dashboard notifies an open page within a look that an agent reports a link as down,
// and what the page then fetches shows it. With 150 ms for the agent, that is less than a second.
func TestCutCable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fakes := rack(3)
		d := start(t, fakes)
		time.Sleep(Interval * 3 / 5) // notices without a change come between the looks
		page := open(t, d)
		for phase := range 10 { // of the looks
			time.Sleep(3*time.Second + time.Duration(phase)*73*time.Millisecond)
			page.mu.Lock()
			before, seen := page.notices[len(page.notices)-1].Versions, len(page.notices)
			page.mu.Unlock()
			if phase%2 == 0 {
				cut(fakes["torA:9560"])
			} else {
				fakes["torA:9560"].do(func() { fakes["torA:9560"].status.Ports[2].State = "up" })
			}
			done := time.Now()
			time.Sleep(Interval + noticeGap + time.Millisecond)
			page.mu.Lock()
			told := time.Duration(-1)
			for i := seen; i < len(page.notices) && told < 0; i++ {
				if page.notices[i].Versions.Status != before.Status && page.notices[i].Versions.Events != before.Events {
					told = page.at[i].Sub(done)
				}
			}
			page.mu.Unlock()
			if told < 0 || told > Interval+noticeGap {
				t.Errorf("phase %d: the page is told after %v", phase, told)
			}
			svg := get[drawn](t, d, "/api/fabric").SVG
			if down := phase%2 == 0; strings.Contains(svg, "1 of 2 up") != down || strings.Contains(svg, "2 links") == down {
				t.Errorf("phase %d: %s", phase, svg)
			}
		}
		s := get[suspicionsView](t, d, "/api/suspicions")
		e := get[[]Event](t, d, "/api/events")
		if len(s.List) != 0 || len(e) != 10 || e[0].Text != "port 4 to spine: down, was up (no hello for 150ms)" || !e[0].Bad || e[9].Bad {
			t.Errorf("%+v, %+v", s, e)
		}
	})
}

// TestDeadAgent: the part of an agent that answers no more turns gray, with the time of its
// last answer, whatever that said: at once if it refuses, and after Stale if it hangs.
func TestDeadAgent(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("hangs=%v", hangs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fakes := rack(3)
				d := start(t, fakes)
				time.Sleep(3 * time.Second)
				gray := func() (list []string) {
					for _, a := range get[[]agentView](t, d, "/api/status") {
						if a.Gray {
							list = append(list, a.Switch)
						}
						if now := time.Now(); a.At == nil || a.Gray != (a.Error != "" || now.Sub(*a.At) > d.options.Stale) {
							t.Errorf("%+v at %v", a, now)
						}
					}
					return list
				}
				if got := gray(); len(got) != 0 || strings.Contains(get[drawn](t, d, "/api/fabric").SVG, "class=\"switch gray\"") {
					t.Fatalf("%v are gray", got)
				}
				torA := fakes["torA:9560"]
				torA.do(func() {
					if torA.hangs = hangs; !hangs {
						torA.err = errDead
					}
				})
				if !hangs {
					time.Sleep(Interval + time.Millisecond)
				} else {
					time.Sleep(d.options.Stale + 2*Interval)
				}
				if got := gray(); len(got) != 1 || got[0] != "torA" {
					t.Errorf("%v are gray", got)
				}
				svg := get[drawn](t, d, "/api/fabric").SVG
				if strings.Count(svg, "class=\"switch gray\"") != 1 || !strings.Contains(svg, "2 links") { // as the spine still sees them
					t.Errorf("%s", svg)
				}
				for _, g := range get[groupsView](t, d, "/api/groups").Rows {
					if !g.Gray || g.Measured == nil || hangs && time.Since(*g.Measured) < d.options.Stale {
						t.Errorf("%+v", g)
					}
				}
				v := get[oneView](t, d, "/api/group?name=10.1.0.1/1")
				if !hangs && v.Error == "" {
					t.Errorf("the tree of a silent agent: %+v", v)
				}
				torA.do(func() { torA.hangs, torA.err = false, nil })
				if hangs {
					return // until its caller gives up, which fakes never do
				}
				time.Sleep(Interval)
				if got := gray(); len(got) != 0 {
					t.Errorf("%v are gray after it has come back", got)
				}
				e := get[[]Event](t, d, "/api/events")
				if len(e) != 2 || !strings.Contains(e[0].Text, "does not answer: agent cannot") || e[1].Text != "the agent answers again" {
					t.Errorf("%+v", e)
				}
			})
		})
	}
}

// TestEnds: a link is as the worse of those ends has it of which something is known now.
func TestEnds(t *testing.T) {
	up, down, old, unwatched := &ends{all: 2, up: 2, watching: 2}, &ends{all: 2, up: 1, watching: 2}, &ends{gray: true, all: 2, up: 2, watching: 2}, &ends{all: 1}
	for i, c := range []struct {
		one, other *ends
		label      string
		bad, gray  bool
	}{
		{up, up, "2 links", false, false},
		{up, nil, "2 links", false, false},
		{up, down, "1 of 2 up", true, false},
		{down, up, "1 of 2 up", true, false},
		{up, old, "2 links", false, false},
		{old, up, "2 links", false, false},
		{old, down, "1 of 2 up", true, false},
		{old, old, "not known now", false, true},
		{old, nil, "not known now", false, true},
		{unwatched, nil, "not watched", false, true},
	} {
		if l := linkOf([2]string{"a", "b"}, c.one, c.other); l.Label != c.label || l.Bad != c.bad || l.Gray != c.gray {
			t.Errorf("%d: %+v, want %q, %v, %v", i, l, c.label, c.bad, c.gray)
		}
	}
}

// TestLag: how far a receiver is behind in time is how long ago the first was past it, also
// where PSNs begin anew; of what was before the looks no more is said than is known.
func TestLag(t *testing.T) {
	var x track
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	behind := func(ms int, psn rocev2.PSN, want time.Duration, more bool) {
		t.Helper()
		if got, m := x.behind(at(ms), psn); got != want || m != more {
			t.Errorf("at %d ms, at %#x: %v, %v; want %v, %v", ms, psn, got, m, want, more)
		}
	}
	behind(0, 5, 0, false)
	x.add(at(0), 0xfffff0)
	behind(100, 0xfffff0, 0, false)
	behind(100, 0xffffef, 100*time.Millisecond, true)
	x.add(at(500), 0xfffff0) // it stands still
	x.add(at(1000), 0x000010)
	x.add(at(1500), 0x000020)
	behind(2000, 0x000020, 0, false)
	behind(2000, 0x00001f, 500*time.Millisecond, false)
	behind(2000, 0x000010, 500*time.Millisecond, false)
	behind(2000, 0xfffff5, time.Second, false)
	behind(2000, 0xfffff0, time.Second, false)
	behind(2000, 0xffff00, 2*time.Second, true)
	x.add(at(2500), 0x000001) // the counts began anew
	behind(3000, 0x000000, 500*time.Millisecond, true)
	for i := range 2 * trackLength {
		x.add(at(3000+i), rocev2.PSN(2+i))
	}
	if len(x.samples) != trackLength {
		t.Errorf("%d samples", len(x.samples))
	}
	x.add(at(9000), x.samples[trackLength-1].psn.Add(trackSpan+1))
	if len(x.samples) != 1 {
		t.Errorf("%d samples after a great advance", len(x.samples))
	}
}

// TestBounds: nothing is remembered without a bound.
func TestBounds(t *testing.T) {
	s := newState(time.Second)
	a := s.know("a:1", "a")
	now := time.Unix(100, 0)
	many := make([]*mcrdmav1.GroupStatus, maxGroups+5)
	for i := range many {
		many[i] = &mcrdmav1.GroupStatus{Group: &mcrdmav1.Group{Key: key(i)}}
	}
	s.sync("a:1", now, many)
	for i := range maxEvents + 10 {
		s.group("a:1", now, &mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_UPDATED, Group: many[i]})
	}
	v := s.groups(0, 1<<30, "", false)
	if len(a.groups) != maxGroups || v.Total != maxGroups || len(v.Rows) != maxRows || !v.Lost {
		t.Errorf("%d groups, %d of %d shown, lost: %v", len(a.groups), len(v.Rows), v.Total, v.Lost)
	}
	if len(s.events) != maxEvents || s.events[maxEvents-1].ID != maxEvents+10 || len(s.since(s.lastID-3)) != 3 {
		t.Errorf("%d events", len(s.events))
	}
	for _, g := range a.groups {
		g.status.Problems = []string{"p"}
	}
	if v := s.suspicions(now); len(v.List) != maxSuspicions || v.More != maxGroups-maxSuspicions {
		t.Errorf("%d suspicions and %d more", len(v.List), v.More)
	}
	d := New("secret", Options{})
	for i := range 2 * maxWanted {
		d.want(idOf(key(i)))
	}
	if len(d.wanted) != maxWanted {
		t.Errorf("%d groups are wanted", len(d.wanted))
	}
}

// TestTurns: groups that a page shows are measured at each look, and the others in turn.
func TestTurns(t *testing.T) {
	s := newState(time.Second)
	s.know("a:1", "a")
	var list []*mcrdmav1.GroupStatus
	for i := range 20 {
		list = append(list, &mcrdmav1.GroupStatus{Group: &mcrdmav1.Group{Key: key(i)}})
	}
	s.sync("a:1", time.Unix(1, 0), list)
	wanted := map[string]bool{idOf(key(7)): true}
	count := map[string]int{}
	for range 4 {
		for _, k := range s.turns("a:1", wanted, 5) {
			count[k]++
		}
	}
	for i := range 20 {
		k := idOf(key(i))
		if want := 1 + 3*map[bool]int{true: 1}[wanted[k]]; count[k] != want {
			t.Errorf("%s is measured %d times in a round, want %d", k, count[k], want)
		}
	}
}

// TestGuard: only who knows the key sees anything, and nothing can be changed.
func TestGuard(t *testing.T) {
	d := New("secret", Options{})
	ask := func(method, path, cookie string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://127.0.0.1:9570"+path, nil)
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: "mcrdma-dashboard-9570", Value: cookie})
		}
		w := httptest.NewRecorder()
		d.Handler().ServeHTTP(w, r)
		return w
	}
	for _, c := range []struct {
		method, path, cookie string
		code                 int
	}{
		{"GET", "/", "", 403},
		{"GET", "/page.js", "", 403},
		{"GET", "/api/status", "wrong", 403},
		{"GET", "/api/status?key=", "", 403},
		{"GET", "/api/live?key=secrets", "", 403},
		{"GET", "/?key=secret", "", 303},
		{"GET", "/", "secret", 200},
		{"GET", "/page.js", "secret", 200},
		{"GET", "/tree.css", "secret", 200},
		{"GET", "/api/status?key=secret", "", 200},
		{"GET", "/api/groups?from=-1", "secret", 400},
		{"GET", "/api/groups?count=x", "secret", 400},
		{"GET", "/api/group?name=x", "secret", 400},
		{"GET", "/nothing", "secret", 404},
		{"POST", "/", "secret", 405},
		{"DELETE", "/api/group", "secret", 405},
	} {
		w := ask(c.method, c.path, c.cookie)
		if w.Code != c.code || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'") {
			t.Errorf("%s %s, %q: %d, %v; want %d", c.method, c.path, c.cookie, w.Code, w.Header(), c.code)
		}
	}
	set := ask("GET", "/?key=secret", "").Result().Cookies()
	if len(set) != 1 || !set[0].HttpOnly || set[0].SameSite != http.SameSiteStrictMode || set[0].Name != "mcrdma-dashboard-9570" {
		t.Errorf("%+v", set)
	}
}

// TestOneForm: an MC_ID looks the same in lists, addresses of the page and drawings.
func TestOneForm(t *testing.T) {
	k := &mcrdmav1.GroupKey{Source: "10.1.0.1", Number: 3, McId: 0x3a98}
	if id := idOf(k); id != "10.1.0.1/0x003a98" {
		t.Error(id)
	}
	var drawing strings.Builder
	tree := grouptree.Tree{Key: grouptree.Key{Source: netip.MustParseAddr("10.1.0.1"), Number: 3, ID: 0x3a98}}
	if err := tree.SVG(&drawing); err != nil || !strings.Contains(drawing.String(), "MC_ID 0x003a98") {
		t.Error(err, drawing.String())
	}
}
