package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// errRejected: the peer closed the connection after the handshake.
var errRejected = errors.New("hung up after the handshake: it does not accept this host's certificate")

// Collect examines this host, its certificates, and which peers it can reach. Nothing is changed;
// the device is opened for a moment unless device is false.
func Collect(ctx context.Context, cfg *config.Config, device bool) Facts {
	f := Facts{Now: time.Now(), Config: cfg, Certificate: readCertificate(cfg), Host: lookAtHost(cfg.Socket), Disk: lookAtDisk(cfg.State)}
	f.Links = tryLinks(ctx, cfg)
	if device {
		f.Device = tryDevice(cfg)
	}
	return f
}

func readCertificate(cfg *config.Config) *Certificate {
	own := identity.Files(cfg.TLS)
	if own.Plain() {
		return nil
	}
	c := &Certificate{}
	if c.Own, c.Until, c.Err = own.Read(); c.Err != nil {
		return c
	}
	if list := certificates(own.Cert); len(list) > 0 {
		c.From = list[0].NotBefore
	}
	for _, ca := range certificates(own.CA) {
		if ca.NotAfter.After(c.CAUntil) {
			c.CAUntil = ca.NotAfter
		}
	}
	if i, err := os.Stat(own.Key); err == nil {
		c.KeyMode = i.Mode().Perm()
	}
	return c
}

// certificates reads the certificates of a PEM file, as far as possible.
func certificates(name string) (list []*x509.Certificate) {
	rest, _ := os.ReadFile(name) // identity has read the file and reported errors
	for {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			return list
		}
		if c, err := x509.ParseCertificate(b.Bytes); err == nil {
			list = append(list, c)
		}
	}
}

// tryLinks tries to reach all peers in the configuration, in parallel.
func tryLinks(ctx context.Context, cfg *config.Config) []Link {
	type aim struct {
		Link
		expect identity.Identity
	}
	aims := []aim{{Link{What: "this host's daemon", Address: cfg.Listen, Own: true}, identity.Identity{Role: identity.Host, Name: cfg.Name}}}
	for _, h := range cfg.Hosts {
		aims = append(aims, aim{Link{What: "daemon of host " + h.Name, Address: h.Daemon},
			identity.Identity{Role: identity.Host, Name: h.Name, Addrs: []netip.Addr{h.Address}}})
	}
	if s := cfg.Switch; s.Agent != "" {
		aims = append(aims, aim{Link{What: "agent of switch " + s.Name, Address: s.Agent}, identity.Identity{Role: identity.Switch, Name: s.Name}})
	}
	out := make([]Link, len(aims))
	var all sync.WaitGroup
	for i, a := range aims {
		all.Go(func() {
			out[i] = a.Link
			out[i].Err = reach(ctx, identity.Files(cfg.TLS), a.Address, a.expect)
		})
	}
	all.Wait()
	return out
}

// reach connects to a server, checks its identity by its certificate, and checks that it answers:
// only then does a client know that the server accepts its certificate, or none.
func reach(ctx context.Context, own identity.Files, address string, expect identity.Identity) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	creds, err := own.Client(expect)
	if err != nil {
		return err
	}
	secure, _, err := creds.ClientHandshake(ctx, address, conn)
	if err != nil {
		return err
	}
	if end, ok := ctx.Deadline(); ok {
		if err := secure.SetReadDeadline(end); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(secure, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil { // and empty settings
		return err
	}
	if _, err := io.ReadFull(secure, make([]byte, 1)); err != nil {
		if errors.Is(err, identity.ErrWantsTLS) {
			return err
		}
		if ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("is silent: %w", err)
		}
		if own.Plain() {
			return fmt.Errorf("hung up: %w", err)
		}
		return fmt.Errorf("%w: %w", errRejected, err)
	}
	return nil
}

// tryDevice opens the device and closes it, if it can reach the other hosts.
func tryDevice(cfg *config.Config) *Device {
	if err := qp.Check(cfg.Device, cfg.Peers()...); err != nil {
		return &Device{Err: err}
	}
	dev, err := qp.Open(cfg.Device)
	if err != nil {
		return &Device{Err: err}
	}
	return &Device{Attr: dev.Attr(), Err: dev.Close()}
}
