package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/p4rt"
)

const pipelineHelp = `Manages the P4 program of a switch by P4Runtime, on the embedded switch and on bmv2.
The agent of a switch does all this by itself; these commands are for switches without
one, and for diagnosis.

The program is part of switchctl. show and verify only read: they do not arbitrate, and
do not disturb a running agent.`

const pipelineExamples = `  # what does the switch run, and how full is it?
  switchctl pipeline show --target 127.0.0.1:9559

  # is it exactly this switchctl's program, and its entries consistent? (exit code 0 or 1)
  switchctl pipeline verify --target 192.0.2.1:9559 --device-id 3

  # load the program into a switch without a controller
  switchctl pipeline push --target 127.0.0.1:9559`

type pipelineFlags struct {
	cfg     p4rt.Config
	timeout time.Duration
	out     *cli.Output

	election string
	force    bool
}

// pipelineCommand returns the subcommand.
func pipelineCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pipeline",
		Short:   "Push, show and verify the P4 program of a switch",
		Long:    pipelineHelp,
		Example: pipelineExamples,
	}
	cli.Parent(cmd)
	cmd.AddCommand(
		pipelineSubcommand("show", "Show which program a switch runs, and its tables", `Shows the program that a switch runs, whether it is this switchctl's, its tables with
their sizes and the entries in them, and the packet replication engine's groups. Any
program is shown; a switch without one is no error.

The JSON has target and device_id; running, whether there is a program, own, whether it is
this switchctl's, and differences, if it is not; program, cookie and hashes; tables, each
with entries and size; and pre_groups, pre_replicas and entries, the numbers of all.`, (*pipelineFlags).show, nil),
		pipelineSubcommand("verify", "Check that a switch runs this program, and that its entries are consistent",
			`Compares the program on the switch with this switchctl's, by cookie, P4Info and
JSON, as far as the switch keeps them. Then reads back all entries, and checks that
each could be an agent's, and refers to nothing that is not there: no next hop
without a neighbor, no group without its copies.

The JSON has ok, problems and entries, how many were read.

The exit code is 0 if all is well, and 1 otherwise.`, (*pipelineFlags).verify, nil),
		pipelineSubcommand("push", "Load this program into a switch", `Makes the switch run this switchctl's program. A switch that runs it already, with
entries or not, is left alone; one with another program loses all of its state.
Refused, unless --force is given, if there is

  - another controller that is the primary. With --force it is displaced for a
    moment, and has to find out by itself that the switch has lost its state;
  - state: entries or multicast groups of another program.

With --force the program is loaded in any case, even over itself: the switch then is
as if it had just been started.

The JSON has pushed, which is false if the switch ran the program already.`, (*pipelineFlags).push, func(f *pipelineFlags, cmd *cobra.Command) {
			cmd.Flags().StringVar(&f.election, "election-id", "1", "election id: `LOW[,HIGH]`; no other controller may have it")
			cmd.Flags().BoolVar(&f.force, "force", false, "push even if another controller or state of the switch suffers from it")
		}),
	)
	return cmd
}

func pipelineSubcommand(name, short, long string, run func(*pipelineFlags, context.Context, *p4rt.Client, *pipelineReport, *cobra.Command) error, more func(*pipelineFlags, *cobra.Command)) *cobra.Command {
	f := &pipelineFlags{}
	cmd := &cobra.Command{
		Use: name + " [flags]", Short: short, Long: long, Args: cli.NoArgs, DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			c, err := p4rt.New(f.cfg)
			if err != nil {
				return err
			}
			defer c.Close()
			r, err := f.inspect(ctx, c)
			if err != nil {
				return err
			}
			return run(f, ctx, c, r, cmd)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.cfg.Target, "target", defaultGRPC, "`address` of the switch's P4Runtime server, HOST:PORT")
	fs.Uint64Var(&f.cfg.DeviceID, "device-id", 0, "P4Runtime's device `id`")
	if more != nil {
		more(f, cmd)
	}
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "`time` that all of it may take")
	f.out = cli.AddOutputFlag(cmd)
	cli.CompleteFlag(cmd, "target", func() []string { return []string{defaultGRPC} })
	return cmd
}

// parse checks the flags.
func (f *pipelineFlags) parse() error {
	if f.cfg.Target == "" || f.timeout <= 0 {
		return cli.Usagef("--target is needed, and a --timeout of more than nothing")
	}
	if f.election == "" {
		return nil
	}
	low, high, both := strings.Cut(f.election, ",")
	var err, errHigh error
	f.cfg.ElectionID.Low, err = strconv.ParseUint(strings.TrimSpace(low), 10, 64)
	if both {
		f.cfg.ElectionID.High, errHigh = strconv.ParseUint(strings.TrimSpace(high), 10, 64)
	}
	if err != nil || errHigh != nil || f.cfg.ElectionID.Low == 0 {
		return cli.Usagef("--election-id %q is not LOW or LOW,HIGH: numbers of 64 bits, LOW not 0", f.election)
	}
	return nil
}

