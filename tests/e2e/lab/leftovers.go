package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
)

// tables are the tables that only have entries of groups.
var tables = []string{"ingress.replication.groups", "egress.rewrite.replicas", "egress.rewrite.regions",
	"egress.ack_merge.merge_groups", "egress.ack_merge.merge_members"}

// TablesOfGroups parses the output of "switchctl pipeline show -o json" and returns the tables of
// groups that are not empty.
func TablesOfGroups(out []byte) ([]string, error) {
	var answer struct {
		Tables []struct {
			Table   string
			Entries int
		}
		PREGroups int `json:"pre_groups"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var left []string
	seen := 0
	for _, t := range answer.Tables {
		if slices.Contains(tables, t.Table) {
			seen++
			if t.Entries > 0 {
				left = append(left, fmt.Sprintf("%s: %d", t.Table, t.Entries))
			}
		}
	}
	if seen != len(tables) {
		return nil, fmt.Errorf("%d of the %d tables of groups are there: %s", seen, len(tables), out)
	}
	if answer.PREGroups > 1 { // one is for flooding
		left = append(left, fmt.Sprintf("multicast groups: %d", answer.PREGroups-1))
	}
	return left, nil
}

// Left reads the entries of groups from the switch.
func (n *SwitchNode) Left() ([]string, error) {
	out, err := n.Space.Run(n.lab.programs.Switchctl, "pipeline", "show", "--target", fmt.Sprintf("127.0.0.1:%d", p4rtPort), "-o", "json")
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", n.Name, err, out)
	}
	return TablesOfGroups([]byte(out))
}

// Groups asks the daemon for all groups and memberships.
func (h *HostNode) Groups(ctx context.Context) (res *mcrdmav1.ListGroupsResponse, err error) {
	err = h.ask(func(c mcrdmav1.ApplicationsClient) error {
		res, err = c.ListGroups(ctx, &mcrdmav1.ListGroupsRequest{})
		return err
	})
	return res, err
}

// Listens asks the daemon whether an application listens for a service.
func (h *HostNode) Listens(ctx context.Context, service string) (yes bool) {
	err := h.ask(func(c mcrdmav1.ApplicationsClient) error {
		res, err := c.GetDaemon(ctx, &mcrdmav1.GetDaemonRequest{})
		for _, s := range res.GetSessions() {
			yes = yes || !s.GetLost() && slices.Contains(s.GetServices(), service)
		}
		return err
	})
	return yes && err == nil
}

func (h *HostNode) ask(f func(mcrdmav1.ApplicationsClient) error) error {
	conn, err := grpc.NewClient("unix:"+h.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(mcrdmav1.NewApplicationsClient(conn))
}

// Left asks the daemon for remains of groups.
func (h *HostNode) Left(ctx context.Context) (left []string, err error) {
	res, err := h.Groups(ctx)
	if err != nil {
		return nil, fmt.Errorf("daemon of %s: %w", h.Name, err)
	}
	for _, g := range res.GetGroups() {
		left = append(left, fmt.Sprintf("group %v, formation %d", g.GetFormation().GetGroup(), g.GetFormation().GetFormation()))
	}
	for _, m := range res.GetMemberships() {
		left = append(left, fmt.Sprintf("membership in %v", m.GetGroup()))
	}
	return left, nil
}

// CheckLeftovers checks that no switch and no running daemon has anything of any group, at the
// latest after some time.
func (l *Lab) CheckLeftovers(ctx context.Context, after time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, after+patience)
	defer cancel()
	for deadline := time.Now().Add(after); ; {
		err := l.leftovers(ctx)
		if err == nil || !time.Now().Before(deadline) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (l *Lab) leftovers(ctx context.Context) error {
	return errors.Join(Each(l.Switches, func(n *SwitchNode) error {
		if !n.Switch.Running() {
			return nil
		}
		left, err := n.Left()
		return told(n.Name, left, err)
	}), Each(l.Hosts, func(h *HostNode) error {
		if h.Daemon == nil || !h.Daemon.Running() {
			return nil
		}
		left, err := h.Left(ctx)
		return told("daemon of "+h.Name, left, err)
	}))
}

func told(name string, left []string, err error) error {
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%s has left: %s", name, strings.Join(left, "; "))
	}
	return err
}
