package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/journey"
	"github.com/mcrdma/mcrdma/internal/grouptree"
	"github.com/mcrdma/mcrdma/internal/pcapfile"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const captureHelp = `Captures one write of a group: each packet at each port of a switch, with a comment
that says whether and where it was copied, what was rewritten, how answers were
merged, and what was dropped and why. The file has the pcapng format; Wireshark shows
the comments, and so does "tshark -r FILE -T fields -e frame.comment".

There are two sources of packets:

  -i SWITCH:PORT@INTERFACE    a network interface, on this machine and in this network
                              namespace; it needs root or CAP_NET_RAW
  -i SWITCH:PORT@pcap:BASE    the files of "switchctl softswitch --pcap" for the port:
                              BASE_in.pcap and BASE_out.pcap

The first is for switches whose ports are interfaces: the embedded one, bmv2, or those
of Mininet. The second is for the embedded switch with ports in UDP tunnels. The agents
are asked for the group and its tree, as by "switchctl group show", so the group must
exist. The port of the sender's link is required; packets at ports that are not
captured are missing in the file, and comments say so.

At an embedded switch with --fastpath, the packets that the kernel processes are not
visible: to capture those, start it with --fastpath=off.

Interfaces are captured until one write has completed from its first packet on, or
until --for has passed. Of files the latest complete write is used. Only the counters
of a switch say why it dropped a packet (switchctl counters); comments describe what
is visible from outside.

The JSON has file; text, a summary; dropped, how many of the packets were lost or dropped; and
packets, each with us (microseconds since the first), switch, port, direction, packet and
comment.`

// captureOptions are the flags.
type captureOptions struct {
	file     string
	ports    []string
	patience time.Duration
	all      bool
	psn      string
}

func captureCommand() *cobra.Command {
	var o captureOptions
	cmd := &cobra.Command{
		Use:   "capture SOURCE/NUMBER|SOURCE/0xMC_ID -w FILE.pcapng -i SWITCH:PORT@WHERE... [flags]",
		Short: "Capture one write on its path through the switches, with comments",
		Long:  captureHelp,
		Example: `  switchctl capture 10.1.0.1/3 -w write.pcapng -i s1:1@s1-eth1 -i s1:2@s1-eth2 -i s1:3@s1-eth3
  switchctl capture 10.1.0.1/0x800001 -w write.pcapng -i tor:1@pcap:dir/udp:127.0.0.1:19601,127.0.0.1:19611
  tshark -r write.pcapng -T fields -e frame.interface_name -e frame.comment`,
		Args: cli.ExactArg("one group, " + groupForm),
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "write", "w", "", "the `file` to be written")
	f.StringArrayVarP(&o.ports, "interface", "i", nil, "a switch's port, `SWITCH:PORT@WHERE`; may be repeated")
	f.DurationVar(&o.patience, "for", 30*time.Second, "how long a write is waited for, a `time`")
	f.BoolVar(&o.all, "all", false, "all of the group's packets, until --for has passed or an interrupt")
	f.StringVar(&o.psn, "psn", "", "the write with this packet, a `number`")
	cli.CompleteFile(cmd, "write", "pcapng")
	out, client := cli.AddOutputFlag(cmd), addClientFlags(cmd, false, false)
	cmd.ValidArgsFunction = completeGroups(client)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		taps, choice, err := o.check()
		if err != nil {
			return err
		}
		ctx, stop := cli.Interruptible(cmd.Context())
		defer stop()
		tree, err := client.tree(ctx, args[0])
		if err != nil {
			return err
		}
		unseen := client.unseen(ctx, taps)
		if unseen != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "switchctl capture: note: %s\n", unseen)
		}
		j, err := o.capture(ctx, tree, taps, choice)
		if unseen != "" && errors.Is(err, journey.ErrNoWrite) {
			return fmt.Errorf("%w: %s", journey.ErrNoWrite, unseen)
		}
		if err != nil {
			return err
		}
		if err := writeJourney(o.file, j); err != nil {
			return err
		}
		return showJourney(cmd, out, o.file, j)
	}
	return cmd
}

