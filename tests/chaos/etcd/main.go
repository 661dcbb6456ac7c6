// Command etcd is a member of etcd, like the one in mcblock, in its own process. It prints all maps
// of volumes that etcd has had, and new ones, each as a line of JSON.
//
//	etcd member NAME DIR CLIENT CERT KEY CA NAME=PEER…
//	etcd maps CERT KEY CA CLIENT…
//	etcd watched SOCKET PROGRAM …     becomes that program, whose syncs are watched
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/embedded"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
	"github.com/mcrdma/mcrdma/tests/chaos/orders"
	"github.com/mcrdma/mcrdma/tests/chaos/watch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	err := errors.New("want member, maps or watched")
	switch args := os.Args[1:]; {
	case len(args) > 6 && args[0] == "member":
		err = member(ctx, args[1:])
	case len(args) > 4 && args[0] == "maps":
		err = maps(ctx, args[1:])
	case len(args) > 2 && args[0] == orders.Watched:
		err = watch.Exec(args[1], args[2:])
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1) //nolint:gocritic // nothing is deferred but stop
	}
}

// election is the election timeout of mcblock.
const election = 120 * time.Millisecond

func member(ctx context.Context, args []string) error {
	c := embedded.Config{Name: args[0], Dir: args[1], Client: args[2], Files: identity.Files{Cert: args[3], Key: args[4], CA: args[5]},
		Members: map[string]string{}, Election: election, Log: slog.Default()}
	for _, m := range args[6:] {
		name, peer, _ := strings.Cut(m, "=")
		c.Members[name] = peer
	}
	m, err := embedded.Start(c)
	if err != nil {
		return err
	}
	defer m.Close()
	fmt.Println("ready")
	select {
	case <-ctx.Done():
		return nil
	case err := <-m.Err():
		return err
	}
}

// maps follows all changes, from the first one that etcd still has.
func maps(ctx context.Context, args []string) error {
	info := etcd.Info(identity.Files{Cert: args[0], Key: args[1], CA: args[2]})
	tls, err := info.ClientConfig()
	if err != nil {
		return err
	}
	cfg := clientv3.Config{TLS: tls, Logger: zap.NewNop(), DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: time.Second}
	for _, e := range args[3:] {
		cfg.Endpoints = append(cfg.Endpoints, "https://"+e)
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	next := int64(1)
	out := json.NewEncoder(os.Stdout)
	for ctx.Err() == nil {
		for r := range c.Watch(ctx, etcd.DefaultPrefix+"volumes/", clientv3.WithPrefix(), clientv3.WithRev(next)) {
			for _, e := range r.Events {
				var record struct {
					Map core.Map `json:"map"`
				}
				if err := json.Unmarshal(e.Kv.Value, &record); err != nil {
					return fmt.Errorf("%s: %w", e.Kv.Key, err)
				}
				if err := out.Encode(record.Map); err != nil {
					return err
				}
				next = e.Kv.ModRevision + 1
			}
		}
	}
	return nil
}
