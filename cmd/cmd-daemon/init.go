package main

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/cmd-daemon/internal/lab"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/topology"
)

const initHelp = `Makes a CA, certificates, and a working daemon configuration for each host of a small
lab. Each host has its own directory in DIR, to be copied to the host as a whole.

A switch is given with the address of its agent and the hosts behind it; a switch
without hosts has all remaining hosts behind it. Its agent gets a certificate. Without
switches, hosts relay. An administrator's certificate is for switchctl.

With --topology, hosts and switches are those of a topology file (docs/topology.md).
Agents are at port 9560 of their switches' addresses, unless --switch NAME=AGENT says
otherwise.

Nothing is overwritten. --add adds hosts, switches and administrators to an existing
lab, and the new hosts to the configurations of the others. --renew replaces all
certificates.

If all addresses are loopback addresses, or with --local, sockets and state files are
within DIR, so that all the daemons can run on this machine. With --topology, agents
are then on loopback, too, at the ports that "switchctl init --local" uses.`

// initOptions are the flags of init.
type initOptions struct {
	reference               bool
	hosts, switches, admins []string
	topology                string
	add, renew, local       bool
	days                    int
}

func initCommand() *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init DIR --host NAME=ADDRESS… [flags]",
		Short: "Make certificates and configurations for a lab",
		Long:  initHelp,
		Example: `  cmd-daemon init lab --host h1=10.1.0.11 --host h2=10.1.0.12 --host h3=10.2.0.11 \
      --switch torA=192.0.2.1:9560,h1,h2 --switch torB=192.0.2.2:9560,h3 --admin me
  cmd-daemon init lab --add --host h4=10.2.0.12 --switch torB=192.0.2.2:9560,h4
  cmd-daemon init lab --topology fabric.yaml --admin me
  cmd-daemon init lab --renew
  cmd-daemon init --reference`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.reference {
				return cli.NoArgs(cmd, args)
			}
			return cli.ExactArg("one directory for the lab")(cmd, args)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.reference {
				_, err := fmt.Fprint(cmd.OutOrStdout(), config.Reference)
				return err
			}
			return o.run(args[0], cmd.Flags().Changed("local"), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.hosts, "host", nil, "a host, `NAME=ADDRESS` of its RDMA device; may be repeated")
	f.StringArrayVar(&o.switches, "switch", nil, "a switch, `NAME=AGENT[,HOST…]`: its agent's address and the hosts behind it; may be repeated")
	f.StringArrayVar(&o.admins, "admin", nil, "a certificate for an administrator of this `name`; may be repeated")
	f.StringVar(&o.topology, "topology", "", "the hosts and switches of a topology `file`")
	cli.CompleteFile(cmd, "topology", "yaml", "yml", "json")
	f.BoolVar(&o.add, "add", false, "add to an existing lab")
	f.BoolVar(&o.renew, "renew", false, "replace all certificates of an existing lab")
	f.BoolVar(&o.local, "local", false, "all daemons run on this machine; default: if all addresses are loopback addresses")
	f.BoolVar(&o.reference, "reference", false, "print a complete configuration of a daemon, with comments, instead")
	f.IntVar(&o.days, "days", 365, "how many `days` the certificates are valid")
	return cmd
}

// spec reads the flags. Errors are usage errors, except those of the topology file.
func (o *initOptions) spec(localSet bool) (spec lab.Spec, err error) {
	if o.days < 1 || o.days > 3650 {
		return spec, cli.Usagef("--days %d: want 1 to 3650", o.days)
	}
	spec.Valid = time.Duration(o.days) * 24 * time.Hour
	for _, s := range o.hosts {
		h, err := lab.ParseHost(s)
		if err != nil {
			return spec, cli.Usagef("--host %w", err)
		}
		spec.Hosts = append(spec.Hosts, h)
	}
	for _, s := range o.switches {
		w, err := lab.ParseSwitch(s)
		if err != nil {
			return spec, cli.Usagef("--switch %w", err)
		}
		spec.Switches = append(spec.Switches, w)
	}
	all := slices.Clone(spec.Hosts)
	var t *topology.Topology
	if o.topology != "" {
		if t, err = topology.Load(o.topology); err != nil {
			return spec, fmt.Errorf("--topology: %w", err)
		}
		for _, h := range t.Hosts {
			all = append(all, lab.Host{Name: h.Name, Address: h.Address})
		}
	}
	spec.Here = len(all) > 0 && !slices.ContainsFunc(all, func(h lab.Host) bool { return !h.Address.IsLoopback() })
	if localSet {
		spec.Here = o.local
	}
	if t != nil {
		if err := spec.Topology(t, spec.Here); err != nil {
			return spec, fmt.Errorf("--topology %s: %w", o.topology, err)
		}
	}
	for _, s := range o.admins {
		a, err := lab.ParseAdmin(s)
		if err != nil {
			return spec, cli.Usagef("--admin %w", err)
		}
		spec.Admins = append(spec.Admins, a)
	}
	return spec, nil
}