// unseen says which switches, of those with watched interfaces, have packets that no capture sees,
// and what to do; "": none. It ignores agents that do not answer.
func (f *clientFlags) unseen(ctx context.Context, taps []tapSpec) string {
	all := *f
	all.peers = true
	fleet := all.fleet()
	defer fleet.Close()
	list, err := all.connect(ctx, fleet)
	if err != nil {
		return ""
	}
	answers, _ := askAll(list, func(a *agents.Agent) (*mcrdmav1.GetStatusResponse, error) { return getStatus(ctx, a, nil) })
	var names []string
	for _, a := range answers {
		name := a.got.GetName()
		if a.err == nil && strings.HasPrefix(a.got.GetP4Runtime().GetFastPath(), "xdp") && slices.ContainsFunc(taps, func(t tapSpec) bool { return t.sw == name && t.name != "" }) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("the ports of %s do not show the packets that the kernel processes (--fastpath): to capture them, start that switch with --fastpath=off", strings.Join(names, ", "))
}

// A tapSpec is a port, and the source of its packets.
type tapSpec struct {
	sw   string
	port uint32
	name string // of an interface, or empty
	base string // of capture files
}

func parseTap(s string) (t tapSpec, err error) {
	at, where, ok := strings.Cut(s, "@")
	sw, number, colon := strings.Cut(at, ":")
	if !ok || !colon || sw == "" {
		return t, cli.Usagef("--interface %q is not SWITCH:PORT@INTERFACE, such as s1:1@s1-eth1, nor SWITCH:PORT@pcap:BASE", s)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n > pre.MaxPort {
		return t, cli.Usagef("--interface %q: the port's number %q is not one from 0 to %d", s, number, pre.MaxPort)
	}
	t = tapSpec{sw: sw, port: uint32(n)}
	if base, ok := strings.CutPrefix(where, "pcap:"); ok && base != "" {
		t.base = base
		return t, nil
	}
	if where == "" || len(where) > maxIfName || strings.ContainsAny(where, "/: \t") {
		return t, cli.Usagef("--interface %q: %q cannot be a network interface's name", s, where)
	}
	t.name = where
	return t, nil
}

// check reads the flags. Errors are usage errors.
func (o *captureOptions) check() (taps []tapSpec, choice journey.Options, err error) {
	seen := map[string]bool{}
	for _, s := range o.ports {
		t, err := parseTap(s)
		if err != nil {
			return nil, choice, err
		}
		at := fmt.Sprint(t.sw, ":", t.port)
		if seen[at] {
			return nil, choice, cli.Usagef("--interface: port %s is named twice", at)
		}
		seen[at] = true
		taps = append(taps, t)
	}
	choice.All = o.all
	switch {
	case o.file == "":
		return nil, choice, cli.Usagef("--write FILE is needed")
	case len(taps) == 0:
		return nil, choice, cli.Usagef("--interface SWITCH:PORT@WHERE is needed, for each port that is to be watched; \"switchctl group show\" tells which are the group's")
	case o.patience <= 0:
		return nil, choice, cli.Usagef("--for %v: it is more than 0, such as 30s", o.patience)
	case o.all && o.psn != "":
		return nil, choice, cli.Usagef("--all and --psn exclude each other")
	}
	if o.psn != "" {
		n, err := strconv.ParseUint(o.psn, 0, 24)
		if err != nil {
			return nil, choice, cli.Usagef("--psn %q is not a number from 0 to %d", o.psn, rocev2.Mask24)
		}
		psn := rocev2.PSN(n)
		choice.PSN = &psn
	}
	choice.Latest = !slices.ContainsFunc(taps, func(t tapSpec) bool { return t.name != "" })
	return taps, choice, nil
}

const (
	maxCaptured = 1 << 18                // packets of the group
	straggling  = 300 * time.Millisecond // for packets after the completion
	looking     = 100 * time.Millisecond // between two checks
	settling    = 50 * time.Millisecond  // for answers that show the members' progress
)

// A capturer collects packets.
type capturer struct {
	explainer *journey.Explainer
	packets   []journey.Packet // of interfaces and files; of files, at least the last maxCaptured
	files     []*tailed
	live      <-chan journey.Packet // nil: there are no interfaces
	failed    <-chan error
}

// A tailed is a port with its packets in a file, those of one direction.
type tailed struct {
	tapSpec
	out  bool
	tail pcapfile.Tail
}

// capture collects packets until there is a write, and explains them.
func (o *captureOptions) capture(ctx context.Context, tree *grouptree.Tree, taps []tapSpec, choice journey.Options) (*journey.Journey, error) {
	explainer, err := journey.New(tree)
	if err != nil {
		return nil, err
	}
	c := &capturer{explainer: explainer}
	var interfaces []tapSpec
	for _, t := range taps {
		if explainer.Watch(t.sw, t.port); t.name != "" {
			interfaces = append(interfaces, t)
		} else {
			c.files = append(c.files, &tailed{t, false, pcapfile.Tail{Name: t.base + "_in.pcap"}}, &tailed{t, true, pcapfile.Tail{Name: t.base + "_out.pcap"}})
		}
	}
	if len(interfaces) > 0 {
		packets, failed, stop, err := openTaps(interfaces)
		if err != nil {
			return nil, err
		}
		defer stop()
		c.live, c.failed = packets, failed
		choice.After = time.Now().Add(settling)
	}
	if err := c.wait(ctx, o.patience, choice); err != nil {
		return nil, err
	}
	if _, err := c.read(); err != nil {
		return nil, err
	}
	return explainer.Explain(c.packets, choice)
}

// wait collects until the requested packets have arrived, or time runs out.
func (c *capturer) wait(ctx context.Context, patience time.Duration, choice journey.Options) error {
	end := time.Now().Add(patience)
	tick := time.NewTicker(looking)
	defer tick.Stop()
	for news := true; ; {
		select {
		case p := <-c.live:
			if c.explainer.Relevant(&p) {
				news, c.packets = true, append(c.packets, p)
			}
			if len(c.packets) >= maxCaptured {
				return nil
			}
		case err := <-c.failed:
			return err
		case <-tick.C:
			if time.Now().After(end) {
				return nil
			}
			more, err := c.read()
			if err != nil {
				return err
			}
			if news = news || more; !news || choice.All && c.live != nil {
				continue
			}
			news = false
			if _, err := c.explainer.Explain(c.packets, choice); err == nil {
				if choice.PSN == nil && !choice.All && c.live != nil {
					end = time.Now().Add(straggling)
					choice.All = true // collects everything else
					continue
				}
				return nil
			} else if !errors.Is(err, journey.ErrNoWrite) {
				return err
			}
		case <-ctx.Done(): // show what has arrived
			return nil
		}
	}
}

// read collects new packets from the files, and reports whether any belongs to the group.
func (c *capturer) read() (news bool, err error) {
	for _, t := range c.files {
		frames, err := t.tail.Read()
		if err != nil {
			return news, fmt.Errorf("port %d of switch %s: %w", t.port, t.sw, err)
		}
		for _, f := range frames {
			if p := (journey.Packet{Switch: t.sw, Port: t.port, Out: t.out, Time: f.Time, Data: f.Data}); c.explainer.Relevant(&p) {
				news, c.packets = true, append(c.packets, p)
			}
		}
	}
	if len(c.files) > 0 && len(c.packets) > 2*maxCaptured { // drop the oldest
		slices.SortStableFunc(c.packets, func(a, b journey.Packet) int { return a.Time.Compare(b.Time) })
		c.packets = slices.Clone(c.packets[len(c.packets)-maxCaptured:])
	}
	return news, nil
}

// writeJourney writes the file.
func writeJourney(name string, j *journey.Journey) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("--write: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var w *pcapgo.NgWriter // from the first interface on
	about := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "switchctl " + cli.Version(), Comment: j.Text}}
	interfaces := map[string]int{}
	for _, p := range j.Packets { // there is one at least
		at := fmt.Sprintf("%s port %d", p.Switch, p.Port)
		id, known := interfaces[at]
		if !known {
			i := pcapgo.NgInterface{Name: at, LinkType: layers.LinkTypeEthernet, TimestampResolution: 9}
			if w == nil {
				w, err = pcapgo.NewNgWriterInterface(f, i, about)
			} else {
				id, err = w.AddInterface(i)
			}
			if err != nil {
				return err
			}
			interfaces[at] = id
		}
		options := pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}}
		if p.Out {
			options.Flags.Direction = pcapgo.NgEpbFlagDirectionOutbound
		}
		if p.Comment != "" {
			options.Comments = []string{p.Comment}
		}
		ci := gopacket.CaptureInfo{Timestamp: p.Time, CaptureLength: len(p.Data), Length: len(p.Data), InterfaceIndex: id}
		if err := w.WritePacketWithOptions(ci, p.Data, options); err != nil {
			return err
		}
	}
	return w.Flush()
}

