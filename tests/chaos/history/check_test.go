package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const key = 77

// sample is a group that keeps all promises, with members "a", "b" and "c", of which c is removed
// from operation 40 on, when its process is killed, and "d", which is added and has all operations
// from 47 on.
func sample(seed uint64) *Group {
	rng := rand.New(rand.NewPCG(seed, 0))
	kinds := []string{Write, WriteImm, Send, SendImm}
	g := &Group{Name: "g", Key: key, SenderLived: true, Blamable: []string{"c"}, Bound: 1000, Quiet: 500}
	add := func(e Entry) { g.Sender = append(g.Sender, e) }
	view := uint32(0)
	viewed := func(members ...string) {
		view++
		add(Entry{What: View, View: view, Members: members})
	}
	add(Entry{What: Created, Members: []string{"a", "b", "c"}, MinSize: 2, Regions: []int{4096, 1000}})
	viewed("a", "b", "c")
	logs := map[string]*Life{}
	for _, m := range []string{"a", "b", "c", "d"} {
		logs[m] = &Life{Lived: m != "c", Regions: [][]byte{make([]byte, 4096), make([]byte, 1000)}, Log: []Entry{{What: Joined}}}
	}
	for n := range uint64(60) {
		o := Entry{At: int64(n), What: Submit, N: n, Kind: kinds[rng.IntN(4)], Size: 1 + rng.IntN(500), Imm: rng.Uint32()}
		payload := make([]byte, o.Size)
		Fill(payload, key, n)
		if o.Kind == Write || o.Kind == WriteImm {
			o.Region = rng.IntN(2)
			o.Offset = rng.IntN([]int{4096, 1000}[o.Region] - o.Size + 1)
		}
		add(o)
		for name, l := range logs {
			if name == "c" && n >= 43 || name == "d" && n < 47 { // c had three more than it must
				continue
			}
			if o.in(o.Region) {
				copy(l.Regions[o.Region][o.Offset:], payload)
			}
			switch o.Kind {
			case Send, SendImm:
				l.Log = append(l.Log, Entry{What: Receive, Kind: o.Kind, Size: o.Size, Imm: o.Imm, Sum: Sum(payload)})
			case WriteImm:
				l.Log = append(l.Log, Entry{What: Receive, Kind: o.Kind, Size: o.Size, Imm: o.Imm})
			}
		}
		switch n {
		case 40:
			viewed("a", "b")
		case 47:
			viewed("a", "b", "d")
		}
		if n == 45 {
			add(Entry{What: Removed, Member: "c", N: 40})
		}
		if n == 48 {
			add(Entry{What: Added, Member: "d", N: 47})
		}
		add(Entry{At: int64(n) + 10, What: Done, N: n, View: view})
	}
	add(Entry{What: Over, Text: "closed"})
	for _, m := range []string{"a", "b", "c", "d"} {
		if m != "c" {
			logs[m].Log = append(logs[m].Log, Entry{What: Ended, Text: "closed"})
		}
		g.Members = append(g.Members, Member{Name: m, Lives: []Life{*logs[m]}})
	}
	return g
}

func (g *Group) find(what string, n uint64) int {
	return slices.IndexFunc(g.Sender, func(e Entry) bool { return e.What == what && e.N == n })
}

// drop removes the completions from n on.
func (g *Group) drop(n uint64, text string) {
	for i := range g.Sender {
		if e := &g.Sender[i]; e.What == Done && e.N >= n {
			e.Text = text
		}
	}
}

func (g *Group) life(m int) *Life { return &g.Members[m].Lives[0] }

func TestKept(t *testing.T) {
	for seed := range uint64(50) {
		if found := Check(sample(seed)); len(found) > 0 {
			t.Fatalf("seed %d: %v", seed, found)
		}
	}
	g := sample(1)
	g.drop(30, "failed")
	g.Doomed = true
	if found := Check(g); len(found) > 0 {
		t.Errorf("what is not promised may be there: %v", found)
	}
	g = sample(1)
	g.Sender[0], g.Sender[1] = g.Sender[1], g.Sender[0]
	if found := Check(g); len(found) > 0 {
		t.Errorf("the view was told while the group was created, and %v", found)
	}
	if found := Check(&Group{Name: "none"}); len(found) > 0 {
		t.Errorf("no group, and %v", found)
	}
	s := Summarize(sample(1))
	if s.Submitted != 60 || s.Promised != 60 || s.Failed != 0 || s.Longest != 10 || s.End != "closed" || len(s.Removed) != 1 {
		t.Errorf("summary %+v", s)
	}
}

