package p4rtserver

import (
	_ "embed"
	"fmt"
	"os"
	"testing"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// The P4Info of ../pipeline/testdata/shared.p4.
//
//go:embed testdata/shared.p4info.txtpb
var sharedInfo []byte

// sharedRig runs shared.p4.
func sharedRig(t *testing.T) (*rig, *p4.ForwardingPipelineConfig) {
	t.Helper()
	prog, err := os.ReadFile("../pipeline/testdata/shared.json")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Options{})
	r.open(1).expectArbitration(codes.OK, 1)
	r.info = parseInfo(t, sharedInfo)
	r.ids = idsOf(r.info)
	c := r.config()
	c.P4DeviceConfig = prog
	return r, c
}

// TestSharedProfile: two tables, which list their actions in different order,
// share members, groups and a profile's size.
func TestSharedProfile(t *testing.T) {
	r, c := sharedRig(t)
	r.set(p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, c)
	member := func(id int, action, value string) string {
		return fmt.Sprintf(`action_profile_member { action_profile_id: @I.sel member_id: %d action { action_id: @I.%s params { param_id: 1 value: "%s" } } }`, id, action, value)
	}
	entry := func(table, key, ref string, id int) string {
		return fmt.Sprintf(`table_entry { table_id: @I.%s match { field_id: 1 exact { value: "%s" } } action { action_profile_%s_id: %d } }`, table, key, ref, id)
	}
	all := []string{
		member(1, "pick", `\007`), member(2, "twice", `\007`),
		`action_profile_group { action_profile_id: @I.sel group_id: 1 members { member_id: 1 weight: 1 } members { member_id: 2 weight: 1 } }`,
		entry("first", `\001`, "member", 1), entry("first", `\002`, "group", 1),
		entry("second", `\001`, "member", 2), entry("second", `\002`, "group", 1),
	}
	for _, e := range all {
		r.write(`INSERT ` + e)
	}
	for _, p := range []struct{ in, want [4]byte }{ // a, b, c, d; first, second, third, fourth
		{[4]byte{1, 1}, [4]byte{7, 14}},
		{[4]byte{2, 2, 0, 0}, [4]byte{7, 7}},
		{[4]byte{2, 2, 0, 1}, [4]byte{14, 14}},
	} {
		if out := r.bench.process(1, p.in[:])[1]; len(out) < 4 || [4]byte(out) != p.want {
			t.Errorf("%v: %v, want %v", p.in, out, p.want)
		}
	}
	r.expectRead(`action_profile_member { action_profile_id: @I.sel }`, all[0], all[1])
	r.expectRead(`table_entry { table_id: @I.second }`, all[5], all[6])
	expectDetail(t, r.tryWrite(0, `DELETE `+all[2]), 0, codes.FailedPrecondition, "group 1: in use: 2 entries")
	set := `table_entry { table_id: @I.second match { field_id: 1 exact { value: "\003" } } action { action_profile_action_set {
		action_profile_actions { action { action_id: @I.twice params { param_id: 1 value: "\003" } } weight: 1 } } } }`
	expectDetail(t, r.tryWrite(0, `INSERT `+set), 0, codes.InvalidArgument, "has members or groups")
	for i := len(all) - 1; i >= 0; i-- {
		r.write(`DELETE ` + all[i])
	}
	r.write(`INSERT ` + set)
	r.expectRead(`table_entry { table_id: @I.second }`, set)
	if out := r.bench.process(1, []byte{1, 3, 0, 0})[1]; len(out) < 2 || out[1] != 6 {
		t.Errorf("set: %v", out)
	}
}

// TestWatchPorts: what is written with a watch port is not selected while that
// port is down, in groups and sets; what is written without one always is.
func TestWatchPorts(t *testing.T) {
	r, c := sharedRig(t)
	r.set(p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, c)
	action := func(value int) string {
		return fmt.Sprintf(`action { action_id: @I.pick params { param_id: 1 value: "\%03o" } }`, value)
	}
	for name, updates := range map[string][]string{
		"group": {
			`INSERT action_profile_member { action_profile_id: @I.sel member_id: 1 ` + action(5) + `}`,
			`INSERT action_profile_member { action_profile_id: @I.sel member_id: 2 ` + action(6) + `}`,
			`INSERT action_profile_group { action_profile_id: @I.sel group_id: 1 members { member_id: 1 weight: 1 watch_port: "\000" } members { member_id: 2 weight: 1 } }`,
			`INSERT table_entry { table_id: @I.first match { field_id: 1 exact { value: "\001" } } action { action_profile_group_id: 1 } }`,
		},
		"set": {
			`INSERT table_entry { table_id: @I.first match { field_id: 1 exact { value: "\001" } } action { action_profile_action_set {
				action_profile_actions { ` + action(5) + ` weight: 1 watch_port: "\000" } action_profile_actions { ` + action(6) + ` weight: 1 } } } }`,
		},
	} {
		r.write(updates...)
		for _, up := range []bool{true, false, true} {
			r.bench.Do(func(p *pipeline.Pipeline, _ *pre.Engine) { p.SetPortUp(0, up) })
			want := map[bool][2]byte{true: {5, 6}, false: {6, 6}}[up]
			for hash := range want {
				if out := r.bench.process(1, []byte{1, 0, 0, byte(hash)})[1]; out[0] != want[hash] {
					t.Errorf("%s, port up=%t, hash %d: %d, want %d", name, up, hash, out[0], want[hash])
				}
			}
		}
		r.set(p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, c)
	}
}

// TestSharedProfileActions: tables that share a profile must have the same
// actions.
func TestSharedProfileActions(t *testing.T) {
	r, c := sharedRig(t)
	for i, change := range []func(t *p4cfg.Table){
		func(t *p4cfg.Table) { t.ActionRefs = t.GetActionRefs()[1:] },
		func(t *p4cfg.Table) { t.GetActionRefs()[0].Id = r.ids["I.sum"] },
	} {
		c := proto.CloneOf(c)
		for _, x := range c.P4Info.GetTables() {
			if x.GetPreamble().GetName() == "I.second" {
				change(x)
			}
		}
		err := r.trySet(p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, c)
		expectError(t, err, codes.InvalidArgument, "I.sel: its tables I.first and I.second have different actions")
		if t.Failed() {
			t.Fatal(i)
		}
	}
}
