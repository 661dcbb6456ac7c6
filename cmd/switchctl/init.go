package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/routing"
	"github.com/mcrdma/mcrdma/internal/strictyaml"
	"github.com/mcrdma/mcrdma/internal/switchagent/config"
	"github.com/mcrdma/mcrdma/internal/topology"
)

const initHelp = `Makes a configuration for the agent of a switch from a topology file (docs/topology.md):
its addresses, ports, hosts and neighbors. Read and change it; fields that it does not
have get their defaults. Routes come from the topology file itself; a comment says what to
write instead for BGP.

Agents are expected at port 9560 of their switches' addresses, as by
"cmd-daemon init --topology". If switch.crt, switch.key and ca.crt are in the directory of
the new file, where cmd-daemon init puts them, the agent uses TLS; otherwise it listens on
loopback only. An existing file is not overwritten.

With --local, all switches and agents of the topology run on this machine: each agent, and
the P4Runtime server of each switch, has its own port on loopback, and state files are
beside the configurations.

--reference prints a complete configuration with comments.`

// agentPort is the port of agents, unless they share a machine.
const agentPort = 9560

func initCommand() *cobra.Command {
	var from, to string
	var reference, local bool
	cmd := &cobra.Command{
		Use:   "init SWITCH --topology FILE [flags]",
		Short: "Make a configuration for a switch's agent",
		Long:  initHelp,
		Example: `  switchctl init torA --topology fabric.yaml
  switchctl init torA --topology fabric.yaml --write lab/torA/agent.yaml
  switchctl init torB --topology fabric.yaml --write lab/torB/agent.yaml --local
  switchctl init --reference`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case reference && (len(args)+len(from)+len(to) > 0 || local):
				return cli.Usagef("--reference goes alone")
			case !reference && (len(args) != 1 || from == ""):
				return cli.Usagef("name one switch, and the topology that it is in: switchctl init torA --topology fabric.yaml")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text := config.Reference
			if !reference {
				var err error
				if to == "" || filepath.IsAbs(to) { // the output may go anywhere, or is not where this is
					if from, err = filepath.Abs(from); err != nil {
						return err
					}
				}
				if text, err = starter(args[0], from, filepath.Dir(cmp.Or(to, ".")), local); err != nil {
					return err
				}
			}
			if to == "" {
				_, err := fmt.Fprint(cmd.OutOrStdout(), text)
				return err
			}
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // nothing in it is secret
				return err
			}
			f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // it holds no secret
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s is there already: remove it, or name another file with --write", to)
			} else if err != nil {
				return err
			}
			_, err = f.WriteString(text)
			if err = errors.Join(err, f.Close()); err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "made %s\n\nNext:\n  switchctl agent --config %[1]s --check\n  switchctl agent --config %[1]s   # beside its switch, which has P4Runtime at the address in p4runtime\n", to)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&from, "topology", "", "the topology `file` that the switch is in")
	cmd.Flags().StringVarP(&to, "write", "w", "", "write this `file`; default: to standard output")
	cmd.Flags().BoolVar(&local, "local", false, "all switches and agents of the topology run on this machine")
	cmd.Flags().BoolVar(&reference, "reference", false, "print a complete configuration with comments instead")
	cli.CompleteFile(cmd, "topology", "yaml", "yml", "json")
	cli.CompleteFile(cmd, "write", "yaml", "yml")
	return cmd
}

