package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/traffic"
)

// defaultGRPC is bmv2's port, but reachable from this machine only: P4Runtime
// without TLS lets any client that can connect control the switch.
const defaultGRPC = "127.0.0.1:9559"

// jsonVersion is the latest known version of bmv2's JSON format.
const jsonVersion = "2.23"

// softswitchOptions are the parsed command line.
type softswitchOptions struct {
	program string // file; empty: none yet
	p4info  string // file
	ports   []portSpec
	noP4    bool

	deviceID          uint64
	cpuPort, dropPort uint16
	grpc              string
	tls               tlsOptions

	traffic                traffic.Config
	rate                   traffic.Rate
	groups, nodes1, nodes2 int
	pcap                   string
	fastPath               string

	logConsole bool
	logFile    string
	logLevel   string
	readyFile  string
}

type tlsOptions struct {
	on, clientAuth bool
	ca, cert, key  string
}

const softswitchHelp = `Runs a P4 program (v1model, compiled by p4c for bmv2) between ports, under the
control of P4Runtime. The command line is that of bmv2's simple_switch_grpc.

A port is a network interface, which needs root or CAP_NET_RAW and
CAP_NET_ADMIN (with --fastpath=xdp also CAP_BPF and CAP_PERFMON), or a UDP tunnel
that carries one Ethernet frame in each datagram, which needs nothing:

  -i PORT@INTERFACE           -i 0@veth0
  -i PORT@udp:LOCAL,REMOTE    -i 1@udp:127.0.0.1:7000,127.0.0.1:7001

P4Runtime listens on 127.0.0.1:9559 unless --grpc-server-addr says otherwise.
Flags may stand before or behind "--"; bmv2's flags that mean nothing here are
accepted, with a note if that makes a difference.

Once everything works, a line that begins with "ready" goes to standard output;
--ready-file and systemd (Type=notify) are told too. SIGINT, SIGTERM and SIGHUP end the
switch; SIGUSR1 has it log its counters, and SIGUSR2 open its --log-file again, after
that was moved.`

const softswitchExamples = `  # an empty switch on two veth interfaces, for a controller to load
  switchctl softswitch --no-p4 -i 0@veth0 -i 1@veth2 --device-id 1

  # a program from the start, with its P4Info, and packet-in and packet-out
  switchctl softswitch basic.json --p4info basic.p4info.txtpb -i 1@s1-eth1 -i 2@s1-eth2 --cpu-port 510

  # as written for bmv2
  switchctl softswitch basic.json -i 1@s1-eth1 --log-console --thrift-port 9090 -- \
      --grpc-server-addr 0.0.0.0:50051 --cpu-port 255

  # without root: ports in UDP tunnels
  switchctl softswitch --no-p4 -i 0@udp:127.0.0.1:7000,127.0.0.1:7001 -i 1@udp:127.0.0.1:7002,127.0.0.1:7003

  # links of 100 Mbit/s, a buffer of 1 MB, and queue depths told in bytes, for experiments with ECN
  switchctl softswitch basic.json -i 1@s1-eth1 -i 2@s1-eth2 --queue-rate 100mbit --buffer 1000000 --queue-unit 64`

// softswitchCommand returns the subcommand.
func softswitchCommand() *cobra.Command {
	var f softswitchFlags
	cmd := &cobra.Command{
		Use:                   "softswitch [--no-p4 | PROGRAM.json] [-i PORT@INTERFACE]... [flags]",
		Short:                 "Run the embedded P4 switch",
		Long:                  softswitchHelp,
		Example:               softswitchExamples,
		Args:                  oneProgram,
		Version:               cli.Version(),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			stdout, stderr := cmd.OutOrStdout(), cmd.ErrOrStderr()
			if f.jsonVersion {
				_, err := fmt.Fprintln(stdout, jsonVersion)
				return err
			}
			if err := checkForeignFlags(cmd.Flags(), stderr); err != nil {
				return err
			}
			o, err := f.options(args, stderr)
			if err != nil {
				return err
			}
			hostload.Batch()
			return o.serve(cmd.Context(), stdout, stderr)
		},
	}
	f.add(cmd)
	return cmd
}

// softswitchFlags are the flags of the command line.
type softswitchFlags struct {
	softswitchOptions
	interfaces        []string
	cpuPort, dropPort uint
	rate              string
	jsonVersion       bool
}

