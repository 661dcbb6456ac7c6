package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
)

// devicesCommand shows the counters of this host's applications' devices.
func devicesCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "devices [flags]",
		Short: "Show the RDMA devices of this host's applications, and their counters",
		Long: `Shows the RDMA devices that applications of this host have open: their queue pairs, and
the packets sent, received, retransmitted and dropped, as "rdma statistic" does for
devices of the kernel. The daemon asks the applications; one that is stopped does not
answer. Users see their own, and root sees all. The problem column names packets for
which the device had no route.

The dropped packets are the sum of all counters with "drop" in their names. With
--counters each counter that is not 0 has a row; the drivers' documentation (package
softroce: Counters) explains them.

The JSON is a ListDevicesResponse (api/mcrdma/v1/daemon.proto).`,
		Example: "  cmd-daemon devices\n  cmd-daemon devices --counters",
		Args:    cli.NoArgs,
	}
	cmd.Flags().BoolVar(&all, "counters", false, "show all counters that are not 0")
	asking(cmd, func(q question) error {
		l, err := q.ListDevices(q, &mcrdmav1.ListDevicesRequest{})
		if err != nil {
			return err
		}
		return q.show(l, func() string { return devicesText(l, all) })
	})
	return cmd
}

func devicesText(l *mcrdmav1.ListDevicesResponse, all bool) string {
	var rows, counters [][]any
	for _, d := range l.GetDevices() {
		row := []any{d.GetProgram(), d.GetPid(), userName(d.GetUid()), "", "", "", "", "", "", "", d.GetError()}
		if v := d.GetDevice(); v.GetDriver() != "" {
			count, drops := map[string]uint64{}, uint64(0)
			for _, c := range v.GetCounters() {
				count[c.GetName()] = c.GetValue()
				if strings.Contains(c.GetName(), "drop") {
					drops += c.GetValue()
				}
				if c.GetValue() > 0 {
					counters = append(counters, []any{d.GetProgram(), d.GetPid(), c.GetName(), c.GetValue()})
				}
			}
			if n := count["tx_drop_no_route"] + count["tx_err_unreachable"]; n > 0 {
				row[10] = fmt.Sprintf("no route for %s that it had to send: %s", cli.Plural(n, "packet"),
					cli.Either(count["tx_drop_no_route"] > 0, "its name has no gateway (gw=…), or a wrong one", "see ip route"))
			}
			copy(row[3:], []any{v.GetDriver() + ":" + v.GetAddress(), v.GetMtu(), count["qps"], count["tx_packets"], count["tx_retransmits"], count["rx_packets"], drops})
		} else if d.GetError() == "" {
			row[3] = "none"
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return "no application of this host has a session with the daemon\n"
	}
	text := cli.Table{Header: []string{"program", "pid", "user", "device", "mtu", "qps", "sent", "sent again", "received", "dropped", "problem"}, Rows: rows}.String()
	if all {
		text += cli.Tables(cli.Table{Header: []string{"program", "pid", "counter", "value"}, Rows: counters})
	}
	return text
}
