// Package agent is a daemon's client of the agent of its host's switch: requests for the host's
// groups, and the agent's events about them.
//
//	c := agent.New(agent.Config{Name: "torA", Source: addr, Conn: conn, …})
//	go c.Run(ctx, agent.Events{…}) // follows what becomes of the groups, and renews their leases
//	err := c.Install(ctx, group)   // of a *Error's kind, if the agent has answered, or has not
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
)

// CallTime is how long a request may take.
const CallTime = 3 * time.Second

// maxCounts is how many reads of counters are under way at a time.
const maxCounts = 8

// Config says whose client it is. All is required.
type Config struct {
	Name   string           // of the switch
	Target string           // where its agent serves
	Conn   *grpcclient.Conn // to there
	Source netip.Addr       // of the host's groups
	Lease  time.Duration    // of its groups at the agent
	Log    *slog.Logger
	// Called is called after each request.
	Called func(took time.Duration, err error)
}

// A Client is the client of one agent. Its methods may be called concurrently.
type Client struct {
	Config
	groups mcrdmav1.SwitchGroupsClient
	status mcrdmav1.SwitchStatusClient
	health healthpb.HealthClient
	kick   chan struct{}       // 1: see whether the agent has our groups
	counts *semaphore.Weighted // maxCounts

	mu       sync.Mutex
	synced   bool   // events are followed
	err      error  // why not
	notReady string // why not, as far as is known
}

// ErrNotYet is the error of a State that is too new to know.
var ErrNotYet = errors.New("the agent has not answered yet")

// New makes a client. It connects when it is used.
func New(cfg Config) *Client {
	return &Client{Config: cfg, kick: make(chan struct{}, 1), counts: semaphore.NewWeighted(maxCounts), err: ErrNotYet,
		groups: mcrdmav1.NewSwitchGroupsClient(cfg.Conn), status: mcrdmav1.NewSwitchStatusClient(cfg.Conn), health: healthpb.NewHealthClient(cfg.Conn)}
}

// State says whether the agent's events are followed, and why not.
func (c *Client) State() (synced bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced, c.err
}

// NotReady says why the agent refuses new groups though its events are followed, in its own words;
// "": it is ready.
func (c *Client) NotReady() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notReady
}

// Unusable says why new groups are not copied by the switch, as far as its agent is known; "": they are.
func (c *Client) Unusable() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return strings.TrimPrefix(c.err.Error(), c.Name+": ")
	case c.synced:
		return c.notReady
	}
	return ""
}

// follows notes it, and returns what was before.
func (c *Client) follows(synced bool, err error) (was bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, c.synced, c.err = c.synced, synced, err
	return was
}

// transient are the reasons that may be gone later. Of PEER, too: another switch's agent comes back, or its link.
var transient = []string{mcrdmav1.Reason_NOT_READY.String(), mcrdmav1.Reason_NO_ROUTE.String(), mcrdmav1.Reason_EXISTS.String(),
	mcrdmav1.Reason_CLOSED.String(), mcrdmav1.Reason_PEER.String()}

// An Error is what an agent has answered, or that it has not.
type Error struct {
	Switch, Text string
	// Transient: another try later may succeed. Routes come back, when a link does. The
	// later try has another MC_ID: after EXISTS, the
	// existing group is of a state that this daemon has lost.
	Transient bool
	Unchanged bool // the agent has changed nothing
}

func (e *Error) Error() string { return e.Switch + ": " + e.Text }

// explain says what the error of a call to the agent means. unsent: the request cannot
// have arrived.
func (c *Client) explain(ctx context.Context, unsent bool, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return ctx.Err()
	}
	s, info := status.Convert(err), failure.Info(err)
	timeout := s.Code() == codes.DeadlineExceeded
	if reason := failure.Clip(info.GetReason(), failure.MaxName); reason != "" {
		again := timeout || slices.Contains(transient, reason)
		return &Error{Switch: cmp.Or(failure.Clip(info.GetMetadata()["switch"], failure.MaxName), c.Name),
			Text: reason + ": " + failure.Clip(info.GetMetadata()["text"], failure.MaxText), Transient: again, Unchanged: !timeout}
	}
	e := &Error{Switch: c.Name, Transient: true, Unchanged: unsent,
		Text: fmt.Sprintf("its agent at %s does not answer: %v", c.Target, c.Conn.Explain(err))}
	switch cause := c.Conn.Last(); {
	case timeout:
		e.Text = fmt.Sprintf("its agent at %s did not answer in time", c.Target)
	case s.Code() == codes.Unavailable && grpcclient.Untrusted(cause):
		e.Text = fmt.Sprintf("its agent at %s and this daemon do not trust each other: %v", c.Target, cause)
	case s.Code() != codes.Unavailable && s.Code() != codes.Internal && s.Code() != codes.Unknown:
		e.Text = s.Code().String() + ": " + e.Text
		e.Transient, e.Unchanged = false, s.Code() != codes.Canceled
	}
	return e
}