// starter returns a configuration for a switch of a topology file; dir is its directory. With
// local, the whole topology runs on this machine.
func starter(name, file, dir string, local bool) (string, error) {
	t, err := topology.Load(file)
	if err != nil {
		return "", err
	}
	n, err := t.Switch(name)
	if err != nil {
		var names []string
		for _, s := range t.Switches {
			names = append(names, s.Name)
		}
		return "", fmt.Errorf("%s: %w; it has %s", file, err, strings.Join(names, ", "))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# The agent of switch %s, from %s. Names of files count from this one.\n# All that may be said here: \"switchctl init --reference\", or \"man switchctl-agent.yaml\" with the package.\n\nname: %s\n", name, filepath.Base(file), strictyaml.Scalar(name))
	fmt.Fprintf(&b, "address: %v   # of the switch as a router\n", routerAddress(n))
	i := slices.IndexFunc(t.Switches, func(s topology.Switch) bool { return s.Name == name })
	fmt.Fprintf(&b, "mac: %q\n", cmp.Or(n.MAC, routing.MAC{2, 0, 0, byte(i >> 8), byte(i), 0})) //nolint:gosec // i is less than the lines of a file
	if len(n.Switch.Prefixes) > 0 {
		fmt.Fprintf(&b, "prefixes: %v   # of its hosts\n", list(n.Switch.Prefixes))
	}
	if !n.Switch.Programmable {
		b.WriteString("programmable: false   # it forwards, and takes no part in groups\n")
	}
	listen, p4runtime, state := netip.AddrPortFrom(routerAddress(n), agentPort), "127.0.0.1:9559", "/var/lib/mcrdma/"+name+".db"
	if local {
		own, sw := n.Local()
		listen, p4runtime, state = own, sw.String(), name+".db"
	}
	fmt.Fprintf(&b, "\np4runtime: {target: %s}   # the switch\n", p4runtime)
	switch _, err := os.Stat(filepath.Join(dir, "switch.crt")); {
	case err == nil:
		fmt.Fprintf(&b, "listen: %q   # for hosts' daemons and other agents\ntls: {cert: switch.crt, key: switch.key, ca: ca.crt}\n", listen)
	case local:
		fmt.Fprintf(&b, "listen: %q   # for hosts' daemons and other agents\n", listen)
	default:
		fmt.Fprintf(&b, "listen: 127.0.0.1:9560   # for hosts' daemons and other agents; with TLS %q\n# tls: {cert: switch.crt, key: switch.key, ca: ca.crt}   # \"cmd-daemon init\" makes them\n", listen)
	}
	fmt.Fprintf(&b, "state: %s\n", state)
	if rel, err := filepath.Rel(dir, file); err == nil && !filepath.IsAbs(file) {
		file = rel
	}
	fmt.Fprintf(&b, "routing: {source: static, topology: %q}   # which has to be there, too\n", file)
	b.WriteString("# routing: {source: bgp, bgp: {asn: 4200000001}}   # instead; each neighbor below then has bgp: {address: …, asn: …}\n")
	starterPorts(&b, n)
	starterSwitches(&b, t, n, local)
	if _, err := config.Parse([]byte(b.String()), name); err != nil {
		return "", fmt.Errorf("%s does not say enough of switch %s: %w", file, name, err)
	}
	return b.String(), nil
}

// routerAddress returns the switch's own address, or that of one of its links.
func routerAddress(n *topology.Node) netip.Addr {
	if n.Address.IsValid() || len(n.Ports) == 0 {
		return n.Address
	}
	return n.Ports[0].Near.Address
}

// list returns a list in YAML.
func list[T fmt.Stringer](all []T) string {
	var texts []string
	for _, x := range all {
		texts = append(texts, x.String())
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// starterPorts writes the switch's ports, and the hosts with known MACs.
func starterPorts(b *strings.Builder, n *topology.Node) {
	b.WriteString("\nports:\n")
	var hosts []string
	for _, p := range n.Ports {
		switch {
		case p.To.Switch != nil && p.To.Switch.Programmable && n.Switch.Programmable:
			fmt.Fprintf(b, "  - {port: %d, to: %s}\n", p.Near.Port, strictyaml.Scalar(p.To.Name))
		case p.To.Switch != nil && p.Far.MAC != (routing.MAC{}):
			fmt.Fprintf(b, "  - {port: %d, to: %s, hello: false, peer_mac: %q}   # no agent of ours answers hellos there\n", p.Near.Port, strictyaml.Scalar(p.To.Name), p.Far.MAC)
		case p.To.Switch != nil:
			fmt.Fprintf(b, "  - {port: %d, to: %s}   # if no agent of ours answers hellos there: hello: false, and peer_mac or an address\n", p.Near.Port, strictyaml.Scalar(p.To.Name))
		default:
			fmt.Fprintf(b, "  - {port: %d}   # %s\n", p.Near.Port, p.To.Name)
			if p.To.MAC != (routing.MAC{}) {
				hosts = append(hosts, fmt.Sprintf("  - {address: %v, mac: %q, port: %d}   # %s\n", p.To.Address, p.To.MAC, p.Near.Port, p.To.Name))
			}
		}
	}
	if len(hosts) > 0 {
		fmt.Fprintf(b, "\nhosts:   # others are learned by ARP\n%s", strings.Join(hosts, ""))
	}
}

// starterSwitches writes the neighbors, and the switches behind them that may get packets of
// groups.
func starterSwitches(b *strings.Builder, t *topology.Topology, n *topology.Node, local bool) {
	head := "\nswitches:   # the others\n"
	for _, o := range t.Nodes() {
		near := slices.ContainsFunc(n.Ports, func(p topology.Port) bool { return p.To == o })
		if o.Switch == nil || o == n || !near && !o.Switch.Programmable {
			continue
		}
		fmt.Fprintf(b, "%s  - {name: %s", head, strictyaml.Scalar(o.Name))
		head = ""
		if o.Switch.Programmable {
			agent, _ := o.Local()
			if !local {
				agent = netip.AddrPortFrom(routerAddress(o), agentPort)
			}
			fmt.Fprintf(b, ", agent: %q", agent)
		} else {
			b.WriteString(", programmable: false")
		}
		if o.Address.IsValid() {
			fmt.Fprintf(b, ", addresses: [%v]", o.Address)
		}
		if len(o.Switch.Prefixes) > 0 && o.Switch.Programmable {
			fmt.Fprintf(b, ", prefixes: %v", list(o.Switch.Prefixes))
		}
		b.WriteString("}\n")
	}
}
