package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mcrdma/mcrdma/internal/failure"
)

// A Member is one of the cluster.
type Member struct {
	Name    string // empty: it was added, and has not started yet
	ID      uint64
	Peer    string // host:port at which other members reach it
	Client  string // host:port at which clients do
	Leader  bool
	Version string
	Size    int64 // bytes of its database
	Err     error // why it does not answer; nil: it does
}

// probe is how long a member that is to be replaced may take to say how it is, and the time between
// attempts at a change.
const probe = 2 * time.Second

// attempt is how long etcd may take for a change of its members.
const attempt = 5 * time.Second

func hostPort(urls []string) string {
	if len(urls) == 0 {
		return ""
	}
	_, rest, _ := strings.Cut(urls[0], "://")
	return rest
}

// Members says who is in the cluster, and asks each how it is, with a limit; the list is of one
// member that answers, and may be old if the cluster has no majority.
func (s *Store) Members(ctx context.Context, limit time.Duration) ([]Member, error) {
	var r *clientv3.MemberListResponse
	err := s.call(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.MemberList(ctx, clientv3.WithSerializable())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("no member of etcd answers: %w; start the members that are down, or correct their addresses or certificates", err)
	}
	members := memberList(r)
	var wg sync.WaitGroup
	for i, x := range r.Members {
		wg.Go(func() { s.ask(ctx, &members[i], x.ClientURLs, limit) })
	}
	wg.Wait()
	return members, nil
}

// memberList is etcd's answer as members, of which none has been asked how it is.
func memberList(r *clientv3.MemberListResponse) []Member {
	members := make([]Member, len(r.Members))
	for i, x := range r.Members {
		members[i] = Member{Name: x.Name, ID: x.ID, Peer: hostPort(x.PeerURLs), Client: hostPort(x.ClientURLs)}
	}
	return members
}

// ask has a member say how it is.
func (s *Store) ask(ctx context.Context, m *Member, urls []string, limit time.Duration) {
	if len(urls) == 0 {
		m.Err = errors.New("it has not started yet")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var why atomic.Pointer[error]
	st, err := s.client.Status(context.WithValue(ctx, reason{}, &why), urls[0])
	if m.Err = err; err == nil {
		m.Leader, m.Version, m.Size = st.Leader == m.ID, st.Version, st.DbSize
		if len(st.Errors) > 0 {
			m.Err = errors.New(strings.ReplaceAll(strings.Join(st.Errors, "; "), "etcdserver: ", "it has "))
			if strings.Contains(m.Err.Error(), "alarm:NOSPACE") {
				m.Err = errors.New("its database is full, and etcd accepts no change: make it smaller (etcdctl compact, defrag) or raise its quota, and then etcdctl alarm disarm")
			}
		}
	} else if w := why.Load(); w != nil {
		m.Err = *w
	} else {
		m.Err = failure.Plain(err)
	}
}

// Replace removes a member that is lost with its disk, by its name, and adds another in its place
// (Add). A member that answers is not removed.
func (s *Store) Replace(ctx context.Context, lost, name, peer string) (map[string]string, error) {
	// A majority says who the members are: one alone may not have heard of the last change yet.
	var r *clientv3.MemberListResponse
	if err := s.change(ctx, func(ctx context.Context) (_ bool, err error) {
		r, err = s.client.MemberList(ctx)
		return err == nil, err
	}); err != nil {
		return nil, fmt.Errorf("asking etcd for its members: %w", err)
	}
	members := memberList(r)
	i := slices.IndexFunc(members, func(m Member) bool { return m.Name == lost })
	if i >= 0 {
		s.ask(ctx, &members[i], r.Members[i].ClientURLs, probe)
	}
	switch {
	case i < 0 && slices.ContainsFunc(members, func(m Member) bool { return m.Peer == peer }):
		return s.Add(ctx, name, peer) // this call was made before
	case i < 0:
		return nil, fmt.Errorf("etcd at %s has no member %q to replace, its members are %s; if it has just been removed, add the new one", strings.Join(s.endpoints, ", "), lost, names(members))
	case members[i].Err == nil:
		return nil, fmt.Errorf("etcd member %q at %s answers: stop it for good before it is replaced", lost, members[i].Client)
	}
	rest := slices.Delete(slices.Clone(members), i, i+1)
	if err := taken(rest, name, peer); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(rest, func(m Member) bool { return m.Peer == peer }) {
		return nil, fmt.Errorf("etcd has a member at %s already, and would only lose %q: name a new member, at an address of its own", peer, lost)
	}
	if err := s.change(ctx, func(ctx context.Context) (bool, error) {
		_, err := s.client.MemberRemove(ctx, members[i].ID)
		return err == nil || errors.Is(err, rpctypes.ErrMemberNotFound), err
	}); err != nil {
		return nil, fmt.Errorf("removing member %q: %w", lost, err)
	}
	all, err := s.Add(ctx, name, peer)
	if err != nil {
		return nil, fmt.Errorf("%w; member %q is removed: add the new one", err, lost)
	}
	return all, nil
}

// Add adds a member with a name and a peer address, host:port. It returns all members by name, with
// their peer addresses: the new one has to start with them, and to join (embedded.Config). Made again, it changes nothing.
func (s *Store) Add(ctx context.Context, name, peer string) (all map[string]string, err error) {
	err = s.change(ctx, func(ctx context.Context) (bool, error) {
		r, err := s.client.MemberList(ctx)
		if err != nil {
			return false, err
		}
		if err := taken(memberList(r), name, peer); err != nil {
			return false, err
		}
		all = map[string]string{name: peer}
		added := false
		for _, m := range r.Members {
			if m.Name != "" {
				all[m.Name] = hostPort(m.PeerURLs)
			}
			added = added || hostPort(m.PeerURLs) == peer
		}
		if !added {
			_, err = s.client.MemberAdd(ctx, []string{URL(peer, s.files)})
		}
		return err == nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("adding member %q at %s: %w", name, peer, err)
	}
	return all, nil
}

// taken returns an error if one of the members has the name or the address of a new one, and not both.
func taken(members []Member, name, peer string) error {
	for _, m := range members {
		if m.Name != "" && (m.Name == name) != (m.Peer == peer) {
			return fmt.Errorf("etcd has the member %q at %s: a new one needs a name and an address of its own; one that is lost with its disk is replaced", m.Name, m.Peer)
		}
	}
	return nil
}

// change changes the cluster, which refuses that until its members have been connected for some
// seconds, and have said who they are.
func (s *Store) change(ctx context.Context, f func(context.Context) (done bool, err error)) error {
	for {
		done := false
		limited, cancel := context.WithTimeout(ctx, attempt)
		err := s.call(limited, func(ctx context.Context) (err error) {
			done, err = f(ctx)
			return err
		})
		if cancel(); errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w; more than half of the members must run: start those that are down", err)
		}
		if done {
			return nil
		}
		if !errors.Is(err, rpctypes.ErrUnhealthy) && !errors.Is(err, rpctypes.ErrMemberNotEnoughStarted) {
			return err
		}
		select {
		case <-time.After(probe):
		case <-ctx.Done():
			return err
		}
	}
}

func names(members []Member) string {
	var out []string
	for _, m := range members {
		out = append(out, cmp.Or(m.Name, m.Peer)) // a new one has not said its name
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
