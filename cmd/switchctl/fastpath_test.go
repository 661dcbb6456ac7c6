package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestFastPathFlag: what only the switch itself supports is refused, or done without the kernel.
func TestFastPathFlag(t *testing.T) {
	const tunnel = "1@udp:127.0.0.1:7000,127.0.0.1:7001"
	for _, c := range []struct {
		args           string
		becomes        string
		refused, notes string
	}{
		{"-i 1@veth1", "off", "", ""},
		{"-i 1@veth1 --fastpath off --queue-rate 1mbit", "off", "", ""},
		{"-i 1@veth1 --fastpath xdp", "xdp", "", ""},
		{"-i 1@veth1 --fastpath auto", "auto", "", ""},
		{"-i 1@veth1 --fastpath tc", "", "there is no such fast path; xdp", ""},
		{"-i 1@veth1 --fastpath dpdk", "", "it is auto, xdp or off", ""},
		{"-i 1@veth1 --fastpath xdp --queue-rate 1mbit", "", "no queues of that rate", ""},
		{"-i 1@veth1 --fastpath auto --queue-rate 1mbit", "off", "", "no queues of that rate"},
		{"-i 1@veth1 --fastpath xdp --pcap", "", "would be missing", ""},
		{"-i 2@veth1 --fastpath xdp -i " + tunnel, "", "port 1 is a UDP tunnel", ""},
		{"-i 2@veth1 --fastpath auto -i " + tunnel, "off", "", "port 1 is a UDP tunnel"},
	} {
		var f softswitchFlags
		var stderr bytes.Buffer
		cmd := &cobra.Command{}
		f.add(cmd)
		if err := cmd.ParseFlags(append([]string{"--no-p4"}, strings.Fields(c.args)...)); err != nil {
			t.Fatal(err)
		}
		o, err := f.options(nil, &stderr)
		switch {
		case c.refused != "":
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v", c.args, err)
			}
		case err != nil || o.fastPath != c.becomes || (stderr.Len() > 0) != (c.notes != "") || !strings.Contains(stderr.String(), c.notes):
			t.Errorf("%s: %q, %v; %s", c.args, o.fastPath, err, stderr.String())
		}
	}
}
