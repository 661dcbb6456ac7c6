package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/internal/durable"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// checkCertificate reports whether others accept this host now, and this host others.
func checkCertificate(cfg *config.Config) error {
	own := identity.Identity{Role: identity.Host, Name: cfg.Name}
	if m := cfg.Member(); m != nil {
		for _, at := range []string{m.Client, m.Peer} {
			if a, err := netip.ParseAddrPort(at); err == nil && !a.Addr().IsUnspecified() {
				own.Addrs = append(own.Addrs, a.Addr())
			}
		}
	}
	if err := files(cfg).Accepted(own); err != nil && !errors.Is(err, identity.ErrSoon) {
		return fmt.Errorf("tls: %w", err)
	}
	if _, _, err := (identity.Files{Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, CA: cfg.TLS.Clients}).Read(); err != nil {
		return fmt.Errorf("tls.clients: %w", err)
	}
	return nil
}

// fewMembers says that an even number of etcd members tolerates no more losses than one fewer; "":
// no problem.
func fewMembers(cfg *config.Config) string {
	switch n := len(cfg.Etcd.Members); {
	case n == 2:
		return "two members of etcd: if one of them is lost there is no majority, so this is no safer than one: run three"
	case n > 0 && n%2 == 0:
		return fmt.Sprintf("%d members of etcd: no more of them may be lost than of %d", n, n-1)
	}
	return ""
}

// writable returns why a directory, or the parent in which it will be made, is not writable, or what is in it.
func writable(dir string) error {
	denied := func(err error) error {
		return fmt.Errorf("data directory %s cannot be written by user %d: %w: correct data in the configuration, the owner of the directory, or how it is mounted", dir, os.Geteuid(), err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue // serve makes it
		}
		f, err := os.CreateTemp(at, ".mcblock-check-*")
		if err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
		if err != nil {
			return denied(err)
		}
		break
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error { // copies may be on other file systems
		if err == nil {
			err = unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) { // it is not made yet, or was just removed
			return nil
		}
		return denied(&fs.PathError{Op: "write", Path: path, Err: err})
	})
}

// addresses returns at which of its addresses this host cannot listen. If its mcblock runs, they are
// in use.
func addresses(cfg *config.Config, runs bool) error {
	all := [][2]string{{"listen", cfg.Listen}, {"nbd", cfg.NBD}, {"metrics", cfg.Metrics}}
	if m := cfg.Member(); m != nil {
		all = append(all, [2]string{"peer of etcd's member", m.Peer}, [2]string{"client of etcd's member", m.Client})
	}
	fields := map[string]string{"": ""} // by address
	var errs []error
	for _, x := range all {
		field, at := x[0], x[1]
		if first, taken := fields[at]; taken {
			if at != "" { // no metrics
				errs = append(errs, fmt.Errorf("%s and %s are both %s: each needs an address of its own", first, field, at))
			}
			continue
		}
		fields[at] = field
		l, err := net.Listen("tcp", at)
		if err == nil {
			defer func() { _ = l.Close() }() // at the end, as two of them may exclude each other
		} else if !runs || !errors.Is(err, syscall.EADDRINUSE) {
			errs = append(errs, grpcserver.CannotListen(field, at, err))
		}
	}
	return errors.Join(errs...)
}

// unique returns an error if etcd has another host of this one's name or number, and a note if etcd does not
// answer, as before any host has started.
func unique(ctx context.Context, cfg *config.Config) (note string, err error) {
	flags := clusterFlags{timeout: noteTime}
	err = flags.connect(ctx, cfg, func(ctx context.Context, c *cluster) error {
		s, away := c.Read(ctx)
		if away != nil {
			note = "; whether another host has its name or number is not known, as etcd does not answer"
		}
		for _, h := range s.Hosts {
			if err := (osdmap.Host{ID: core.ID(cfg.ID), Name: cfg.Name}).Beside(h); err != nil {
				return err
			}
		}
		return nil
	})
	return note, err
}

// runs reports whether a process uses a data directory.
func runs(data string) bool {
	f, err := os.Open(data) //nolint:gosec // from the configuration
	if err != nil {
		return false
	}
	return errors.Is(errors.Join(durable.Lock(f), f.Close()), durable.ErrLocked)
}