// ask makes a request within CallTime, perhaps twice.
func ask[Req, Res any](ctx context.Context, c *Client, rpc func(context.Context, Req, ...grpc.CallOption) (Res, error), req Req) (res Res, err error) {
	ctx, cancel := context.WithTimeout(ctx, CallTime)
	defer cancel()
	begun := time.Now()
	unsent, err := c.Conn.Call(ctx, func(ctx context.Context) (err error) {
		res, err = rpc(ctx, req)
		return err
	})
	c.Called(time.Since(begun), err)
	return res, c.explain(ctx, unsent, err)
}

// Key names a group of this host to the agent. The group's number, which agents show people, is 0
// if it does not matter.
func (c *Client) Key(mcID uint32, number uint64) *mcrdmav1.GroupKey {
	return &mcrdmav1.GroupKey{Source: c.Source.String(), McId: mcID, Number: number}
}

// Install has the switches copy a formation's packets. After an error that is no answer,
// they may have begun to. maxPackets is how many packets the sender may have under way.
func (c *Client) Install(ctx context.Context, number uint64, sp *group.Spec, f *group.Formation) (maxPackets uint32, err error) {
	req := &mcrdmav1.InstallRequest{Lease: durationpb.New(c.Lease), Group: &mcrdmav1.Group{Key: c.Key(f.MCID, number),
		SenderQpn: f.Sender.QPN, InitialPsn: f.PSN, Address: f.First.String(), Receivers: sp.SwitchReceivers(f.Receivers)}}
	if sp.CNPGap > 0 {
		req.Group.CnpGap = durationpb.New(sp.CNPGap)
	}
	res, err := ask(ctx, c, c.groups.Install, req)
	return res.GetMaxPackets(), err
}

// Update leaves a formation's present receivers only.
func (c *Client) Update(ctx context.Context, sp *group.Spec, f *group.Formation) error {
	_, err := ask(ctx, c, c.groups.Update, &mcrdmav1.UpdateRequest{Key: c.Key(f.MCID, 0), Receivers: sp.SwitchReceivers(f.Receivers)})
	return err
}

// Remove takes a group out of the switches.
func (c *Client) Remove(ctx context.Context, mcID uint32) error {
	_, err := ask(ctx, c, c.groups.Remove, &mcrdmav1.RemoveRequest{Key: c.Key(mcID, 0)})
	return err
}

// Missing renews leases and returns the groups that the agent does not have.
func (c *Client) Missing(ctx context.Context, keys ...*mcrdmav1.GroupKey) (mcIDs []uint32) {
	res, err := ask(ctx, c, c.groups.Renew, &mcrdmav1.RenewRequest{Keys: keys})
	if err != nil {
		c.Log.Warn("leases could not be renewed", "switch", c.Name, "error", err)
		return nil
	}
	for _, k := range res.GetMissing() {
		mcIDs = append(mcIDs, k.GetMcId())
	}
	return mcIDs
}

// Counts returns what the switch has counted of a group.
func (c *Client) Counts(ctx context.Context, mcID uint32) (group.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTime)
	defer cancel()
	if err := c.counts.Acquire(ctx, 1); err != nil {
		return group.Counts{}, err
	}
	defer c.counts.Release(1)
	res, err := ask(ctx, c, c.groups.Get, &mcrdmav1.GetRequest{Key: c.Key(mcID, 0), Counters: true})
	if err != nil {
		return group.Counts{}, err
	}
	out := group.Counts{Packets: res.GetGroup().GetPackets(), Answers: map[netip.Addr]group.Answers{}}
	members := res.GetGroup().GetMembers()
	for i, r := range res.GetGroup().GetGroup().GetReceivers() {
		a, err := netip.ParseAddr(r.GetAddress())
		if err != nil || i >= len(members) {
			continue
		}
		x := members[i]
		out.Answers[a] = group.Answers{ACKs: x.GetAcks(), SequenceNAKs: x.GetSequenceNaks(), RNRNAKs: x.GetRnrNaks(), FatalNAKs: x.GetFatalNaks()}
	}
	return out, nil
}

// Steps returns how the switch copies a group's packets; none: that is not known.
func (c *Client) Steps(ctx context.Context, mcID uint32) []*mcrdmav1.Step {
	res, _ := c.status.ListSteps(ctx, &mcrdmav1.ListStepsRequest{Group: c.Key(mcID, 0)})
	return res.GetSteps()
}
