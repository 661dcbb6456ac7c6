package main

import (
	"cmp"
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// statusCommand shows the daemon's status.
func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show the daemon: its host, its switch, other daemons, applications",
		Long: `Shows the daemon's own status. Exit code 1 means that it has a problem, such as
"cannot have switches copy"; cmd-daemon doctor checks more, and says what to do.

The JSON is a GetDaemonResponse (api/mcrdma/v1/daemon.proto).`,
		Example: `  cmd-daemon status
  cmd-daemon status --socket lab/h1/daemon.sock -o json`,
		Args: cli.NoArgs,
	}
	asking(cmd, func(q question) error {
		s, err := q.GetDaemon(q, &mcrdmav1.GetDaemonRequest{})
		if err != nil {
			return err
		}
		err = q.show(s, func() string { return statusText(q.Socket, s, cli.Now(q)) })
		if n := len(s.GetProblems()); err == nil && n > 0 {
			err = fmt.Errorf("%s; cmd-daemon doctor says what to do", cli.Plural(n, "problem"))
		}
		return err
	})
	return cmd
}

func statusText(socket string, s *mcrdmav1.GetDaemonResponse, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, daemon at %s\n", s.GetHost(), socket)
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-8s %s\n", what, fmt.Sprintf(format, args...))
	}
	line("version", "%s, up %s", s.GetVersion(), cli.Since(s.GetStarted(), now))
	line("address", "%s, device %s", s.GetAddress(), s.GetDevice())
	line("listens", "%s, %s", s.GetListen(), s.GetTls())
	switch l := s.GetSwitch(); {
	case l == nil:
		line("switch", "none: hosts relay")
	case l.GetNotReady() != "":
		line("switch", "%s, agent %s, reachable, but not ready: %s", l.GetName(), l.GetAgent(), l.GetNotReady())
	case l.GetReachable():
		line("switch", "%s, agent %s, reachable", l.GetName(), l.GetAgent())
	default:
		line("switch", "%s, agent %s, not reachable: %s", l.GetName(), l.GetAgent(), l.GetError())
	}
	line("groups", "%d, memberships %d", s.GetGroups(), s.GetMemberships())
	for _, p := range s.GetProblems() {
		line("problem", "%s", p)
	}
	var peers, sessions [][]any
	for _, p := range s.GetPeers() {
		peers = append(peers, []any{p.GetHost(), p.GetAddress(), p.GetDaemon(), p.GetState(), micros(p.GetRoundTrip().AsDuration()), p.GetShared(), p.GetError()})
	}
	for _, x := range s.GetSessions() {
		sessions = append(sessions, []any{x.GetProgram(), x.GetPid(), userName(x.GetUid()), strings.Join(x.GetServices(), ", "),
			cli.Since(x.GetSince(), now), cli.Either(x.GetLost(), "lost", "open")})
	}
	return b.String() + cli.Tables(
		cli.Table{Header: []string{"peer", "address", "daemon", "state", "round trip", "shared", "error"}, Rows: peers},
		cli.Table{Header: []string{"application", "pid", "user", "listens for", "since", "session"}, Rows: sessions})
}

// micros returns a short time span as text, or "" if it is not known.
func micros(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return fmt.Sprintf("%d us", d.Microseconds())
}

// userName returns the name of a user of this host, or otherwise the number.
func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil {
		return cmp.Or(u.Username, number)
	}
	return number
}