// A seenPacket is the JSON of a packet.
type seenPacket struct {
	Micros    float64 `json:"us"` // since the first
	Switch    string  `json:"switch"`
	Port      uint32  `json:"port"`
	Direction string  `json:"direction"`
	Packet    string  `json:"packet"`
	Comment   string  `json:"comment"`
}

func showJourney(cmd *cobra.Command, out *cli.Output, file string, j *journey.Journey) error {
	var list []seenPacket
	for _, p := range j.Packets {
		list = append(list, seenPacket{float64(p.Time.Sub(j.Packets[0].Time).Nanoseconds()) / 1e3, p.Switch, p.Port,
			cli.Either(p.Out, "out", "in"), p.Summary, p.Comment})
	}
	w := cmd.OutOrStdout()
	if out.IsJSON() {
		return out.JSON(w, struct {
			File    string       `json:"file"`
			Text    string       `json:"text"`
			Dropped int          `json:"dropped"`
			Packets []seenPacket `json:"packets"`
		}{file, j.Text, j.Dropped, list})
	}
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "%9.1f us  %s port %d %s  %s\n              %s\n", p.Micros, p.Switch, p.Port, p.Direction, p.Packet, strings.ReplaceAll(p.Comment, "; ", "\n              "))
	}
	_, err := fmt.Fprintf(w, "%s%s; in %s\n", b.String(), j.Text, file)
	return err
}
