package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/agents"
	"github.com/mcrdma/mcrdma/internal/identity"
)

// agentEnv is the environment variable for --agent.
const agentEnv = "SWITCHCTL_AGENT"

// tlsEnv is the prefix of the environment variables for --tls-cert, --tls-key and --tls-ca, which
// are used if none of these flags is given.
const tlsEnv = "SWITCHCTL_TLS_"

// maxAgents is the maximum number of agents to find through others.
const maxAgents = 256

// clientFlags say which agents a command connects to, and how.
type clientFlags struct {
	agents  []string
	peers   bool
	tls     identity.Files
	timeout time.Duration
}

// addClientFlags adds the flags for connections. Commands that can use agents found through others
// also have --peers; follow is its default.
func addClientFlags(cmd *cobra.Command, peers, follow bool) *clientFlags {
	f := &clientFlags{}
	fs := cmd.Flags()
	fs.StringArrayVarP(&f.agents, "agent", "a", nil,
		"`address` of a switch's agent, [SWITCH=]HOST:PORT; may be repeated; default: those in $"+agentEnv+" (with commas between), else "+agents.DefaultAddress)
	if peers {
		fs.BoolVar(&f.peers, "peers", follow, "go on to the agents that these name as their peers, and so on")
	}
	fs.StringVar(&f.tls.Cert, "tls-cert", "", "certificate of an administrator (mcrdma:admin:NAME), a PEM `file`; default: $"+tlsEnv+"CERT, else everything is in plain text")
	fs.StringVar(&f.tls.Key, "tls-key", "", "its key, a PEM `file`; default: $"+tlsEnv+"KEY")
	fs.StringVar(&f.tls.CA, "tls-ca", "", "who issues the agents' certificates, a PEM `file`; default: $"+tlsEnv+"CA")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Second, "`time` that an agent has for each answer")
	for _, file := range []string{"tls-cert", "tls-key", "tls-ca"} {
		cli.CompleteFile(cmd, file, "pem", "crt", "key")
	}
	cli.CompleteFlag(cmd, "agent", func() []string { return []string{agents.DefaultAddress} })
	return f
}

// addresses returns the addresses of the agents to ask first. Errors are usage errors.
func (f *clientFlags) addresses() ([]agents.Address, error) {
	list, from := f.agents, "--agent"
	if len(list) == 0 {
		for a := range strings.SplitSeq(os.Getenv(agentEnv), ",") {
			if a = strings.TrimSpace(a); a != "" {
				list, from = append(list, a), "$"+agentEnv
			}
		}
	}
	if len(list) == 0 {
		list = []string{agents.DefaultAddress}
	}
	var out []agents.Address
	seen := map[string]bool{}
	for _, s := range list {
		a, err := agents.ParseAddress(s)
		if err != nil {
			return nil, cli.Usagef("%s %w", from, err)
		}
		if !seen[a.HostPort] {
			out = append(out, a)
		}
		seen[a.HostPort] = true
	}
	if f.timeout <= 0 {
		return nil, cli.Usagef("--timeout %v: it is more than 0, such as 5s", f.timeout)
	}
	if t := f.certificate(); !t.Plain() && (t.Cert == "" || t.Key == "" || t.CA == "") {
		return nil, cli.Usagef("--tls-cert, --tls-key and --tls-ca go together, and so do $%sCERT, KEY and CA: name all of them, or none for plain text", tlsEnv)
	}
	return out, nil
}

// certificate returns the caller's certificate, from the flags or the environment.
func (f *clientFlags) certificate() identity.Files {
	if !f.tls.Plain() {
		return f.tls
	}
	return identity.Files{Cert: os.Getenv(tlsEnv + "CERT"), Key: os.Getenv(tlsEnv + "KEY"), CA: os.Getenv(tlsEnv + "CA")}
}

func (f *clientFlags) fleet() *agents.Fleet {
	return agents.NewFleet(agents.Options{TLS: f.certificate(), Timeout: f.timeout})
}

