package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	daemon "github.com/mcrdma/mcrdma/internal/connmgr/config"
)

const initHelp = `Makes a configuration, mcblock.yaml, for each host of a lab that "cmd-daemon init" has
made in DIR: beside its daemon.yaml, with the same name, address and certificate.
Hosts are numbered in the order of their names. The first five run etcd, or the first
three if there are fewer hosts, or only the first.

Nothing is overwritten: in a lab to which "cmd-daemon init --add" has added hosts, only
those get a configuration, with the next numbers and the others' etcd members. If all
addresses are loopback addresses, data is within DIR.`

func initCommand() *cobra.Command {
	reference := false
	cmd := &cobra.Command{
		Use:     "init DIR",
		Short:   "Make configurations for the hosts of a lab",
		Long:    initHelp,
		Example: "  cmd-daemon init lab --host h1=10.1.0.11 --host h2=10.1.0.12 --host h3=10.1.0.13\n  mcblock init lab\n  mcblock init --reference",
		Args: func(cmd *cobra.Command, args []string) error {
			if reference {
				return cli.NoArgs(cmd, args)
			}
			return cli.ExactArg("the directory that cmd-daemon init has made")(cmd, args)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if reference {
				_, err := io.WriteString(cmd.OutOrStdout(), config.Reference)
				return err
			}
			return makeConfigs(args[0], cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&reference, "reference", false, "print a complete configuration, with comments, instead")
	return cmd
}

// configuration is the name of the file in a host's directory.
const configuration = "mcblock.yaml"

// makeConfigs makes all files, or none.
func makeConfigs(dir string, w io.Writer) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "daemon.yaml"))
	if err != nil || len(paths) == 0 {
		return errors.Join(fmt.Errorf("there is no host in %s: make them with \"cmd-daemon init\"", dir), err)
	}
	slices.Sort(paths)
	var hosts []*daemon.Config // without a configuration
	var made, etcd []string    // where to write it; the members of etcd
	last, here := uint32(0), true
	for _, p := range paths {
		h, err := daemon.Load(p)
		if err != nil {
			return err
		}
		here = here && h.Address.IsLoopback()
		path := filepath.Join(filepath.Dir(p), configuration)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			hosts, made = append(hosts, h), append(made, path)
			continue
		}
		was, err := config.Load(path)
		if err != nil {
			return fmt.Errorf("%s is there, nothing is overwritten, and it cannot be read: %w", path, err)
		}
		last = max(last, was.ID)
		etcd = each(was.Etcd.Members, func(m config.Member) string {
			return fmt.Sprintf("{name: %s, address: %v, peer: %q, client: %q}", m.Name, m.Address, m.Peer, m.Client)
		})
		if len(etcd) == 0 {
			return fmt.Errorf("%s has another etcd than the hosts' own (etcd.endpoints): write those of the new hosts as it is", path)
		}
	}
	if len(hosts) == 0 {
		return fmt.Errorf("all hosts in %s have their %s, and nothing is overwritten", dir, configuration)
	}
	if last == 0 {
		etcd = each(hosts[:members(len(hosts))], func(h *daemon.Config) string { return fmt.Sprintf("{name: %s, address: %v}", h.Name, h.Address) })
	}
	for i, h := range hosts {
		path := made[i]
		text := configText(h, last+uint32(i)+1, etcd, here) //nolint:gosec // few
		if _, err := config.Parse([]byte(text), path); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "made %s\n", path); err != nil {
			return err
		}
	}
	return nil
}

// members returns how many hosts run etcd: an odd number, so that a majority is left after the loss
// of one or two.
func members(hosts int) int {
	switch {
	case hosts >= 5:
		return 5
	case hosts >= 3:
		return 3
	}
	return 1
}

func configText(h *daemon.Config, id uint32, etcd []string, here bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# What else can be set: \"mcblock init --reference\", or \"man mcblock.yaml\" with the package.\nname: %s\nid: %d\naddress: %v\n", h.Name, id, h.Address)
	base := func(path string) string { return filepath.Base(path) } // next to this file
	if here {
		fmt.Fprintf(&b, "data: data\nsocket: %s\nnbd: %v\n", base(h.Socket), netip.AddrPortFrom(h.Address, config.DefaultNBDPort))
	}
	if h.TLS != (daemon.TLS{}) {
		fmt.Fprintf(&b, "tls: {cert: %s, key: %s, ca: %s}\n", base(h.TLS.Cert), base(h.TLS.Key), base(h.TLS.CA))
	}
	b.WriteString("etcd:\n  members:\n")
	for _, m := range etcd {
		fmt.Fprintf(&b, "    - %s\n", m)
	}
	return b.String()
}
