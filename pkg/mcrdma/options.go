package mcrdma

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// DefaultSocket is the daemon's socket, unless Options.Socket or the environment variable
// MCRDMA_SOCKET names another.
const DefaultSocket = "/run/mcrdma/daemon.sock"

// Options configure a Client. The zero value suits most programs.
type Options struct {
	// Socket is the daemon's unix socket; empty: $MCRDMA_SOCKET, or DefaultSocket.
	Socket string
	// Device is the device to use; the caller closes it. If nil, Dial opens the one that the daemon
	// names, whose driver the program must import, and Client.Close closes it. If it cannot be
	// opened, hosts relay groups over TCP.
	Device qp.Device
	// Program names this application, for people; empty: the program's name.
	Program string
	// Wait is how long Dial waits for a daemon that is still starting; 0: 10 s; negative:
	// it does not wait.
	Wait time.Duration
	// Dial and Listen make connections with the daemon (network "unix") and with other
	// members of relayed groups ("tcp", with CloseWrite); nil: those of package net.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Listen func(network, address string) (net.Listener, error)
	// Logger logs background activity; nil: nothing is logged.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Socket = cmp.Or(o.Socket, os.Getenv("MCRDMA_SOCKET"), DefaultSocket)
	if o.Program == "" && len(os.Args) > 0 {
		o.Program = filepath.Base(os.Args[0])
	}
	o.Program = clipText(o.Program)
	o.Wait = cmp.Or(o.Wait, defaultWait)
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Listen == nil {
		o.Listen = net.Listen
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}
