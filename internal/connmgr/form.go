package connmgr

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/connmgr/health"
)

// forming makes one formation of a group, whose turn its caller has. It is used
// once.
type forming struct {
	m          *Manager
	g          *group
	from       sender
	candidates []netip.Addr
	joining    []netip.Addr  // of the candidates, those that begin with this formation
	strict     bool          // all candidates, or none
	skipped    bool          // numbers of later formations that receivers reported have been skipped
	limit      time.Duration // for all to prepare
	watch      *stopwatch
	before     func(context.Context) // runs before the switches are installed; nil: nothing

	f     *formation
	peers map[netip.Addr]*peer // of those that may have prepared; in use until release
	mu    sync.Mutex
	out   map[netip.Addr]error // those that could not prepare or commit
	mayBe bool                 // the switches may be installed
}

// form makes the formation. If it returns an error, nothing is left. Otherwise the caller
// owns the formation, and takes it (Manager.formed) or undoes it.
func (x *forming) form(ctx context.Context) (*formation, error) {
	if err := x.number(); err != nil {
		return nil, err
	}
	if err := x.try(ctx); err != nil {
		x.undo(err.Error())
		x.release()
		return nil, err
	}
	x.f.steps = x.watch.total()
	x.m.metrics.formation(x.f)
	return x.f, nil
}

// number gives the formation its numbers.
func (x *forming) number() error {
	id, err := x.m.takeMCID()
	if err != nil {
		return err
	}
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	x.g.last++
	x.g.making, x.g.news = id, nil
	x.f = &formation{N: x.g.last, MCID: id, PSN: rand.Uint32N(maxPSN + 1), Sender: x.from} //nolint:gosec // not a secret
	x.peers, x.out = map[netip.Addr]*peer{}, map[netip.Addr]error{}
	return nil
}

func (x *forming) try(ctx context.Context) error {
	m, g, recorded := x.m, x.g, make(chan error, 1)
	begun := &formingRecord{N: x.f.N, MCID: x.f.MCID, Candidates: x.candidates}
	if g.form == nil { // a group's number is that of one run of the daemon
		go func() { recorded <- m.record(ctx, g, nil, begun) }()
	} else if err := m.record(ctx, g, g.form, begun); err != nil {
		return err
	} else {
		recorded <- nil
	}
	prepared := x.prepare(ctx)
	if err := first(prepared, <-recorded); err != nil {
		return err
	}
	x.watch.lap("prepare")
	if x.before != nil {
		x.before(ctx)
	}
	if err := x.choose(ctx); err != nil {
		return err
	}
	x.watch.lap("install")
	// After a crash in between, the daemon finds no complete record and undoes the
	// formation, or one whose members report what they know of it.
	info, tree := g.info(x.f), make(chan []*mcrdmav1.Step, 1)
	go func() { recorded <- m.record(ctx, g, x.f, nil) }()
	go func() { tree <- m.steps(ctx, x.f) }()
	committed := x.commit(ctx, info)
	steps := <-tree
	if err := first(committed, <-recorded); err != nil {
		return err
	}
	m.describeTree(x.f, steps)
	x.watch.lap("commit")
	return nil
}