// A pipelineReport is the result of show, as JSON.
type pipelineReport struct {
	Target      string     `json:"target"`
	Device      uint64     `json:"device_id"`
	Program     string     `json:"program,omitempty"` // source file; empty: not known, or no program
	Running     bool       `json:"running"`           // there is a program
	Own         bool       `json:"own"`               // it is the program of this switchctl
	Differences []string   `json:"differences,omitempty"`
	Cookie      string     `json:"cookie,omitempty"`
	JSON        string     `json:"json_sha256,omitempty"`
	Sources     string     `json:"sources_sha256,omitempty"` // if it is the program of this switchctl
	Compiler    string     `json:"compiler,omitempty"`       // likewise
	Tables      []tableUse `json:"tables,omitempty"`
	PREGroups   int        `json:"pre_groups"`
	PREReplicas int        `json:"pre_replicas"`
	Entries     int        `json:"entries"` // in all tables
}

type tableUse struct {
	Table   string `json:"table"`
	Entries int    `json:"entries"`
	Size    int64  `json:"size"`
}

// inspect reads everything from the switch.
func (f *pipelineFlags) inspect(ctx context.Context, c *p4rt.Client) (*pipelineReport, error) {
	own, err := p4rt.OwnProgram()
	if err != nil {
		return nil, err
	}
	r := &pipelineReport{Target: f.cfg.Target, Device: f.cfg.DeviceID}
	p, err := c.Program(ctx)
	if err != nil {
		return nil, f.hint(err)
	}
	if p == nil {
		return r, nil
	}
	r.Running, r.Program = true, p.Source
	r.Differences = p.Differences(own)
	r.Own = len(r.Differences) == 0
	if p.HasCookie {
		r.Cookie = fmt.Sprintf("%#016x", p.Cookie)
	}
	if len(p.JSON) > 0 {
		sum := sha256.Sum256(p.JSON)
		r.JSON = hex.EncodeToString(sum[:])
	}
	if r.Own {
		made := bmv2.Origin()
		r.Program, r.Sources, r.Compiler = own.Source, made.Sources, made.P4C
	}
	entries, groups, replicas, err := c.Use(ctx, p)
	if err != nil {
		return nil, f.hint(err)
	}
	r.PREGroups, r.PREReplicas = groups, replicas
	for _, t := range p.Tables() {
		if t.Keyless {
			continue
		}
		r.Tables = append(r.Tables, tableUse{t.Name, entries[t.Name], t.Size})
		r.Entries += entries[t.Name]
	}
	return r, nil
}

// hint says what to do about an error of the switch.
func (f *pipelineFlags) hint(err error) error {
	if err == nil {
		return nil
	}
	var text string
	switch status.Code(err) {
	case codes.Unavailable:
		text = "no P4Runtime server answers there; is the switch running, and this its address?"
	case codes.DeadlineExceeded:
		text = "the switch did not answer in time; see --timeout"
	case codes.NotFound, codes.FailedPrecondition:
		text = "does the switch have another --device-id?"
	default:
		return fmt.Errorf("%s: %w", f.cfg.Target, err)
	}
	return fmt.Errorf("%s: %s (%w)", f.cfg.Target, text, err)
}

func (f *pipelineFlags) show(_ context.Context, _ *p4rt.Client, r *pipelineReport, cmd *cobra.Command) error {
	w := cmd.OutOrStdout()
	if f.out.IsJSON() {
		return f.out.JSON(w, r)
	}
	line := func(what, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-10s%s\n", what, value)
		}
	}
	line("switch", fmt.Sprintf("%s, device %d", r.Target, r.Device))
	if !r.Running {
		line("program", "none, or the switch has another --device-id; an agent, or switchctl pipeline push, loads it")
		return nil
	}
	name := r.Program
	if name == "" {
		name = "of unknown source"
	}
	if r.Own {
		name += ", the one of this switchctl"
	} else {
		name += ", NOT the one of this switchctl: " + strings.Join(r.Differences, "; ")
	}
	line("program", name)
	line("cookie", r.Cookie)
	line("JSON", r.JSON)
	line("sources", r.Sources)
	line("compiler", r.Compiler)
	fmt.Fprintln(w)
	var rows [][]any
	for _, t := range r.Tables {
		rows = append(rows, []any{t.Table, t.Entries, t.Size, percent(float64(t.Entries) / float64(max(t.Size, 1)))})
	}
	rows = append(rows, []any{"PRE groups", r.PREGroups, "", ""}, []any{"PRE replicas", r.PREReplicas, "", ""})
	return f.out.Table(w, []string{"table", "entries", "size", "share"}, rows)
}