// connect returns the agents to ask. With --peers, the list includes agents that do not answer.
func (f *clientFlags) connect(ctx context.Context, fleet *agents.Fleet) ([]*agents.Agent, error) {
	given, err := f.addresses()
	if err != nil {
		return nil, err
	}
	var list []*agents.Agent
	if f.peers {
		found, _, err := fleet.Discover(ctx, given, true, maxAgents)
		if err != nil {
			return nil, err
		}
		for _, x := range found {
			list = append(list, x.Agent)
		}
		return list, nil
	}
	for _, addr := range given {
		a, err := fleet.Agent(addr)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// An answer is the answer of one agent.
type answer[T proto.Message] struct {
	agent *agents.Agent
	got   T // if err is nil
	err   error
}

// askAll asks agents in parallel. The error joins those of all answers.
func askAll[T proto.Message](list []*agents.Agent, ask func(a *agents.Agent) (T, error)) ([]answer[T], error) {
	out := make([]answer[T], len(list))
	errs := make([]error, len(list))
	agents.Each(len(list), func(i int) {
		out[i].agent, out[i].err = list[i], list[i].Silent
		if out[i].err == nil {
			out[i].got, out[i].err = ask(list[i])
		}
		errs[i] = out[i].err
	})
	return out, errors.Join(errs...)
}

// asking makes a command ask the agents of its flags one question, and show their answers as JSON,
// or by text. The JSON has only these fields of the answer; none: all. judge, if not nil, returns
// the failure that answers report.
func asking[T proto.Message](cmd *cobra.Command, ask func(ctx context.Context, a *agents.Agent, args []string) (T, error),
	text func(answers []answer[T], args []string) string, judge func([]answer[T]) error, fields ...string) *cobra.Command {
	out, client := cli.AddOutputFlag(cmd), addClientFlags(cmd, true, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		fleet := client.fleet()
		defer fleet.Close()
		list, err := client.connect(cmd.Context(), fleet)
		if err != nil {
			return err
		}
		answers, failed := askAll(list, func(a *agents.Agent) (T, error) { return ask(cmd.Context(), a, args) })
		if judge != nil {
			failed = cmp.Or(failed, judge(answers))
		}
		w := cmd.OutOrStdout()
		if out.IsJSON() {
			err = writeAnswers(w, out, answers, fields)
		} else if slices.ContainsFunc(answers, func(a answer[T]) bool { return a.err == nil }) {
			_, err = io.WriteString(w, text(answers, args))
		}
		return cmp.Or(err, failed)
	}
	return cmd
}

// getStatus is the question of commands that show parts of an agent's status.
func getStatus(ctx context.Context, a *agents.Agent, _ []string) (*mcrdmav1.GetStatusResponse, error) {
	return a.Status.GetStatus(ctx, &mcrdmav1.GetStatusRequest{})
}

// writeAnswers writes the JSON of all commands that ask agents one question: a list with the agent's
// address, and its answer, a message of api/mcrdma/v1 or these fields of it, or why it did not
// answer.
func writeAnswers[T proto.Message](w io.Writer, out *cli.Output, list []answer[T], fields []string) error {
	type one struct {
		Agent  string          `json:"agent"`
		Answer json.RawMessage `json:"answer,omitempty"`
		Error  string          `json:"error,omitempty"`
	}
	all := make([]one, len(list))
	for i, a := range list {
		all[i].Agent = a.agent.Address.HostPort
		if a.err != nil {
			all[i].Error = a.err.Error()
			continue
		}
		var err error
		if all[i].Answer, err = cli.MessageJSON(a.got, fields...); err != nil {
			return err
		}
	}
	return out.JSON(w, all)
}

// agentTable returns a table whose rows begin with the agents' addresses, if there are several
// agents.
func agentTable(several bool, header []string, rows [][]any) string {
	if several {
		return cli.Table{Header: append([]string{"agent"}, header...), Rows: rows}.String()
	}
	for i := range rows {
		rows[i] = rows[i][1:]
	}
	return cli.Table{Header: header, Rows: rows}.String()
}
