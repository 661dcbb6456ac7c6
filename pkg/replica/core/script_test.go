package core

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts has one node go through what testdata tells: the lines of "given" and "run" are events, and below the latter's
// are the actions that follow each. "go test -rewrite" writes what follows now.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				line = strings.TrimSpace(line)
				result := s.event(t, strings.Fields(line))
				fmt.Fprintln(&out, line)
				for _, r := range append(result, s.actions()...) {
					fmt.Fprintln(&out, "   ", r)
				}
			}
			if d.Cmd == "given" {
				return ""
			}
			return out.String()
		})
	})
}

// script is a node, and its clock; and a map that an operator changes.
type script struct {
	n      *Node
	now    time.Duration
	osdmap Map
}

func (s *script) actions() (list []string) {
	if s.n == nil {
		return nil
	}
	for _, a := range s.n.Take() {
		list = append(list, show(reflect.ValueOf(a)))
	}
	return list
}

// event has an event happen, and returns what the call returns.
func (s *script) event(t *testing.T, words []string) (result []string) {
	t.Helper()
	n, now := s.n, s.now
	value := func(i int, v any) {
		if i < len(words) {
			parse(t, reflect.ValueOf(v).Elem(), words[i])
		}
	}
	says := func(format string, args ...any) { result = append(result, "= "+fmt.Sprintf(format, args...)) }
	var (
		iv     Interval
		m      Member
		list   []Member
		number uint64
	)
	value(1, &iv)
	switch words[0] {
	case "node": // fields of Config and Stored
		s.now = time.Second
		st := struct {
			Config
			Stored
		}{Config: newWorld(3, 3, 1).config(0)}
		fields(t, &st, words[1:])
		if err := st.Config.Check(); err != nil {
			t.Fatal(err)
		}
		s.n = New(st.Config, st.Stored, s.now)
	case "after":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			t.Fatal(err)
		}
		s.now += d
	case "tick":
		n.Tick(now)
	case "beat": // whenever the last was
		n.beat = now
		n.Tick(now)
	case "map":
		m := Map{MinSize: 1}
		fields(t, &m, words[1:])
		n.MapIs(m, now)
	case "synced": // without a number: all
		if number = n.disk.seq; len(words) > 1 {
			value(1, &number)
		}
		n.Synced(number, now)
	case "join":
		says("%v", n.Join(iv))
	case "landed":
		p := Post{}
		value(2, &p.Version)
		fields(t, &p, words[3:])
		n.Landed(iv, p, now)
	case "left":
		n.Left(iv, now)
	case "formed":
		n.Formed(iv, len(words) == 2, now)
	case "hindered":
		value(2, &number)
		n.Hindered(iv, ID(number), now) //nolint:gosec // small
	case "ended":
		n.GroupEnded(iv, now)
	case "view":
		value(2, &number)
		value(3, &list)
		n.View(iv, uint32(number), list, now) //nolint:gosec // small
	case "added":
		value(2, &m)
		value(3, &number)
		n.Added(iv, m, number, now)
	case "write":
		v, ok := n.Write(now)
		says("%s %v", show(reflect.ValueOf(v)), ok)
	case "completed":
		value(2, &number)
		n.Completed(iv, number, now)
	case "flush":
		value(1, &number)
		says("%v", n.Flush(number, now))
	case "read":
		iv, index, ok := n.Read(now)
		says("%s %d %v", show(reflect.ValueOf(iv)), index, ok)
	case "readdone":
		says("%v", n.ReadDone(iv, now))
	case "waits":
		why, hosts := n.Waits(now)
		says("%q %v", why, hosts)
	case "leases":
		for _, g := range n.follow.grants {
			says("to %s at %v", show(reflect.ValueOf(g.to)), g.at)
		}
	case "deadline":
		says("%v", n.Deadline())
	case "status":
		x := n.Status(now)
		x.Map, x.Disk.Incarnation = Map{}, 0
		says("%v %s", n.State(), strings.TrimPrefix(show(reflect.ValueOf(x)), "Status "))
	case "volume", "promoted", "without", "only", "replaced", "needs", "has", "unused":
		return s.order(t, words)
	default: // a message: from whom, the interval, the body; and To
		msg := Message{Volume: n.cfg.Volume, To: n.self, Interval: iv}
		value(0, &msg.From)
		words = words[2:]
		body := bodies[words[0]]
		if body == nil {
			t.Fatalf("%q is neither an event nor a message", words)
		}
		words = slices.DeleteFunc(words[1:], func(w string) bool {
			to, ok := strings.CutPrefix(w, "To=")
			if ok {
				parse(t, reflect.ValueOf(&msg.To).Elem(), to)
			}
			return ok
		})
		b := reflect.New(reflect.TypeOf(body))
		fields(t, b.Interface(), words)
		msg.Body = b.Elem().Interface().(Body)
		n.Step(msg, now)
	}
	return result
}