func (f *pipelineFlags) verify(ctx context.Context, c *p4rt.Client, r *pipelineReport, cmd *cobra.Command) error {
	problems := r.Differences
	switch {
	case !r.Running:
		problems = []string{"the switch runs no program, or has another --device-id"}
	case r.Own:
		var err error
		if problems, err = f.check(ctx, c); err != nil {
			return err
		}
	}
	w := cmd.OutOrStdout()
	if f.out.IsJSON() {
		verdict := struct {
			OK       bool     `json:"ok"`
			Problems []string `json:"problems"`
			Entries  int      `json:"entries"`
		}{len(problems) == 0, append([]string{}, problems...), r.Entries}
		if err := f.out.JSON(w, verdict); err != nil {
			return err
		}
	} else {
		for _, p := range problems {
			fmt.Fprintln(w, p)
		}
	}
	switch {
	case len(problems) == 1:
		return errors.New("verification failed: " + problems[0])
	case len(problems) > 1:
		return fmt.Errorf("verification failed: %d problems", len(problems))
	case f.out.IsJSON():
		return nil
	}
	_, err := fmt.Fprintf(w, "%s runs this switchctl's program; %d entries and %d multicast groups are consistent\n", r.Target, r.Entries, r.PREGroups)
	return err
}

// check returns what is wrong with the entries of a switch with this program.
func (f *pipelineFlags) check(ctx context.Context, c *p4rt.Client) ([]string, error) {
	state, err := c.Read(ctx)
	if errors.Is(err, p4rt.ErrForeign) {
		return []string{err.Error()}, nil
	}
	if err != nil {
		return nil, f.hint(err)
	}
	if err := state.Check(); err != nil {
		return strings.Split(err.Error(), "\n"), nil
	}
	return nil, nil
}

func (f *pipelineFlags) push(ctx context.Context, c *p4rt.Client, r *pipelineReport, cmd *cobra.Command) error {
	pushed := false
	if !r.Own || f.force {
		if r.Entries+r.PREGroups > 0 && !f.force {
			return fmt.Errorf("%s runs another program, with %d entries and %d multicast groups that would be lost; --force pushes all the same",
				f.cfg.Target, r.Entries, r.PREGroups)
		}
		if err := f.asPrimary(ctx, func(s *p4rt.Session) error { return s.PushPipeline(ctx) }); err != nil {
			return err
		}
		pushed = true
		var err error
		if r, err = f.inspect(ctx, c); err != nil {
			return err
		}
		if !r.Own {
			return fmt.Errorf("%s took the program, but runs another: %s", f.cfg.Target, strings.Join(r.Differences, "; "))
		}
	}
	w := cmd.OutOrStdout()
	if f.out.IsJSON() {
		return f.out.JSON(w, struct {
			Pushed bool `json:"pushed"`
			*pipelineReport
		}{pushed, r})
	}
	text := "has this switchctl's program already, with %d entries; nothing was done\n"
	if pushed {
		text = "runs this switchctl's program now, with %d entries\n"
	}
	_, err := fmt.Fprintf(w, "%s "+text, r.Target, r.Entries)
	return err
}

// asPrimary does something as the switch's primary, if no other controller is the primary.
func (f *pipelineFlags) asPrimary(ctx context.Context, do func(*p4rt.Session) error) error {
	// The lowest election ID displaces no controller, but shows whether there is one.
	lowest := p4rt.ElectionID{Low: 1}
	var other string
	err := f.session(ctx, lowest, func(s *p4rt.Session) error {
		if role, _ := s.Role(); role == p4rt.Backup {
			other = fmt.Sprintf("is the primary, with election id %v", s.PrimaryID())
		} else if f.cfg.ElectionID == lowest {
			return f.win(ctx, s, do)
		}
		return nil
	})
	switch {
	case status.Code(err) == codes.InvalidArgument:
		other = fmt.Sprintf("is connected with election id %v", lowest)
	case err != nil:
		return f.hint(err)
	case other == "" && f.cfg.ElectionID == lowest:
		return nil
	}
	if other != "" && !f.force {
		return fmt.Errorf("%s: another controller %s: probably the switch's agent, which looks after the program; --force pushes all the same", f.cfg.Target, other)
	}
	id := f.cfg.ElectionID
	if id == lowest { // of the other one, or of the session that was just closed
		id.Low = 1<<32 + uint64(os.Getpid()) //nolint:gosec // not negative
	}
	err = f.session(ctx, id, func(s *p4rt.Session) error { return f.win(ctx, s, do) })
	if status.Code(err) == codes.InvalidArgument {
		return fmt.Errorf("%s: is --election-id %v another controller's? (%w)", f.cfg.Target, id, err)
	}
	return f.hint(err)
}

// session does something in a session with an election ID.
func (f *pipelineFlags) session(ctx context.Context, id p4rt.ElectionID, do func(*p4rt.Session) error) error {
	cfg := f.cfg
	cfg.ElectionID = id
	c, err := p4rt.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return do(s)
}

// win makes a session the primary, and does something as the primary.
func (f *pipelineFlags) win(ctx context.Context, s *p4rt.Session, do func(*p4rt.Session) error) error {
	if role, _ := s.Role(); role == p4rt.Backup && f.force {
		if err := s.Takeover(s.PrimaryID()); err != nil {
			return err
		}
	}
	if err := s.WaitPrimary(ctx); err != nil {
		return fmt.Errorf("becoming the primary: %w", err)
	}
	return do(s)
}
