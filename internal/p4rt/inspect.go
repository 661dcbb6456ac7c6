package p4rt

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/bmv2"
)

// The methods here only read, and need no session: a reader takes no part in
// arbitration, and does not disturb other clients.

// A Problem is what is wrong with a switch, and what to do; "": the switch does not say.
type Problem struct{ What, Remedy string }

// Said is what a switch says of itself. The embedded switch does, by headers.
type Said struct {
	FastPath string // where it processes packets, and why; "": it does not say
	Problems []Problem
}

// How a session notices that its switch hangs, which leaves the connection as it is.
const (
	askEach = time.Second
	asks    = 3 // of these times, after which the session is lost
	most    = 9 // the same, if the host is busy
)

// Said returns what the switch has said of itself in the last second or so.
func (s *Session) Said() Said {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said
}

// ask asks the switch what it says of itself. Any answer will do; without one, the session is lost.
func (s *Session) ask() error {
	ctx, cancel := context.WithCancel(s.life)
	defer cancel()
	var header metadata.MD
	answered := make(chan struct{})
	s.work.Go(func() {
		defer close(answered)
		_, _ = s.c.rpc.Capabilities(ctx, &p4.CapabilitiesRequest{DeviceId: s.c.cfg.DeviceID}, grpc.Header(&header))
	})
	// A ticker, unlike a deadline, counts once how long this process itself did not run.
	tick := time.NewTicker(askEach)
	defer tick.Stop()
	for waited := 1; ; waited++ {
		select {
		case <-answered:
			s.hear(header)
			return nil
		case now := <-tick.C:
			if waited >= most || waited >= asks && !s.c.cfg.Busy(now) {
				s.lose(fmt.Errorf("p4rt: %s: %w: %w", s.c.cfg.Target, ErrStreamLost, ErrSilent))
				s.end()
				return s.Err()
			}
		}
	}
}

// hear takes what the switch says of itself.
func (s *Session) hear(header metadata.MD) {
	said := Said{FastPath: strings.Join(header.Get("mcrdma-fast-path"), "; ")}
	if port, own := strings.Join(header.Get("mcrdma-cpu-port"), ""), strconv.Itoa(bmv2.CPUPort); port != "" && port != own {
		said.Problems = append(said.Problems, Problem{"there is no CPU port " + own + ", so that nothing reaches the agent: no ARP, and no hellos of neighbors",
			"start the switch with --cpu-port " + own})
	}
	remedies := header.Get("mcrdma-remedy")
	for i, what := range header.Get("mcrdma-problem") {
		p := Problem{What: what}
		if i < len(remedies) {
			p.Remedy = remedies[i]
		}
		said.Problems = append(said.Problems, p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = said
}

// watch asks the switch until the session ends.
func (s *Session) watch() {
	again := time.NewTicker(askEach)
	defer again.Stop()
	for s.ask() == nil {
		select {
		case <-again.C:
		case <-s.life.Done():
			return
		}
	}
}

// A Program is what a switch runs.
type Program struct {
	Source    string // what it was compiled from, as the compiler noted it; may be empty
	Cookie    uint64
	HasCookie bool
	JSON      []byte // as it was pushed; empty if the switch does not tell
	info      *p4cfg.P4Info
}

// A Table is one of a program's tables.
type Table struct {
	Name string
	Size int64 // entries that there is room for at least
	// Keyless tables have a default entry only.
	Keyless bool
	id      uint32
}

// OwnProgram is the program that this client pushes.
func OwnProgram() (*Program, error) { return ownProgram() }

var ownProgram = sync.OnceValues(func() (*Program, error) {
	s, err := ownSchema()
	if err != nil {
		return nil, err
	}
	return &Program{JSON: bmv2.JSON, Source: source(bmv2.JSON), HasCookie: true, Cookie: s.cookie, info: s.info}, nil
})

// Tables lists the tables of a program, in the order of its P4Info.
func (p *Program) Tables() []Table {
	var out []Table
	for _, t := range p.info.GetTables() {
		out = append(out, Table{t.GetPreamble().GetName(), t.GetSize(), len(t.GetMatchFields()) == 0, t.GetPreamble().GetId()})
	}
	return out
}

// Sizes returns the sizes of the tables of a program, by their names.
func (p *Program) Sizes() map[string]int64 {
	sizes := map[string]int64{}
	for _, t := range p.Tables() {
		sizes[t.Name] = t.Size
	}
	return sizes
}

// Differences says in what respects a switch's program differs from another one;
// none: they are the same. What the switch does not report is not compared.
func (p *Program) Differences(want *Program) []string {
	var out []string
	if p.HasCookie && p.Cookie != want.Cookie {
		out = append(out, fmt.Sprintf("the cookie is %#016x, not %#016x", p.Cookie, want.Cookie))
	}
	if len(p.JSON) > 0 && !bytes.Equal(p.JSON, want.JSON) {
		out = append(out, fmt.Sprintf("the JSON is another one, of %d bytes instead of %d", len(p.JSON), len(want.JSON)))
	}
	if !proto.Equal(p.info, want.info) {
		out = append(out, fmt.Sprintf("the P4Info is another one, with %d tables", len(p.info.GetTables())))
	}
	return out
}

func source(text []byte) string {
	var j struct{ Program string }
	_ = json.Unmarshal(text, &j) // it need not be JSON
	return j.Program
}

// Program asks for the program of the switch; nil: there is none.
func (c *Client) Program(ctx context.Context) (*Program, error) {
	r, err := c.rpc.GetForwardingPipelineConfig(ctx, &p4.GetForwardingPipelineConfigRequest{DeviceId: c.cfg.DeviceID})
	if code := status.Code(err); code == codes.FailedPrecondition || code == codes.NotFound || err == nil && r.GetConfig().GetP4Info() == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("p4rt: asking for the pipeline: %w", err)
	}
	g := r.GetConfig()
	return &Program{Source: source(g.GetP4DeviceConfig()), Cookie: g.GetCookie().GetCookie(), HasCookie: g.GetCookie() != nil,
		JSON: g.GetP4DeviceConfig(), info: g.GetP4Info()}, nil
}

// Use counts what is in the tables of the switch, whatever its program, and the
// groups and replicas of its packet replication engine. Default entries do not
// count.
func (c *Client) Use(ctx context.Context, p *Program) (entries map[string]int, groups, replicas int, err error) {
	entries = map[string]int{}
	names := map[uint32]string{}
	ask := []*p4.Entity{multicastGroups()}
	for _, t := range p.Tables() {
		names[t.id] = t.Name
		if !t.Keyless {
			ask = append(ask, &p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: &p4.TableEntry{TableId: t.id}}})
		}
	}
	err = c.read(ctx, ask, func(e *p4.Entity) error {
		switch x := e.GetEntity().(type) {
		case *p4.Entity_TableEntry:
			if !x.TableEntry.GetIsDefaultAction() {
				entries[names[x.TableEntry.GetTableId()]]++
			}
		case *p4.Entity_PacketReplicationEngineEntry:
			groups++
			replicas += len(x.PacketReplicationEngineEntry.GetMulticastGroupEntry().GetReplicas())
		}
		return nil
	})
	if err != nil {
		return nil, 0, 0, fmt.Errorf("p4rt: counting entries: %w", err)
	}
	return entries, groups, replicas, nil
}

// PrimaryID is the election id of the switch's primary, if this session is its
// backup; otherwise it is the highest that there was.
func (s *Session) PrimaryID() ElectionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.highest
}
