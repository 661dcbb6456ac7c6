// Package agents connects switchctl to switch agents: addresses, connections with identity, error
// messages, and finding agents through others.
//
// Agents are not trusted: control characters are removed from their texts, and the search for more
// agents always ends.
package agents

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// DefaultAddress is the default address of an agent.
const DefaultAddress = "127.0.0.1:" + defaultPort

const defaultPort = "9560"

// An Address is where an agent listens, and optionally the name of its switch.
type Address struct {
	Switch   string // empty: any
	HostPort string
}

// ParseAddress parses [SWITCH=]HOST[:PORT]. The default port is 9560; an IPv6 address with a port
// is in brackets.
func ParseAddress(s string) (Address, error) {
	bad := func(why string) (Address, error) {
		return Address{}, fmt.Errorf("%q: %s; an agent's address is [SWITCH=]HOST:PORT, such as 192.0.2.1:9560 or torA=192.0.2.1:9560", s, why)
	}
	var a Address
	rest := s
	if name, after, ok := strings.Cut(s, "="); ok {
		if name == "" {
			return bad("there is no switch before the =")
		}
		a.Switch, rest = name, after
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(rest, "["), "]"), defaultPort
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return bad("it has too many colons")
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return bad(fmt.Sprintf("the port %q is not one from 1 to 65535", port))
	}
	if host == "" || strings.ContainsAny(host, "/ \t[]") {
		return bad(fmt.Sprintf("%q is not a host", host))
	}
	a.HostPort = net.JoinHostPort(host, port)
	return a, nil
}

// Options say how to connect to agents.
type Options struct {
	TLS     identity.Files
	Timeout time.Duration // of each call
}

// A Fleet holds connections to agents, one per address. It is safe for concurrent use. Close it at
// the end.
type Fleet struct {
	options Options
	claim   identity.Identity

	mu     sync.Mutex
	agents map[string]*Agent
}

// NewFleet returns a fleet without connections.
func NewFleet(o Options) *Fleet {
	return &Fleet{options: o, claim: identity.Identity{Role: identity.Admin, Name: userName()}, agents: map[string]*Agent{}}
}

// userName returns the caller, for the agent's log.
func userName() string {
	name := os.Getenv("USER")
	if _, err := identity.Parse("admin:" + name); err != nil {
		return "switchctl"
	}
	return name
}

// Close closes all connections.
func (f *Fleet) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.agents {
		_ = a.conn.Close()
	}
	clear(f.agents)
}

// An Agent is a connection to an agent, which is made when it is first needed. Calls end after the
// fleet's Timeout.
type Agent struct {
	grouptree.Agent
	Address Address
	// Silent is why the agent did not answer Discover; nil: it did, or was not asked. It costs a timeout to ask it again.
	Silent error
	conn   *grpc.ClientConn
}

// Agent returns the agent at an address. Errors are about the TLS files only.
func (f *Fleet) Agent(addr Address) (*Agent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.agents[addr.HostPort]; a != nil {
		return a, nil
	}
	creds, err := f.options.TLS.Client(identity.Identity{Role: identity.Switch, Name: addr.Switch})
	if err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key, --tls-ca: %w", err)
	}
	a := &Agent{Address: addr}
	a.conn, err = grpc.NewClient("passthrough:///"+addr.HostPort,
		grpc.WithTransportCredentials(creds),
		identity.Claim(f.claim),
		grpc.WithUserAgent("switchctl"),
		grpc.WithNoProxy(),
		cli.Callee{Name: "agent " + addr.HostPort, Kind: "a switch agent", Timeout: f.options.Timeout, Words: words,
			Unavailable: func(said string) string { return unavailable(said, f.options) }}.Intercept(),
	)
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", addr.HostPort, err)
	}
	a.Status, a.Groups = mcrdmav1.NewSwitchStatusClient(a.conn), mcrdmav1.NewSwitchGroupsClient(a.conn)
	f.agents[addr.HostPort] = a
	return a, nil
}