func (f *softswitchFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringArrayVarP(&f.interfaces, "interface", "i", nil, "attach a port: `PORT@INTERFACE` or PORT@udp:LOCAL,REMOTE; may be repeated")
	fs.BoolVar(&f.noP4, "no-p4", false, "start without a program; a controller loads one")
	fs.StringVar(&f.p4info, "p4info", "", "P4Info `file` of the program, as text or binary; without it a controller has to load the program again")
	fs.Uint64Var(&f.deviceID, "device-id", 0, "P4Runtime's device `id`")
	fs.StringVar(&f.grpc, "grpc-server-addr", defaultGRPC, "`address` of the P4Runtime server: HOST:PORT, or unix:PATH")
	fs.BoolVar(&f.tls.on, "grpc-server-ssl", false, "use TLS")
	fs.StringVar(&f.tls.cert, "grpc-server-cert", "", "the server's certificate, a PEM `file`")
	fs.StringVar(&f.tls.key, "grpc-server-key", "", "the server's key, a PEM `file`")
	fs.StringVar(&f.tls.ca, "grpc-server-cacert", "", "who signs clients' certificates, a PEM `file`")
	fs.BoolVar(&f.tls.clientAuth, "grpc-server-with-client-auth", false, "clients must have a certificate")
	fs.UintVar(&f.cpuPort, "cpu-port", 0, "`port` of packet-in and packet-out; 0: none")
	fs.UintVar(&f.dropPort, "drop-port", softswitch.DefaultDropPort, "`port` that stands for dropping a packet")
	fs.StringVar(&f.rate, "queue-rate", "0", "`rate` at which each port sends, such as 100mbit, 2.5gbit or 15kpps; 0: as fast as it can")
	fs.IntVar(&f.traffic.Memory.Shared, "buffer", traffic.DefaultShared, "`bytes` of packets that wait at all ports together; a queue gets as many as are free")
	fs.IntVar(&f.traffic.Classes, "priority-queues", traffic.DefaultClasses, "`queues` of each port; standard_metadata.priority chooses one, and the highest is sent first")
	fs.IntVar(&f.traffic.Unit, "queue-unit", 0, "`bytes` that one step of enq_qdepth and deq_qdepth stands for; 0: they count packets")
	fs.IntVar(&f.groups, "max-mc-groups", 0, "most multicast `groups`; 0: "+fmt.Sprint(pre.DefaultGroups))
	fs.IntVar(&f.nodes1, "max-l1-entries", 0, "most `replicas` in all multicast groups, if more than "+fmt.Sprint(pre.DefaultReplicas))
	fs.IntVar(&f.nodes2, "max-l2-entries", 0, "likewise `replicas`; the larger one counts")
	fs.StringVar(&f.pcap, "pcap", "", "write each port's packets to NAME_in.pcap and NAME_out.pcap in a `directory`, by default the present one")
	fs.Lookup("pcap").NoOptDefVal = "."
	fs.StringVar(&f.fastPath, "fastpath", fastOff, "`where` packets are processed: off: all here; xdp: what is hot in the kernel, or not at all; auto: likewise if the kernel and all ports can, else here")
	fs.BoolVar(&f.logConsole, "log-console", false, "log in detail, the program's log_msg() included")
	fs.StringVar(&f.logFile, "log-file", "", "likewise, but to a `file`")
	fs.StringVarP(&f.logLevel, "log-level", "L", "", "lowest `level` that is logged: trace, debug, info, warn, error or off; default info, or debug with one of the two flags before")
	fs.StringVar(&f.readyFile, "ready-file", "", "`file` to make once the switch is ready; it holds P4Runtime's address and is removed at the end")
	fs.BoolVar(&f.jsonVersion, "json-version", false, "print the version of bmv2's JSON format that is read, and exit")
	fs.BoolP("help", "h", false, "print this help")
	fs.BoolP("version", "v", false, "print the version")
	addForeignFlags(fs)
}

