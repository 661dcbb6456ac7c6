// Package etcd stores the configuration of replicated volumes in an etcd cluster, version 3.4 or
// later, which runs inside the volumes' hosts (package embedded) or elsewhere.
//
// Certificates are the files of package identity. etcd requires that a server's certificate
// contains the address or name of its endpoint: use an IP address that is in the certificate. A
// replaced certificate and key take effect at the next connection, a replaced CA after a restart.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// DefaultPrefix is what all keys begin with.
const DefaultPrefix = "/mcblock/"

// A Config says where the cluster is.
type Config struct {
	Endpoints []string       // host:port each; the first one is asked first
	Files     identity.Files // zero: plain text
	Prefix    string         // of all keys; default DefaultPrefix

	dial func(context.Context, string) (net.Conn, error) // for tests; nil: gRPC's own
}

// A Store is an [osdmap.KV] in etcd.
type Store struct {
	client    *clientv3.Client // of all members, for what is asked of any
	members   members
	endpoints []string
	prefix    string
	files     identity.Files
}

// Info is what etcd is to know of the files; client and server need the same.
func Info(f identity.Files) transport.TLSInfo {
	return transport.TLSInfo{CertFile: f.Cert, KeyFile: f.Key, TrustedCAFile: f.CA, ClientCertAuth: true,
		MinVersion: tls.VersionTLS13,
		// Peers connect from any of their addresses, of which the certificate may have one only.
		SkipClientSANVerify: true}
}

// URL is the address of an endpoint as etcd writes it.
func URL(hostPort string, f identity.Files) string {
	if f.Plain() {
		return "http://" + hostPort
	}
	return "https://" + hostPort
}

// reconnect is short, because no host that fails is replaced until the others have found etcd again.
var reconnect = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// connectTime is what one connection may take: a member that is frozen completes it later.
const connectTime = 20 * time.Second

// Dial makes a store of a cluster, which need not be up.
func Dial(c Config) (*Store, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoint: say at least one host:port, better all members'")
	}
	s := &Store{endpoints: c.Endpoints, prefix: cmp.Or(c.Prefix, DefaultPrefix), files: c.Files}
	cfg := clientv3.Config{Logger: zap.NewNop(), DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second, PermitWithoutStream: true,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.note),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: connectTime})}}
	if c.dial != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(c.dial))
	}
	if !c.Files.Plain() {
		if _, _, err := c.Files.Read(); err != nil {
			return nil, fmt.Errorf("etcd: %w", err)
		}
		var err error
		if cfg.TLS, err = Info(c.Files).ClientConfig(); err != nil {
			return nil, fmt.Errorf("etcd: %w", err)
		}
	}
	connect := func(endpoints ...string) (*clientv3.Client, error) {
		cfg.Endpoints = endpoints
		client, err := clientv3.New(cfg)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("etcd: %w", err), s.Close())
		}
		return client, nil
	}
	var urls []string
	for _, e := range c.Endpoints {
		urls = append(urls, URL(e, c.Files))
		client, err := connect(URL(e, c.Files))
		if err != nil {
			return nil, err
		}
		s.members.each = append(s.members.each, client)
	}
	var err error
	s.client, err = connect(urls...)
	return s, err
}

// Close ends the connections; calls that are under way fail.
func (s *Store) Close() (err error) {
	for _, c := range append(slices.Clone(s.members.each), s.client) {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

type reason struct{}

// call makes calls of etcd's client, and says which cluster failed and why the last attempt did:
// the client tries again until its deadline, and then reports that alone.
func (s *Store) call(ctx context.Context, f func(context.Context) error) error {
	var why atomic.Pointer[error] // attempts may be under way at several members
	err := f(context.WithValue(ctx, reason{}, &why))
	if err == nil {
		return nil
	}
	w, late := why.Load(), errors.Is(err, context.DeadlineExceeded)
	err = failure.Plain(err)
	if w != nil && late {
		err = fmt.Errorf("%w: %w", err, *w)
	}
	return fmt.Errorf("etcd at %s: %w", strings.Join(s.endpoints, ", "), err)
}

// note keeps why an attempt failed, unless that is just the deadline. A server that refuses the client's
// certificate ends the connection after the client's handshake (RFC 8446, section 4.4.2.4): what the client
// writes then may fail before it has read the alert.
func (s *Store) note(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if why, ok := ctx.Value(reason{}).(*atomic.Pointer[error]); ok && err != nil && !strings.HasPrefix(status.Convert(err).Message(), context.DeadlineExceeded.Error()) {
		text := failure.Said(err)
		switch broken := strings.HasSuffix(text, syscall.EPIPE.Error()) || strings.HasSuffix(text, syscall.ECONNRESET.Error()); {
		case s.files.Plain() && (broken || strings.HasSuffix(text, io.EOF.Error())):
			text += ": it may speak TLS, for which this host has no certificate"
		case broken:
			text += ": it may not trust this host's certificate"
		}
		last := errors.New(text)
		why.Store(&last)
	}
	return err
}

// Get implements [osdmap.KV].
func (s *Store) Get(ctx context.Context, prefix string) ([]osdmap.Pair, int64, error) {
	var r *clientv3.GetResponse
	err := s.call(ctx, func(ctx context.Context) (err error) {
		r, err = ask(ctx, &s.members, func(ctx context.Context, c *clientv3.Client) (*clientv3.GetResponse, error) {
			return c.Get(ctx, s.prefix+prefix, clientv3.WithPrefix())
		})
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	pairs := make([]osdmap.Pair, len(r.Kvs))
	for i, kv := range r.Kvs {
		pairs[i] = osdmap.Pair{Key: strings.TrimPrefix(string(kv.Key), s.prefix), Value: kv.Value, Revision: kv.ModRevision}
	}
	return pairs, r.Header.Revision, nil
}

// Commit implements [osdmap.KV].
func (s *Store) Commit(ctx context.Context, changes ...osdmap.Change) (bool, error) {
	var ifs []clientv3.Cmp
	var thens []clientv3.Op
	for _, c := range changes {
		key := s.prefix + c.Key
		ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(key), "=", c.Revision))
		if c.Value == nil {
			thens = append(thens, clientv3.OpDelete(key))
		} else {
			thens = append(thens, clientv3.OpPut(key, string(c.Value)))
		}
	}
	var r *clientv3.TxnResponse
	err := s.call(ctx, func(ctx context.Context) (err error) {
		r, err = ask(ctx, &s.members, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
			return c.Txn(ctx).If(ifs...).Then(thens...).Commit()
		})
		return err
	})
	if err != nil {
		return false, err
	}
	return r.Succeeded, nil
}

// Wait implements [osdmap.KV].
func (s *Store) Wait(ctx context.Context, after int64) error {
	return s.call(ctx, func(ctx context.Context) error { return s.wait(ctx, after) })
}

func (s *Store) wait(ctx context.Context, after int64) error {
	// A member without a leader has to say so, instead of saying nothing.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for r := range s.client.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1), clientv3.WithKeysOnly()) {
		if err := r.Err(); errors.Is(err, rpctypes.ErrCompacted) {
			return nil
		} else if err != nil {
			return err
		}
		if len(r.Events) > 0 {
			return nil
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.New("the watch has ended")
}
