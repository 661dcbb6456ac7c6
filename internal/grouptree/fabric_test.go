package grouptree

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// fabric is a Source whose agents' addresses are their switches' names in capitals.
type fabric struct {
	key    *mcrdmav1.GroupKey
	agents map[string]*agent
}

type agent struct {
	dead, hangs bool
	status      *mcrdmav1.GetStatusResponse
	steps       []*mcrdmav1.Step
	group       *mcrdmav1.GroupStatus
}

func (f *fabric) at(ctx context.Context, address string) (*agent, error) {
	a := f.agents[address]
	if a == nil || a.dead {
		return nil, fmt.Errorf("agent %s cannot be reached", address)
	}
	if a.hangs {
		<-ctx.Done()
		return nil, fmt.Errorf("agent %s: %w", address, ctx.Err())
	}
	return a, nil
}

func (f *fabric) Status(ctx context.Context, address string) (*mcrdmav1.GetStatusResponse, error) {
	a, err := f.at(ctx, address)
	if err != nil {
		return nil, err
	}
	return a.status, nil
}

// Steps describes all groups, whatever it is asked for.
func (f *fabric) Steps(ctx context.Context, address string, _ *mcrdmav1.GroupKey) (*mcrdmav1.ListStepsResponse, error) {
	a, err := f.at(ctx, address)
	if err != nil {
		return nil, err
	}
	return &mcrdmav1.ListStepsResponse{Switch: a.status.Name, Steps: a.steps}, nil
}

func (f *fabric) Group(ctx context.Context, address string, key *mcrdmav1.GroupKey) (*mcrdmav1.GroupStatus, error) {
	a, err := f.at(ctx, address)
	if err != nil {
		return nil, err
	}
	if a.group == nil || a.group.Group.Key.GetMcId() != key.GetMcId() {
		return nil, fmt.Errorf("agent %s: not found", address)
	}
	return a.group, nil
}

// A script answers for agents.
type script interface {
	Status(ctx context.Context, address string) (*mcrdmav1.GetStatusResponse, error)
	Steps(ctx context.Context, address string, key *mcrdmav1.GroupKey) (*mcrdmav1.ListStepsResponse, error)
	Group(ctx context.Context, address string, key *mcrdmav1.GroupKey) (*mcrdmav1.GroupStatus, error)
}

// asked is a script as a Source.
func asked(s script) Source {
	return func(address string) (Agent, error) {
		return Agent{Status: scriptedStatus{nil, s, address}, Groups: scriptedGroups{nil, s, address}}, nil
	}
}

type scriptedStatus struct {
	mcrdmav1.SwitchStatusClient
	s       script
	address string
}

func (x scriptedStatus) GetStatus(ctx context.Context, _ *mcrdmav1.GetStatusRequest, _ ...grpc.CallOption) (*mcrdmav1.GetStatusResponse, error) {
	return x.s.Status(ctx, x.address)
}

func (x scriptedStatus) ListSteps(ctx context.Context, r *mcrdmav1.ListStepsRequest, _ ...grpc.CallOption) (*mcrdmav1.ListStepsResponse, error) {
	return x.s.Steps(ctx, x.address, r.GetGroup())
}

type scriptedGroups struct {
	mcrdmav1.SwitchGroupsClient
	s       script
	address string
}

func (x scriptedGroups) Get(ctx context.Context, r *mcrdmav1.GetRequest, _ ...grpc.CallOption) (*mcrdmav1.GetResponse, error) {
	g, err := x.s.Group(ctx, x.address, r.GetKey())
	return &mcrdmav1.GetResponse{Group: g}, err
}

// parseFabric reads a fabric from lines such as
//
//	agent torA peers=core,torB:branches [dead] [hangs] [name=other]
//	group sender=17 receivers=10.2.0.11:33,10.2.0.12:34 [expires=30s] [problem=…] [counters]
//	step 10.2.0.11 [root] [holders=torA] [problem=…]
//	copy 10.2.0.11 ports=9,10 next=torB to=10.2.0.11,10.2.0.12 or last qpn=33
//
// each of which belongs to what stands above it.
func parseFabric(t testing.TB, text string) *fabric {
	t.Helper()
	f := &fabric{key: testKey.Proto(), agents: map[string]*agent{}}
	var a *agent
	var s *mcrdmav1.Step
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		flags := map[string]string{}
		for _, w := range words[1:] {
			k, v, _ := strings.Cut(w, "=")
			flags[k] = strings.ReplaceAll(v, "_", " ")
		}
		has := func(k string) bool { _, ok := flags[k]; return ok }
		list := func(k string) []string {
			return slices.DeleteFunc(strings.Split(flags[k], ","), func(s string) bool { return s == "" })
		}
		var problems []string
		if has("problem") {
			problems = []string{flags["problem"]}
		}
		switch words[0] {
		case "agent":
			name := words[1]
			a = &agent{dead: has("dead"), hangs: has("hangs"), status: &mcrdmav1.GetStatusResponse{Name: name}}
			if has("name") {
				a.status.Name = flags["name"]
			}
			for _, p := range list("peers") {
				n, branches, _ := strings.Cut(p, ":")
				b, _ := strconv.Atoi(branches)
				a.status.Peers = append(a.status.Peers, &mcrdmav1.PeerStatus{Name: n, Agent: strings.ToUpper(n), Branches: uint64(b)})
			}
			f.agents[strings.ToUpper(name)] = a
		case "group":
			g := &mcrdmav1.Group{Key: f.key, SenderQpn: number(t, flags["sender"])}
			a.group = &mcrdmav1.GroupStatus{Group: g, Switch: a.status.Name, Problems: problems, Packets: 1234}
			for _, r := range list("receivers") {
				addr, qpn, _ := strings.Cut(r, ":")
				g.Receivers = append(g.Receivers, &mcrdmav1.Receiver{Address: addr, Qpn: number(t, qpn)})
				if has("counters") {
					a.group.Members = append(a.group.Members, &mcrdmav1.MemberCounters{Acks: 1000, SequenceNaks: 3, RnrNaks: 2, FatalNaks: 1, Cnps: 70})
				}
			}
			if has("expires") {
				d, err := time.ParseDuration(flags["expires"])
				if err != nil {
					t.Fatal(err)
				}
				a.group.Expires = timestamppb.New(noon.Add(d))
			}
		case "step":
			s = &mcrdmav1.Step{Group: f.key, Destination: words[1], Root: has("root"), Generation: 1, Holders: list("holders"),
				Receivers: list("to"), Problems: problems}
			a.steps = append(a.steps, s)
		case "copy":
			c := &mcrdmav1.Copy{Destination: words[1], Last: has("last"), Qpn: number(t, flags["qpn"]), Next: list("next"), Receivers: list("to")}
			for _, p := range list("ports") {
				c.Ports = append(c.Ports, number(t, p))
			}
			s.Copies = append(s.Copies, c)
		default:
			t.Fatalf("%q", line)
		}
	}
	return f
}

func number(t testing.TB, s string) uint32 {
	t.Helper()
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}
