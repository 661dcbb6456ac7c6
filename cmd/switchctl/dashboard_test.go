package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// Watch sends the existing groups, and nothing afterward.
func (f *fakeAgent) Watch(_ *mcrdmav1.WatchRequest, out grpc.ServerStreamingServer[mcrdmav1.WatchResponse]) error {
	for _, g := range f.groups {
		g = proto.CloneOf(g)
		g.Members, g.Packets = nil, 0
		if err := out.Send(&mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_INSTALLED, Group: g}); err != nil {
			return err
		}
	}
	if err := out.Send(&mcrdmav1.WatchResponse{Type: mcrdmav1.WatchResponse_TYPE_SYNCED}); err != nil {
		return err
	}
	<-out.Context().Done()
	return nil
}

// runDashboard runs the command until the test ends; fetch requests the page's data.
func runDashboard(t *testing.T, args ...string) (fetch func(path string) any) {
	t.Helper()
	var out, errs testenv.SyncBuffer
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, append([]string{"dashboard", "--listen", "127.0.0.1:0"}, args...), &out, &errs)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != cli.ExitOK || errs.String() != "" {
			t.Errorf("exit code %d, %s", code, errs.String())
		}
	})
	for begun := time.Now(); !strings.Contains(out.String(), "Ctrl-C"); time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatalf("it does not begin: %s%s", out.String(), errs.String())
		}
	}
	at, _, _ := strings.Cut(out.String(), "\n")
	base, key, ok := strings.Cut(at, "/?key=")
	if !ok {
		t.Fatalf("no address: %s", out.String())
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	return func(path string) (v any) {
		t.Helper()
		r, err := client.Get(base + path + map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "key=" + key)
		must(t, err)
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		must(t, err)
		if r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s: %s", path, r.Status, b)
		}
		must(t, json.Unmarshal(b, &v))
		return v
	}
}

// TestDashboardSaysTheSame: the page's data equals the commands' JSON.
func TestDashboardSaysTheSame(t *testing.T) {
	agents := lab(t)
	first, second, none, behind := uint32(3), uint32(0xfffffd), uint32(0), uint32(6)
	members := agents["torA"].groups[0].Members
	members[0].AckedPsn, members[0].BehindPackets = &first, &none
	members[2].AckedPsn, members[2].BehindPackets = &second, &behind
	flags := []string{"--agent", agents["torA"].addr, "--peers"}
	command := func(args ...string) (v any) {
		t.Helper()
		_, stdout, stderr := call(append(args, "-o", "json")...)
		if err := json.Unmarshal([]byte(stdout), &v); err != nil {
			t.Fatalf("%v: %v: %s%s", args, err, stdout, stderr)
		}
		return v
	}
	fetch := runDashboard(t, flags...)
	group := func() []any {
		list, _ := fetch("/api/groups").(map[string]any)["rows"].([]any)
		return list
	}
	for begun := time.Now(); len(group()) == 0 || group()[0].(map[string]any)["measured"] == nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatalf("no group is measured: %v", group())
		}
	}
	status := fetch("/api/status").([]any)
	for _, a := range status {
		for _, own := range []string{"at", "gray", "switch"} { // the page's own
			delete(a.(map[string]any), own)
		}
	}
	if d := cmp.Diff(command(append([]string{"status"}, flags...)...), any(status)); d != "" {
		t.Errorf("status, of the command (-) and the page (+):\n%s", d)
	}
	tree := fetch("/api/group?name=10.1.0.1/0x801").(map[string]any)
	if d := cmp.Diff(command("group", "show", "10.1.0.1/17", "--agent", agents["torA"].addr), tree["tree"]); d != "" {
		t.Errorf("the tree, of the command (-) and the page (+):\n%s", d)
	}
	top := command("top", "--agent", agents["torA"].addr).(map[string]any)["agents"].([]any)[0].(map[string]any)["groups"].([]any)[0].(map[string]any)
	row := group()[0].(map[string]any)
	if row["name"] != top["group"] {
		t.Errorf("%v is %v of top", row["name"], top["group"])
	}
	for i, r := range top["receivers"].([]any) {
		of, lag := r.(map[string]any), tree["receivers"].([]any)[i].(map[string]any)
		if of["address"] != lag["address"] || of["acked_psn"] != lag["acked_psn"] || of["behind_packets"] != lag["behind_packets"] {
			t.Errorf("receiver %d of the command: %v, of the page: %v", i, of, lag)
		}
	}
	answer := command("groups", "--agent", agents["torA"].addr).([]any)[0].(map[string]any)["answer"].(map[string]any)["groups"].([]any)[0].(map[string]any)
	if d := cmp.Diff(answer["group"], row["group"].(map[string]any)["group"]); d != "" {
		t.Errorf("the group, of the command (-) and the page (+):\n%s", d)
	}
	text := fmt.Sprint(fetch("/api/suspicions"))
	for _, want := range []string{"link at port 10 to core", "no hello for 150ms", "BGP neighbor old"} {
		if !strings.Contains(text, want) {
			t.Errorf("no suspicion %q: %s", want, text)
		}
	}
	if text := fmt.Sprint(fetch("/api/traffic")); !strings.Contains(text, "ACKs merged") || !strings.Contains(text, "absorbed") {
		t.Errorf("%s", text)
	}
}

// TestDashboardUsage: errors of command lines are reported, with what to do.
func TestDashboardUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--listen 0.0.0.0:9570":   "ssh -L 9570:127.0.0.1:9570 HOST",
		"--listen localhost":      "it is IP:PORT with a loopback address",
		"--interval 1ms":          "it is at least 100ms",
		"--agent x:y:z":           "too many colons",
		"--tls-cert x --tls-ca y": "go together",
	} {
		code, stdout, stderr := call(append([]string{"dashboard"}, strings.Fields(args)...)...)
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q, %q; want 2 and %q", args, code, stdout, stderr, want)
		}
	}
}