// order has the operator ask for a change of the map, or about it. "volume" sets the map, and shows it.
func (s *script) order(t *testing.T, words []string) []string {
	t.Helper()
	var (
		a, b ID
		x    Member
		size int
		next Map
		err  error
	)
	value := func(i int, v any) {
		if i < len(words) {
			parse(t, reflect.ValueOf(v).Elem(), words[i])
		}
	}
	switch m := &s.osdmap; words[0] {
	case "volume":
		if len(words) > 1 {
			*m = Map{}
			fields(t, m, words[1:])
		}
		next = *m
	case "promoted":
		value(1, &a)
		next, err = m.Promoted(a)
	case "without":
		value(1, &a)
		next, err = m.Without(a)
	case "only":
		value(1, &x)
		next = m.Only(x)
	case "replaced":
		value(1, &a)
		value(2, &b)
		value(3, &x)
		next, err = m.Replaced(a, b, x)
	case "needs":
		value(1, &size)
		next, err = m.Needs(size)
	case "has":
		value(1, &a)
		value(2, &b)
		return []string{fmt.Sprint("= ", m.Has(a, b))}
	case "unused":
		return []string{fmt.Sprint("= ", m.Unused())}
	}
	if err != nil {
		if !errors.Is(err, ErrActing) && !errors.Is(err, ErrLast) && !errors.Is(err, ErrPlace) {
			t.Errorf("%q: an error of another kind: %v", words, err)
		}
		return []string{"= " + err.Error()}
	}
	return []string{"= " + show(reflect.ValueOf(next))}
}

var bodies = map[string]Body{"Lease": Lease{}, "Push": Push{}, "Start": Start{}, "Chunk": Chunk{}, "Report": Report{}, "Durable": Durable{}, "Notify": Notify{}}

// fields sets fields of a struct: NAME=VALUE, or NAME if it is true.
func fields(t *testing.T, to any, words []string) {
	t.Helper()
	for _, w := range words {
		name, text, ok := strings.Cut(w, "=")
		if !ok {
			text = "true"
		}
		f := reflect.ValueOf(to).Elem().FieldByName(name)
		if !f.IsValid() {
			t.Fatalf("%T has no field %s", to, name)
		}
		parse(t, f, text)
	}
}

// parse parses what show shows.
func parse(t *testing.T, to reflect.Value, text string) {
	t.Helper()
	var err error
	switch {
	case to.Type() == reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = time.ParseDuration(text)
		to.SetInt(int64(d))
	case to.Kind() == reflect.Struct: // of two numbers
		sep := "/"
		if to.Type() == reflect.TypeFor[Member]() {
			sep = "."
		}
		a, b, ok := strings.Cut(text, sep)
		if !ok {
			return // it is something else, which the event knows
		}
		parse(t, to.Field(0), a)
		parse(t, to.Field(1), b)
	case to.Kind() == reflect.Slice:
		list := reflect.MakeSlice(to.Type(), 0, 0)
		for one := range strings.SplitSeq(text, ",") {
			v := reflect.New(to.Type().Elem()).Elem()
			parse(t, v, one)
			list = reflect.Append(list, v)
		}
		to.Set(list)
	case text == "Full":
		to.SetUint(Full)
	default:
		_, err = fmt.Sscan(text, to.Addr().Interface())
	}
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
}

// show shows a value in short: of structs what is not zero.
func show(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case Version:
		return fmt.Sprintf("%d/%d", x.Epoch, x.Index)
	case Interval:
		return fmt.Sprintf("%d/%d", x.Since, x.Round)
	case Member:
		return fmt.Sprintf("%d.%d", x.ID, x.Incarnation)
	case Message:
		return fmt.Sprintf("%s %s %s", show(reflect.ValueOf(x.To)), show(reflect.ValueOf(x.Interval)), show(reflect.ValueOf(x.Body)))
	case uint64:
		if x == Full {
			return "Full"
		}
	}
	switch v.Kind() {
	case reflect.Interface:
		return show(v.Elem())
	case reflect.Slice:
		var list []string
		for i := range v.Len() {
			list = append(list, show(v.Index(i)))
		}
		return strings.Join(list, ",")
	case reflect.Struct:
		words := []string{v.Type().Name()}
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().Field(i).Name
			switch {
			case f.IsZero():
			case f.Kind() == reflect.Bool:
				words = append(words, name)
			case f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[Version]() && f.Type() != reflect.TypeFor[Interval]() && f.Type() != reflect.TypeFor[Member](), f.Kind() == reflect.Interface:
				words = append(words, show(f)) // it says what it is
			default:
				words = append(words, name+"="+show(f))
			}
		}
		return strings.Join(words, " ")
	}
	return fmt.Sprint(v.Interface())
}
