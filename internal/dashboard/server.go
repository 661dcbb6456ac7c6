package dashboard

import (
	"bytes"
	"context"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/internal/grouptree"
)

//go:embed page
var page embed.FS

const (
	maxStreams = 32
	// writeTime is how long an open page may take to read a notice.
	writeTime = 5 * time.Second
	// noticeGap is the least time between two notices.
	noticeGap = 50 * time.Millisecond
	treeTime  = 20 * time.Second
)

// The page runs its own scripts only, is not shown within others, and sends nothing elsewhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Address is where the page is, with the secret, if it is served at a host and port.
func (d *Dashboard) Address(hostPort string) string {
	return "http://" + hostPort + "/?key=" + url.QueryEscape(d.secret)
}

// Handler serves the page, and what it shows as JSON. It answers GET only, to those who
// know the secret: as ?key=…, which becomes a cookie.
func (d *Dashboard) Handler() http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the directory is in the program
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /tree.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = w.Write([]byte(grouptree.Style))
	})
	mux.HandleFunc("GET /api/live", d.live)
	mux.HandleFunc("GET /api/fabric", d.drawFabric)
	mux.HandleFunc("GET /api/group", d.oneGroup)
	mux.HandleFunc("GET /api/groups", d.someGroups)
	view := func(path string, get func(s *state, r *http.Request) any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			d.mu.Lock()
			v := get(d.state, r)
			d.mu.Unlock()
			answer(w, v)
		})
	}
	view("/api/status", func(s *state, _ *http.Request) any { return s.agentViews(true) })
	view("/api/suspicions", func(s *state, _ *http.Request) any { return s.suspicions(time.Now()) })
	view("/api/traffic", func(s *state, _ *http.Request) any { return s.traffic(d.options) })
	view("/api/events", func(s *state, r *http.Request) any {
		after, _ := strconv.ParseUint(r.FormValue("after"), 10, 64) // none: all
		return s.since(after)
	})
	return d.guard(mux)
}

// guard lets those pass who know the secret.
func (d *Dashboard) guard(next http.Handler) http.Handler {
	same := func(s string) bool { return subtle.ConstantTimeCompare([]byte(s), []byte(d.secret)) == 1 }
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		name := "mcrdma-dashboard-" + r.Host[strings.LastIndex(r.Host, ":")+1:] // cookies do not tell ports apart
		given := r.URL.Query().Get("key")
		cookie, err := r.Cookie(name)
		switch {
		case same(given) && r.URL.Path == "/":
			http.SetCookie(w, &http.Cookie{Name: name, Value: given, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, "/", http.StatusSeeOther)
		case same(given), err == nil && same(cookie.Value):
			next.ServeHTTP(w, r)
		default:
			http.Error(w, "Open the address that \"switchctl dashboard\" has printed: the key in it changes with each start.", http.StatusForbidden)
		}
	})
}

func answer(w http.ResponseWriter, v any) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b.Bytes())
}

// live tells an open page at each look how old everything is, and what has changed.
func (d *Dashboard) live(w http.ResponseWriter, r *http.Request) {
	defer d.streams.Add(-1)
	if d.streams.Add(1) > maxStreams {
		http.Error(w, fmt.Sprintf("%d pages are open, which is the most: close some", maxStreams), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	beat := time.NewTicker(d.options.Interval)
	defer beat.Stop()
	for {
		d.mu.Lock()
		n, changed := d.state.notice(time.Now()), d.changed
		d.mu.Unlock()
		b, err := json.Marshal(n)
		if err == nil {
			err = out.SetWriteDeadline(time.Now().Add(writeTime))
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "data: %s\n\n", b)
		}
		if err == nil {
			err = out.Flush()
		}
		if err != nil {
			return // the page is closed, or too slow: it comes again
		}
		select {
		case <-beat.C:
		case <-changed:
		case <-r.Context().Done():
			return
		}
		select {
		case <-time.After(noticeGap):
		case <-r.Context().Done():
			return
		}
	}
}

func (d *Dashboard) drawFabric(w http.ResponseWriter, _ *http.Request) {
	d.mu.Lock()
	f := d.state.fabric()
	d.mu.Unlock()
	var b bytes.Buffer
	if err := f.SVG(&b); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer(w, map[string]string{"svg": b.String()})
}

// someGroups gives a part of the list; groups that a page shows are measured at each look.
func (d *Dashboard) someGroups(w http.ResponseWriter, r *http.Request) {
	from, err := number(r.FormValue("from"), 0)
	count, err2 := number(r.FormValue("count"), 50)
	if err := errors.Join(err, err2); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	v := d.state.groups(from, count, r.FormValue("find"), r.FormValue("bad") != "")
	for _, g := range v.Rows {
		d.want(g.ID)
	}
	d.mu.Unlock()
	answer(w, v)
}

func number(s string, otherwise int) (int, error) {
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a number from 0", s)
	}
	return n, nil
}

// A oneView is a group with all that is known of it.
type oneView struct {
	Name      string          `json:"name"`
	ID        string          `json:"id"`
	Error     string          `json:"error,omitempty"` // the tree is not of now
	At        *time.Time      `json:"at"`              // of the tree
	Tree      json.RawMessage `json:"tree,omitempty"`  // as "switchctl group show -o json" has it
	SVG       string          `json:"svg"`
	Measured  *time.Time      `json:"measured"`
	Receivers []lagView       `json:"receivers"`
	Links     []linkView      `json:"links"`
}

func (d *Dashboard) oneGroup(w http.ResponseWriter, r *http.Request) {
	key, err := grouptree.ParseKey(r.FormValue("name"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	key.ID = d.state.find(key)
	id := idOf(key.Proto())
	d.want(id)
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), treeTime)
	defer cancel()
	t := d.tree(ctx, key)
	v := oneView{Name: key.String(), ID: id, At: known(t.at)}
	d.mu.Lock()
	lag, measured, group := d.state.lag(id)
	d.mu.Unlock()
	v.Receivers, v.Measured = lag, known(measured)
	if t.err != nil {
		v.Error = t.err.Error()
	}
	if t.tree != nil {
		v.Name = t.tree.Key.String()
		var b bytes.Buffer
		if v.Tree, err = json.Marshal(t.tree); err == nil {
			err = t.tree.SVG(&b)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		v.SVG, v.Links = b.String(), linksOf(t.tree, group)
	}
	answer(w, v)
}