// options checks the flags. Errors are usage errors.
func (f *softswitchFlags) options(args []string, stderr io.Writer) (o softswitchOptions, err error) {
	o = f.softswitchOptions
	if len(args) > 0 {
		o.program = args[0]
	}
	if o.ports, err = parsePorts(f.interfaces); err != nil {
		return o, cli.Usage(err)
	}
	if o.rate, err = traffic.ParseRate(f.rate); err != nil {
		return o, cli.Usagef("--queue-rate: %w", err)
	}
	o.cpuPort, o.dropPort = uint16(min(f.cpuPort, 1<<16-1)), uint16(min(f.dropPort, 1<<16-1))
	switch {
	case o.noP4 && o.program != "":
		fmt.Fprintf(stderr, "switchctl softswitch: note: %s is ignored because of --no-p4\n", o.program)
		o.program, o.p4info = "", ""
	case o.noP4 && o.p4info != "":
		return o, cli.Usagef("--p4info needs a program, and --no-p4 is given")
	case !o.noP4 && o.program == "":
		return o, cli.Usagef("no program: name p4c's JSON file, or give --no-p4 if a controller will load one")
	}
	switch {
	case o.traffic.Memory.Shared < 1 || o.traffic.Memory.Shared > traffic.MaxShared:
		return o, cli.Usagef("--buffer %d: want 1 to %d bytes, such as %d", o.traffic.Memory.Shared, int64(traffic.MaxShared), traffic.DefaultShared)
	case o.traffic.Classes < 1 || o.traffic.Classes > traffic.MaxClasses:
		return o, cli.Usagef("--priority-queues %d: a port has 1 to %d", o.traffic.Classes, traffic.MaxClasses)
	case o.traffic.Unit < 0 || o.traffic.Unit > traffic.MaxUnit:
		return o, cli.Usagef("--queue-unit %d: want 1 to %d bytes, such as 64, or 0 for packets", o.traffic.Unit, traffic.MaxUnit)
	case o.cpuPort > pre.MaxPort:
		return o, cli.Usagef("--cpu-port %d: ports are 1 to %d, and 0 is for none", f.cpuPort, pre.MaxPort)
	case o.dropPort > pre.MaxPort || o.dropPort == 0:
		return o, cli.Usagef("--drop-port %d: it is one from 1 to %d", f.dropPort, pre.MaxPort)
	case o.cpuPort == o.dropPort:
		return o, cli.Usagef("--cpu-port %d is the drop port too; choose another, such as 510", f.cpuPort)
	case o.groups < 0 || o.groups > pre.MaxGroup:
		return o, cli.Usagef("--max-mc-groups %d: want 1 to %d, or 0 for the default", o.groups, pre.MaxGroup)
	case o.nodes1 < 0 || o.nodes2 < 0:
		return o, cli.Usagef("--max-l1-entries and --max-l2-entries cannot be negative")
	}
	if err := o.checkFastPath(stderr); err != nil {
		return o, err
	}
	for _, p := range o.ports {
		if p.number == o.dropPort || p.number == o.cpuPort && o.cpuPort != 0 {
			return o, cli.Usagef("--interface: port %d is the CPU port or the drop port; see --cpu-port and --drop-port", p.number)
		}
	}
	if err := o.tls.check(stderr); err != nil {
		return o, err
	}
	return o, o.checkLogging()
}

func (t *tlsOptions) check(stderr io.Writer) error {
	var given []string
	for _, f := range [...]struct {
		name  string
		given bool
	}{{"--grpc-server-cert", t.cert != ""}, {"--grpc-server-key", t.key != ""}, {"--grpc-server-cacert", t.ca != ""},
		{"--grpc-server-with-client-auth", t.clientAuth}} {
		if f.given {
			given = append(given, f.name)
		}
	}
	switch {
	case !t.on && len(given) > 0:
		// To continue without TLS would leave the switch unprotected.
		return cli.Usagef("%s: TLS is off; switch it on with --grpc-server-ssl", strings.Join(given, ", "))
	case !t.on:
		return nil
	case t.cert == "" || t.key == "":
		return cli.Usagef("--grpc-server-ssl takes --grpc-server-cert and --grpc-server-key")
	case t.clientAuth && t.ca == "":
		return cli.Usagef("--grpc-server-with-client-auth takes --grpc-server-cacert, to check certificates against")
	case !t.clientAuth && t.ca != "":
		fmt.Fprintln(stderr, "switchctl softswitch: note: a client may do without certificate; --grpc-server-with-client-auth demands one")
	}
	return nil
}