// Each rule finds its violation.
func TestBroken(t *testing.T) {
	message := func(l *Life) int { // in the middle
		var at []int
		for i, e := range l.Log {
			if e.What == Receive {
				at = append(at, i)
			}
		}
		return at[len(at)/2]
	}
	for _, c := range []struct {
		name, rule string
		break_     func(*Group)
	}{
		{"a byte is wrong", RuleMemory, func(g *Group) { g.life(0).Regions[0][2000] ^= 1 }},
		{"a byte is wrong at the removed", RuleMemory, func(g *Group) { g.life(2).Regions[0][2000] ^= 1 }},
		{"a region is not there", RuleMemory, func(g *Group) { g.life(1).Regions = g.life(1).Regions[:1] }},
		{"a region is short", RuleMemory, func(g *Group) { g.life(1).Regions[1] = g.life(1).Regions[1][1:] }},
		{"it should have had more when it was removed", RuleMemory, func(g *Group) { g.Sender[g.find(Removed, 40)].N = 55 }},
		{"it never was there", RuleMemory, func(g *Group) { g.Members[1].Lives = nil }},
		{"a message is lost", RuleMessage, func(g *Group) { l := g.life(0); i := message(l); l.Log = slices.Delete(l.Log, i, i+1) }},
		{"the last messages are lost", RuleMessage, func(g *Group) { l := g.life(0); l.Log = slices.Delete(l.Log, len(l.Log)-3, len(l.Log)-1) }},
		{"a message is doubled", RuleMessage, func(g *Group) { l := g.life(1); i := message(l); l.Log = slices.Insert(l.Log, i, l.Log[i]) }},
		{"messages change places", RuleMessage, func(g *Group) { l := g.life(1); i := message(l); l.Log[i], l.Log[i+1] = l.Log[i+1], l.Log[i] }},
		{"messages change places at the killed", RuleMessage, func(g *Group) { l := g.life(2); i := message(l); l.Log[i], l.Log[i+1] = l.Log[i+1], l.Log[i] }},
		{"a message has other bytes", RuleMessage, func(g *Group) { l := g.life(1); l.Log[message(l)].Sum ^= 1 }},
		{"a message was not sent", RuleMessage, func(g *Group) {
			l := g.life(1)
			l.Log = append(l.Log, Entry{What: Receive, Kind: Send, Size: 1})
		}},
		{"it was not told", RuleTold, func(g *Group) { l := g.life(1); l.Log = l.Log[:len(l.Log)-1] }},
		{"the sender was not told", RuleTold, func(g *Group) { g.Sender = g.Sender[:len(g.Sender)-1] }},
		{"it is back", RuleReturn, func(g *Group) {
			g.Members[2].Lives = append(g.Members[2].Lives, Life{Log: []Entry{{What: Joined}}})
		}},
		{"a completion is skipped", RuleOrder, func(g *Group) { i := g.find(Done, 20); g.Sender = slices.Delete(g.Sender, i, i+1) }},
		{"a completion comes twice", RuleOrder, func(g *Group) { i := g.find(Done, 20); g.Sender = slices.Insert(g.Sender, i, g.Sender[i]) }},
		{"a completion follows a failure", RuleOrder, func(g *Group) { g.Sender[g.find(Done, 20)].Text = "failed" }},
		{"too few are left", RuleMinSize, func(g *Group) { g.Sender[0].MinSize = 4 }},
		{"nothing was done to it", RuleBlame, func(g *Group) { g.Blamable = nil }},
		{"it failed for no reason", RuleFailure, func(g *Group) { g.drop(50, "failed") }},
		{"a completion is late", RuleHang, func(g *Group) { g.Sender[g.find(Done, 20)].At = 5000 }},
		{"an operation has no end", RuleHang, func(g *Group) { i := g.find(Done, 59); g.Sender = slices.Delete(g.Sender, i, i+1) }},
		{"it begins in the middle", RuleJournal, func(g *Group) { g.Sender = g.Sender[1:] }},
		{"an operation is missing", RuleJournal, func(g *Group) { i := g.find(Submit, 9); g.Sender = slices.Delete(g.Sender, i, i+1) }},
		{"an operation is out of range", RuleJournal, func(g *Group) {
			e := &g.Sender[g.find(Submit, 9)]
			e.Kind, e.Offset = Write, 1<<20
		}},
		{"the added lacks its first", RuleMemory, func(g *Group) { g.Sender[g.find(Added, 47)].N = 40 }},
		{"the added has more than it should", RuleMemory, func(g *Group) { g.life(3).Regions = g.life(0).Regions }},
		{"the added has other messages", RuleMessage, func(g *Group) { g.life(3).Log = g.life(0).Log }},
		{"the sender was not told that it was added", RuleTold, func(g *Group) { i := g.find(Added, 47); g.Sender = slices.Delete(g.Sender, i, i+1) }},
		{"it is added twice", RuleJournal, func(g *Group) { i := g.find(Added, 47); g.Sender = slices.Insert(g.Sender, i, g.Sender[i]) }},
		{"the added is counted too early", RuleMinSize, func(g *Group) { g.Sender[0].MinSize = 4 }},
		{"a stranger is removed", RuleJournal, func(g *Group) { g.Sender[g.find(Removed, 40)].Member = "x" }},
		{"a view was not told", RuleView, func(g *Group) {
			g.Sender = slices.DeleteFunc(g.Sender, func(e Entry) bool { return e.What == View && e.View == 2 })
		}},
		{"a view is told late", RuleView, func(g *Group) {
			i := slices.IndexFunc(g.Sender, func(e Entry) bool { return e.What == View && e.View == 2 })
			g.Sender[i], g.Sender[i+1] = g.Sender[i+1], g.Sender[i]
		}},
		{"a view goes back", RuleView, func(g *Group) { g.Sender[g.find(Done, 50)].View = 2 }},
		{"a view has the removed", RuleView, func(g *Group) { g.Sender[g.find(Done, 40)].View = 1 }},
		{"it is done before it begins", RuleJournal, func(g *Group) { g.Sender[g.find(Done, 20)].N = 1000 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := sample(3)
			c.break_(g)
			found := Check(g)
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Rule == c.rule }) {
				t.Errorf("rule %q found nothing: %v", c.rule, found)
			}
			for _, v := range found {
				if !strings.Contains(v.String(), "group g") {
					t.Errorf("it is not said which group: %v", v)
				}
			}
		})
	}
}

