package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// A foreignFlag is a flag of bmv2's simple_switch_grpc that this switch accepts although it does
// not have the same effect.
type foreignFlag struct {
	name string
	bare bool   // takes no value
	note string // what the user must know; empty: no difference
	// refused: to ignore the flag would not be what the user asked for.
	refused bool
}

var foreignFlags = []foreignFlag{
	{name: "thrift-port", note: "there is no Thrift server; P4Runtime reads and writes everything, registers too"},
	{name: "notifications-addr", note: "digests and idle time-outs go to P4Runtime clients only"},
	{name: "nanolog", note: "there is no nanomsg event log; see --log-console"},
	{name: "debugger", bare: true, note: "there is no debugger"},
	{name: "debugger-addr", note: "there is no debugger"},
	{name: "dump-packet-data", note: "packets are not logged; --pcap writes them to files"},
	{name: "log-flush", bare: true}, // always done
	{name: "log-file-max-size", note: "the log file is not rotated; leave that to logrotate (copytruncate)"},
	{name: "log-file-max-files", note: "the log file is not rotated; leave that to logrotate (copytruncate)"},
	{name: "max-port-count"}, // all 512 can be used
	{name: "enable-swap", bare: true},
	{name: "disable-swap", bare: true, note: "the program can be replaced through P4Runtime all the same"},
	{name: "use-files", refused: true, note: "packets cannot come from files; replay them on a veth pair (tcpreplay)"},
	{name: "packet-in", refused: true, note: "packets cannot come over nanomsg; use a UDP tunnel as port (-i PORT@udp:LOCAL,REMOTE)"},
	{name: "dp-grpc-server-addr", refused: true, note: "packets cannot come over gRPC; use a UDP tunnel as port (-i PORT@udp:LOCAL,REMOTE)"},
	{name: "restore-state", refused: true, note: "state is not kept in files; have the controller write it through P4Runtime"},
}

// addForeignFlags makes the command accept these flags; its help does not have them.
func addForeignFlags(flags *pflag.FlagSet) {
	for _, f := range foreignFlags {
		flags.String(f.name, "", "")
		if f.bare {
			flags.Lookup(f.name).NoOptDefVal = "true"
		}
		flags.Lookup(f.name).Hidden = true
	}
}

// checkForeignFlags reports the effects that the given foreign flags do not have here.
func checkForeignFlags(flags *pflag.FlagSet, stderr io.Writer) error {
	for _, f := range foreignFlags {
		switch {
		case !flags.Changed(f.name):
		case f.refused:
			return cli.Usagef("--%s is not supported: %s", f.name, f.note)
		case f.note != "":
			fmt.Fprintf(stderr, "switchctl softswitch: note: --%s has no effect: %s\n", f.name, f.note)
		}
	}
	return nil
}

// softswitchArgs converts a command line for bmv2: flags after -- count as those before it, and
// --pcap may have its value in the next argument, or none. Other subcommands' arguments are
// unchanged.
func softswitchArgs(args []string) []string {
	if len(args) == 0 || args[0] != "softswitch" {
		return args
	}
	out := []string{args[0]}
	for rest := args[1:]; len(rest) > 0; rest = rest[1:] {
		switch a := rest[0]; {
		case a == "--":
		case a == "--pcap" && len(rest) > 1 && !strings.HasPrefix(rest[1], "-") && !strings.HasSuffix(rest[1], ".json"):
			out = append(out, a+"="+rest[1])
			rest = rest[1:]
		default:
			out = append(out, a)
		}
	}
	return out
}

// oneProgram checks the arguments that are not flags: at most the program.
func oneProgram(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return cli.Usagef("more than one program: %s", strings.Join(args, ", "))
	}
	return nil
}