// first returns the first error that is not nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls f for each of the addresses at the same time. If all are needed, the first
// error ends the other calls and is returned; otherwise errors are noted.
func (x *forming) each(ctx context.Context, addrs []netip.Addr, limit time.Duration, f func(context.Context, int) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var wg sync.WaitGroup
	var failed error
	for i, a := range addrs {
		wg.Go(func() {
			err := f(ctx, i)
			if err == nil {
				return
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.out[a] = err
			if failed == nil {
				failed = err
			}
			if x.strict {
				cancel()
			}
		})
	}
	wg.Wait()
	if failed != nil && x.strict {
		return failed
	}
	return nil
}

// prepare has all candidates prepare. Those that did are the formation's receivers.
func (x *forming) prepare(ctx context.Context) error {
	m, f := x.m, x.f
	for _, a := range x.candidates {
		p, err := m.peerAt(a)
		if err != nil {
			return err
		}
		x.peers[a] = p
	}
	req := x.request()
	all := make([]*receiver, len(x.candidates))
	err := x.each(ctx, x.candidates, x.limit, func(ctx context.Context, i int) error {
		p := x.peers[x.candidates[i]]
		r, err := x.prepareOne(ctx, p, req)
		all[i] = r
		return err
	})
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if n := x.ahead(); n > 0 && !x.skipped {
		return &fault{reason: Stale, cause: errBehind, formation: n, text: "receivers know a later formation"}
	}
	for _, r := range all {
		if r != nil {
			f.Receivers = append(f.Receivers, *r)
		}
	}
	if !x.g.enough(len(f.Receivers)) {
		return x.tooFew(len(f.Receivers))
	}
	f.First = f.Receivers[0].Addr
	x.settleHave()
	return nil
}

// errBehind says that receivers know a later formation than the one that was begun: this
// daemon's state is an older copy. With a later number they take part.
var errBehind = errors.New("the formation's number was used")

// maxAhead limits by how much a receiver can raise the number of formations.
const maxAhead = 1 << 16

// ahead returns the highest number of a formation that receivers know; 0: none is as high
// as the one that was begun.
func (x *forming) ahead() (n uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, err := range x.out {
		if f := (*fault)(nil); errors.As(err, &f) && f.reason == Stale && f.formation >= x.f.N && f.formation-x.f.N < maxAhead {
			n = max(n, f.formation)
		}
	}
	return n
}

// errLate says that a group might go on if its receivers answered in time.
var errLate = errors.New("receivers are late")

// maxLate is how many times in a row a group may try again because its receivers are late.
const maxLate = 3

// late returns how many receivers have not answered in time and are not known to be dead:
// they, or this host, may have been busy.
func (x *forming) late() (n int) {
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	for a, err := range x.out {
		if (errors.Is(err, Timeout) || errors.Is(err, Unreachable)) && x.m.health.State(a) != health.Gone && x.g.dead[a] == (loss{}) {
			n++
		}
	}
	return n
}

// tooFew returns the error of a group with too few receivers left.
func (x *forming) tooFew(n int) error {
	if late := x.late(); !x.strict && x.g.late < maxLate && x.g.enough(n+late) {
		x.g.late++
		return &fault{reason: Timeout, cause: errLate,
			text: fmt.Sprintf("%s; %s did not answer in time, and may yet: try again", x.g.few(n), plural(late, "receiver"))}
	}
	for _, a := range x.candidates {
		if err := x.out[a]; err != nil {
			return refuse(MinSize, "%s; the first that is missing: %v", x.g.few(n), err)
		}
	}
	return refuse(MinSize, "%s", x.g.few(n))
}

// settleHave determines where the receivers go on. A receiver that joins has nothing, and
// begins there.
func (x *forming) settleHave() {
	f := x.f
	f.Have = x.from.Sent
	for _, r := range f.Receivers {
		if !slices.Contains(x.joining, r.Addr) {
			f.Have = min(f.Have, r.Have)
		}
	}
	for i, r := range f.Receivers {
		if slices.Contains(x.joining, r.Addr) {
			f.Receivers[i].Have = f.Have
		}
	}
}

// request returns the request of Prepare, without the address and the time.
func (x *forming) request() *mcrdmav1.PrepareRequest {
	m, g, f := x.m, x.g, x.f
	req := &mcrdmav1.PrepareRequest{Version: ProtocolVersion, Group: g.id.proto(), Formation: f.N, Service: g.spec.Service,
		Program: g.spec.Program, Regions: g.regionsProto(), Relay: f.Sender.relays(g.spec), Lease: durationpb.New(m.cfg.Leases.Member)}
	if m.mayUseSwitch(g, f) == "" {
		req.Connection = &mcrdmav1.Connection{Address: m.addr.String(), Qpn: f.MCID, Psn: f.PSN, Mtu: g.spec.MTU, Dscp: g.spec.DSCP, Timeout: uint32(g.timeout)}
	}
	return req
}

// answerShare is how much of the time that is left an application has to answer.
const answerShare = 0.9

func (x *forming) prepareOne(ctx context.Context, p *peer, all *mcrdmav1.PrepareRequest) (*receiver, error) {
	req := &mcrdmav1.PrepareRequest{Version: all.Version, Group: all.Group, Formation: all.Formation, Service: all.Service, Program: all.Program,
		Address: p.addr.String(), Connection: all.Connection, Regions: all.Regions, Relay: all.Relay, Lease: all.Lease,
		Joins: x.strict || slices.Contains(x.joining, p.addr)}
	var res *mcrdmav1.PrepareResponse
	err := p.call(ctx, func(ctx context.Context) (err error) {
		if end, ok := ctx.Deadline(); ok {
			req.Timeout = durationpb.New(time.Duration(answerShare * float64(time.Until(end))))
		}
		res, err = p.rpc.Prepare(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return receiverFrom(p, req, res)
}

// receiverFrom checks what another daemon has answered.
func receiverFrom(p *peer, req *mcrdmav1.PrepareRequest, res *mcrdmav1.PrepareResponse) (*receiver, error) {
	r := &receiver{Addr: p.addr, Host: clip(res.GetHost(), maxName), QPN: res.GetQpn(), Bootstrap: res.GetBootstrap(),
		Transport: res.GetTransport(), Have: res.GetHave(), Rack: res.GetRack()}
	if r.Host == "" {
		r.Host = p.String()
	}
	if v := res.GetVersion(); v != ProtocolVersion {
		return nil, refuse(Version, "its daemon speaks version %d of the protocol, and this one %d: update the older of the two", v, ProtocolVersion).at(r.Host)
	}
	answer := &mcrdmav1.AnswerAttachRequest{Qpn: r.QPN, Regions: res.GetRegions(), Bootstrap: r.Bootstrap, Transport: r.Transport}
	if err := checkAnswer(req, answer); err != nil {
		return nil, faultOf(err).at(r.Host)
	}
	if mtu := res.GetMtu(); req.GetConnection() != nil && r.QPN != 0 && mtu != 0 && mtu < req.GetConnection().GetMtu() {
		return nil, refuse(MTU, "its path MTU is %d bytes, and the sender's %d: use the same at all devices", mtu, req.GetConnection().GetMtu()).at(r.Host)
	}
	for _, x := range res.GetRegions() {
		r.Regions = append(r.Regions, place{x.GetRkey(), x.GetVa()})
	}
	return r, nil
}

// commit tells all receivers that the formation is complete.
func (x *forming) commit(ctx context.Context, info *mcrdmav1.FormationInfo) error {
	strict := x.strict
	x.strict = true // receivers that are not required too: without one, the formation is another
	defer func() { x.strict = strict }()
	addrs := x.f.addrs()
	return x.each(ctx, addrs, x.m.times.commit, func(ctx context.Context, i int) error {
		p := x.peers[addrs[i]]
		return p.call(ctx, func(ctx context.Context) error {
			_, err := p.rpc.Commit(ctx, &mcrdmav1.CommitRequest{Formation: info, Address: addrs[i].String()})
			return err
		})
	})
}

// release releases the candidates' daemons.
func (x *forming) release() {
	for _, p := range x.peers {
		x.m.letPeer(p)
	}
	x.peers = nil
}

// undo removes the formation everywhere.
func (x *forming) undo(why string) {
	d := &cleanup{drops: map[*peer]*mcrdmav1.DropRequest{}}
	d.mcID, d.installed = x.f.MCID, x.mayBe
	for a, p := range x.peers {
		if f := (*fault)(nil); errors.As(x.out[a], &f) && f.unsent {
			continue
		}
		d.drops[p] = abort(x.g.id, x.f.N, a, why)
	}
	if edit := groupEdit(x.g.id.number, nil); x.g.form == nil {
		d.record = &edit
	} else if err := x.m.record(x.g.ctx, x.g, x.g.form, nil); err != nil {
		// After a restart, the formation is undone once more.
		x.m.log.Error("a formation is undone, but not in the daemon's state", "group", x.g.id, "error", err)
	}
	x.m.cleanUp(d)
}

// abort returns the request that drops a formation that was given up.
func abort(id groupID, formation uint32, a netip.Addr, why string) *mcrdmav1.DropRequest {
	return &mcrdmav1.DropRequest{Group: id.proto(), Formation: formation, Address: a.String(),
		Reason: mcrdmav1.Detached_REASON_ABORTED, Text: clip(why, maxText)}
}