// Every promised operation that one member lacks is found.
func TestEachMissing(t *testing.T) {
	for n := range uint64(60) {
		g := sample(9)
		o := g.Sender[g.find(Submit, n)]
		l := g.life(0)
		hidden := false
		if o.in(o.Region) { // as if its bytes had not arrived
			l.Regions[o.Region] = rebuild(g, o.Region, n)
			hidden = string(l.Regions[o.Region]) == string(g.life(1).Regions[o.Region]) // others cover it
		}
		if o.Kind != Write {
			k := -1
			for i, e := range l.Log {
				if e.What == Receive && e.Imm == o.Imm && e.Size == o.Size || e.What == Receive && e.Kind == Send && o.Kind == Send && e.Size == o.Size {
					k = i
					break
				}
			}
			if k < 0 {
				t.Fatalf("operation %d is not in the log", n)
			}
			l.Log, hidden = slices.Delete(l.Log, k, k+1), false
		}
		if found := Check(g); len(found) == 0 && !hidden {
			t.Errorf("operation %d, %s, is missing, and nothing was found", n, o.Kind)
		}
	}
}

func rebuild(g *Group, region int, without uint64) []byte {
	b := make([]byte, g.Sender[0].Regions[region])
	for _, e := range g.Sender {
		if e.What == Submit && e.N != without && e.in(region) {
			Fill(b[e.Offset:e.Offset+e.Size], g.Key, e.N)
		}
	}
	return b
}

func TestFill(t *testing.T) {
	seen := map[string]bool{}
	for n := range uint64(1000) {
		b := make([]byte, 9)
		Fill(b, key, n)
		if seen[string(b)] {
			t.Fatalf("operation %d has the bytes of another", n)
		}
		seen[string(b)] = true
		long := make([]byte, 64)
		Fill(long, key, n)
		if string(long[:9]) != string(b) {
			t.Fatal("bytes depend on the size")
		}
	}
}

func TestParse(t *testing.T) {
	g := sample(1)
	var journal []byte
	for i := range g.Sender {
		line, err := g.Sender[i].Line()
		if err != nil {
			t.Fatal(err)
		}
		journal = append(journal, line...)
	}
	got, err := Parse(journal)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(g.Sender) {
		t.Fatalf("read as %v, %v", got, err)
	}
	got, err = Parse(journal[:len(journal)-3])
	if err != nil || len(got) != len(g.Sender)-1 {
		t.Errorf("with a torn line there are %d entries of %d, %v", len(got), len(g.Sender), err)
	}
	for _, bad := range []string{"{}x\n", "x\n", "{\"what\":3}\n", "{\"other\":3}\n", "\n", "{} {}\n"} {
		if list, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%q is read as %v", bad, list)
		}
	}
}

// Journals may have any content.
func FuzzCheck(f *testing.F) {
	g := sample(1)
	journal := func(list []Entry) (b []byte) {
		for i := range list {
			line, _ := list[i].Line()
			b = append(b, line...)
		}
		return b
	}
	f.Add(journal(g.Sender), journal(g.life(0).Log), g.life(0).Regions[0], true)
	f.Add([]byte(`{"what":"created","members":["m"],"regions":[-1]}`+"\n"+`{"what":"submit","kind":"write","offset":-9}`+"\n"), []byte{}, []byte{}, false)
	f.Fuzz(func(t *testing.T, sender, member, region []byte, lived bool) {
		s, err := Parse(sender)
		if err != nil {
			return
		}
		m, err := Parse(member)
		if err != nil {
			return
		}
		for _, e := range s {
			for _, n := range append(e.Regions, e.Size) {
				if n > 1<<20 {
					return // memory is what it would be about
				}
			}
		}
		g := &Group{Name: "g", Sender: s, SenderLived: lived, Members: []Member{{"m", []Life{{m, [][]byte{region}, lived}}}}, Bound: 1}
		_ = Check(g)
		_ = Summarize(g)
	})
}
