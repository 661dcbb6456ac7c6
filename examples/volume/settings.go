package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/internal/cmdline"
)

const usage = `volume [flags]

Runs a volume with three copies on this machine: an embedded switch, and three hosts,
each with its daemon and its mcblock, which is a process of its own; etcd runs in
those. NBD clients find the volume at the address of each host. The program shows
who is the primary and which hosts have all writes, and starts a host again that
has been killed. Nothing is installed, no privilege is needed, nothing is left.

Exit codes: 0, ended by Ctrl-C; 1, something failed; 2, wrong flags.
`

// settings are what the flags say.
type settings struct {
	mcblock  string
	nbd      netip.AddrPort // of h1; the others have the next ports
	size     int
	election time.Duration // of etcd; 0: mcblock's default
	verbose  bool
}

func parse(args []string, help io.Writer) (*settings, error) {
	s := &settings{size: 1 << 30}
	f := pflag.NewFlagSet("volume", pflag.ContinueOnError)
	nbd := f.String("nbd", "127.0.0.1:10809", "`address:port` at which clients find h1; h2 and h3 have the next two ports")
	f.Var((*cmdline.Size)(&s.size), "size", "`bytes` of the volume, such as 512M or 4G")
	f.StringVar(&s.mcblock, "mcblock", "", "the `program`; default: that beside this one, else that in $PATH")
	f.DurationVar(&s.election, "election", 0, "silence of etcd's leader after which another is chosen; longer, such as 1s, on a machine that is busy; default: mcblock's")
	f.BoolVar(&s.verbose, "verbose", false, "log what hosts and switches do, to standard error")
	if err := cmdline.Parse(f, usage, args, help); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, cmdline.Usagef("unexpected argument %q: there are flags only", f.Arg(0))
	}
	var err error
	if s.nbd, err = netip.ParseAddrPort(*nbd); err != nil || !s.nbd.Addr().IsLoopback() || s.nbd.Port() == 0 || s.nbd.Port() > 65533 {
		return nil, cmdline.Usagef("--nbd %q: want a loopback address and a port, as 127.0.0.1:10809", *nbd)
	}
	if s.mcblock == "" {
		s.mcblock, err = findMcblock()
	} else if _, err = exec.LookPath(s.mcblock); err != nil {
		err = cmdline.Usagef("--mcblock %s: %w: name the program that \"make volume\" builds as bin/mcblock, or leave it out", s.mcblock, errors.Unwrap(err))
	}
	return s, err
}

// free says which of the addresses for clients are taken.
func (s *settings) free() error {
	for i := range hosts {
		l, err := net.Listen("tcp", s.address(i))
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s, for clients of %s, is in use by another program, perhaps another \"make volume\": end that, or take three other ports by --nbd ADDRESS:PORT (make volume ARGS=\"--nbd %v:20809\")", s.address(i), hosts[i], s.nbd.Addr())
		}
		if err != nil {
			return fmt.Errorf("%s, for clients of %s: %w: take another address by --nbd", s.address(i), hosts[i], err)
		}
		_ = l.Close()
	}
	return nil
}

func findMcblock() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	for _, path := range []string{filepath.Join(filepath.Dir(own), "mcblock"), "mcblock"} {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", errors.New("there is no mcblock beside this program: \"make volume\" builds both, or name it with --mcblock")
}

// address is where clients find the host with this index.
func (s *settings) address(i int) string {
	return netip.AddrPortFrom(s.nbd.Addr(), s.nbd.Port()+uint16(i)).String() //nolint:gosec // parse checks it
}

// uri is the volume's, as NBD clients take it.
func (s *settings) uri(i int) string { return fmt.Sprintf("nbd://%s/%s", s.address(i), name) }
