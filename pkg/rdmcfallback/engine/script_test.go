package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts has one member go through what testdata tells; the script plays all others of its group. Below each line are the actions
// that follow. A number before a line repeats it. "go test -rewrite" writes what follows now.
//
//	new N SELF [alg=chain] [block=4] [small=] [prompt=] [ahead=] [racks=0,0,1] [have=] [everywhere] [silent]   all others greet, unless silent
//	hello PEER [have=] [counts]           a greeting
//	size|close|have|done|ask|told|count PEER NUMBER [VALUE]   a control message
//	failed PEER NUMBER CODE TEXT
//	ready PEER [N] | sent PEER | recv PEER IMM LEN | small PEER IMM LEN | freed PEER N | down PEER
//	send SIZE | close | leave WHY | broken | provide | refuse WHY
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				line = strings.TrimSpace(line)
				fmt.Fprintln(&out, line)
				words, times := strings.Fields(line), 1
				if _, err := fmt.Sscan(words[0], &times); err == nil {
					words = words[1:]
				}
				for range times {
					if err := s.do(words); err != nil {
						fmt.Fprintln(&out, "    error:", err)
					}
					s.actions(&out)
				}
			}
			return out.String()
		})
	})
}

type script struct {
	t *testing.T
	e *Engine
}

var kinds = map[string]kind{"size": kindSize, "close": kindClose, "have": kindHave, "done": kindDone, "ask": kindAsk, "told": kindTold, "count": kindCount}

func (s *script) do(words []string) error {
	s.t.Helper()
	args := map[string]string{}
	var n []int64
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		args[k] = v
		var x int64
		if _, err := fmt.Sscan(w, &x); err == nil {
			n = append(n, x)
		}
	}
	num := func(key string) (x int64) {
		if v := args[key]; v != "" {
			if _, err := fmt.Sscan(v, &x); err != nil {
				s.t.Fatal(key, v, err)
			}
		}
		return x
	}
	has := func(key string) bool { _, ok := args[key]; return ok }
	peer := func() int { return int(n[0]) }
	e := s.e
	switch words[0] {
	case "new":
		return s.create(int(n[0]), int(n[1]), args, num, has)
	case "hello":
		h := e.greeting(uint32(n[0]), 0)
		h.Have = num("have")
		if has("counts") {
			h.Counts = 1
		}
		e.Told(peer(), (&control{kind: kindHello, hello: h}).append(nil))
	case "failed":
		e.Told(peer(), (&control{kind: kindFailed, number: n[1], code: byte(n[2]), text: strings.Join(words[4:], " ")}).append(nil))
	case "ready":
		for range max(1, append(n, 1)[1]) {
			e.Ready(peer())
		}
	case "sent":
		e.Sent(peer())
	case "recv":
		e.Received(peer(), uint32(n[1]), int(n[2]))
	case "small":
		e.Small(peer(), uint32(n[1]), int(n[2]))
	case "freed":
		e.Freed(peer(), int(n[1]))
	case "down":
		e.Down(peer(), errors.New("reset"))
	case "send":
		return e.Send(n[0])
	case "leave":
		e.Leave(words[1])
	case "broken":
		e.Broken(errors.New("no memory"))
	case "provide":
		e.Provide()
	case "refuse":
		e.Refuse(words[1])
	default:
		k, ok := kinds[words[0]]
		switch {
		case words[0] == "close" && len(n) == 0:
			e.Close()
		case !ok:
			s.t.Fatalf("no event: %v", words)
		default:
			e.Told(peer(), (&control{kind: k, number: n[1], value: append(n, 0)[2]}).append(nil))
		}
	}
	return nil
}

func (s *script) create(nodes, self int, args map[string]string, num func(string) int64, has func(string) bool) (err error) {
	cfg := Config{Members: memberNames(nodes), Self: self, BlockSize: 4, SmallMax: int(num("small")), Prompt: int(num("prompt")), Ahead: int(num("ahead")),
		Have: num("have"), Everywhere: has("everywhere")}
	if has("block") {
		cfg.BlockSize = int(num("block"))
	}
	if name := args["alg"]; name != "" {
		if err = cfg.Algorithm.UnmarshalText([]byte(name)); err != nil {
			s.t.Fatal(err)
		}
	}
	if r := args["racks"]; r != "" {
		for f := range strings.SplitSeq(r, ",") {
			cfg.Racks = append(cfg.Racks, int(f[0]-'0'))
		}
	}
	if s.e, err = New(cfg); err != nil || has("silent") {
		return err
	}
	for i := range nodes {
		s.e.Told(i, (&control{kind: kindHello, hello: s.e.greeting(uint32(i), 0)}).append(nil))
	}
	return nil
}

// actions prints what is to be done. Greetings are not shown.
func (s *script) actions(out *strings.Builder) {
	if s.e == nil {
		return
	}
	for {
		a, ok := s.e.Next()
		if !ok {
			return
		}
		span := fmt.Sprintf("message %d, %d bytes at %d", a.Span.Message, a.Span.Len, a.Span.Off)
		if a.Span.Message == Spare {
			span = fmt.Sprintf("spare, %d bytes", a.Span.Len)
		}
		text := ""
		switch a.Kind {
		case PostRecv:
			text = fmt.Sprintf("receive from %d: %s", a.Peer, span)
		case SendBlock:
			text = fmt.Sprintf("send to %d: %s, imm %#x", a.Peer, span, a.Imm)
		case PutSmall:
			text = fmt.Sprintf("put to %d: %s, imm %#x", a.Peer, span, a.Imm)
		case CopySmall:
			text = "copy small: " + span
		case Copy:
			text = "copy: " + span
		case FreeSmall:
			text = fmt.Sprintf("free %d", a.Size)
		case Open:
			text = fmt.Sprintf("open message %d of %d bytes", a.Span.Message, a.Size)
		case Complete:
			text = fmt.Sprintf("complete %d", a.Span.Message)
		case Everywhere:
			text = fmt.Sprintf("everywhere %d", a.Size)
		case Joined:
			text = "joined"
		case Closed:
			text = "closed"
		case Failed:
			text = s.e.Failure().Error()
		case Tell:
			c, err := parse(a.Msg)
			if err != nil {
				s.t.Fatal(err)
			}
			if c.kind == kindHello {
				continue
			}
			name := fmt.Sprintf("failed %d by %d: %s", c.code, c.number, c.text)
			for k, v := range kinds {
				if v == c.kind {
					name = fmt.Sprintf("%s %d", k, c.number)
				}
			}
			if c.kind == kindSize {
				name += fmt.Sprintf(" of %d bytes", c.value)
			}
			text = fmt.Sprintf("tell %d: %s", a.Peer, name)
		}
		fmt.Fprintln(out, "   ", text)
	}
}