func (o *initOptions) run(dir string, localSet bool, w io.Writer) error {
	spec, err := o.spec(localSet)
	if err != nil {
		return err
	}
	nothing := len(spec.Hosts)+len(spec.Switches)+len(spec.Admins) == 0
	switch {
	case o.renew && (o.add || !nothing):
		return cli.Usagef("--renew goes without --add, --host, --switch, --topology and --admin: first the one, then the other")
	case o.renew:
		renewed, err := lab.Renew(dir, spec.Valid)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "renewed for %d days: %s\nCopy host.crt and host.key (switch.crt and switch.key) to their places; daemons and agents\ntake them up with the next connection.\n",
			o.days, strings.Join(renewed, ", "))
		return err
	case o.add && nothing:
		return cli.Usagef("--add what? name a --host, a --switch or an --admin")
	case !o.add && len(spec.Hosts) == 0:
		return cli.Usagef("a lab has hosts: --host NAME=ADDRESS, such as --host h1=10.1.0.11, or --topology FILE")
	}
	create := lab.Create
	if o.add {
		create = lab.Add
	}
	r, err := create(dir, spec)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, initText(dir, o.topology, spec, r))
	return err
}

// initText says what was made, and what to do next.
func initText(dir, topology string, spec lab.Spec, r *lab.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "made in %s: %s\n", dir, strings.Join(r.Made, ", "))
	if len(r.Changed) > 0 {
		fmt.Fprintf(&b, "added the new hosts to %s; restart those daemons\n", strings.Join(r.Changed, ", "))
	}
	for _, file := range slices.Sorted(maps.Keys(r.ByHand)) {
		fmt.Fprintf(&b, "%s has been changed: add to its hosts by hand\n%s", file, r.ByHand[file])
	}
	b.WriteString("\nNext:\n")
	switch {
	case len(spec.Hosts) == 0:
	case spec.Here:
		b.WriteString("- run the daemons, each in its own terminal or under a service manager:\n")
		for _, h := range spec.Hosts {
			fmt.Fprintf(&b, "    cmd-daemon run --config %s\n", filepath.Join(dir, h.Name, lab.Configuration))
		}
		fmt.Fprintf(&b, "- see how one does: cmd-daemon status --socket %s\n", filepath.Join(dir, spec.Hosts[0].Name, "daemon.sock"))
	default:
		b.WriteString("- copy each host's directory to it as /etc/mcrdma (host.key is for its daemon only), for example\n")
		for _, h := range spec.Hosts {
			fmt.Fprintf(&b, "    ssh root@%v mkdir -p /etc/mcrdma; scp -r %s/* root@%v:/etc/mcrdma\n", h.Address, filepath.Join(dir, h.Name), h.Address)
		}
		b.WriteString("- there, check it and run it (as user mcrdma: chown -R mcrdma: /etc/mcrdma first):\n    cmd-daemon doctor --config /etc/mcrdma/daemon.yaml\n    cmd-daemon run --config /etc/mcrdma/daemon.yaml\n")
	}
	for _, s := range spec.Switches {
		if topology != "" {
			fmt.Fprintf(&b, "- make a configuration for the agent of %[1]s, which listens at %[2]s:\n    switchctl init %[1]s --topology %[3]s --write %[4]s%[5]s\n",
				s.Name, s.Agent, topology, filepath.Join(dir, s.Name, "agent.yaml"), cli.Either(spec.Here, " --local", ""))
			continue
		}
		fmt.Fprintf(&b, "- in the configuration of the agent of %s (switchctl agent), which listens at %s, set\n    tls: {cert: switch.crt, key: switch.key, ca: ca.crt}   # of %s\n",
			s.Name, s.Agent, filepath.Join(dir, s.Name))
	}
	agent := ""
	if len(spec.Switches) > 0 {
		agent = fmt.Sprintf(" --agent %s --peers", spec.Switches[0].Agent)
	}
	for _, a := range spec.Admins {
		at := func(name string) string { return filepath.Join(dir, a, name) }
		fmt.Fprintf(&b, "- as %s: switchctl status%s --tls-cert %s --tls-key %s --tls-ca %s\n", a, agent, at("admin.crt"), at("admin.key"), at("ca.crt"))
	}
	fmt.Fprintf(&b, "- keep %s to yourself: its holder can act as any host\n", filepath.Join(dir, "ca.key"))
	return b.String()
}
