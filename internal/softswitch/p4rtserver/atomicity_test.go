package p4rtserver

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

func protoSize(m proto.Message) int { return proto.Size(m) }

func expectSame(t testing.TB, want, got []*p4.Entity) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.SortRepeated(func(a, b *p4.Entity) bool { return a.String() < b.String() })); diff != "" {
		t.Errorf("the state has changed (-before +after):\n%s", diff)
	}
}

// aBitOfAll inserts one of each thing, or changes it.
var aBitOfAll = []string{
	`INSERT ` + route10 + to3 + `counter_data { packet_count: 3 } }`,
	`INSERT ` + acl5 + limit3 + `meter_config { cir: 1 cburst: 2 pir: 3 pburst: 4 } metadata: "m" idle_timeout_ns: 100 }`,
	`MODIFY table_entry { table_id: @In.routes is_default_action: true ` + to3 + `metadata: "d" }`,
	`MODIFY direct_counter_entry { table_entry { table_id: @In.routes is_default_action: true } data { packet_count: 8 } }`,
	`MODIFY ` + fixed1 + `counter_data { packet_count: 3 } }`,
	`INSERT ` + member1,
	`INSERT action_profile_member { action_profile_id: @In.hops member_id: 2 action { action_id: @In.to params { param_id: 1 value: "\004" } } }`,
	`INSERT ` + group1 + `members { member_id: 1 weight: 2 } }`,
	`INSERT ` + ecmp1 + `action { action_profile_group_id: 1 } }`,
	`MODIFY counter_entry { counter_id: @In.seen index { index: 2 } data { packet_count: 5 } }`,
	`MODIFY meter_entry { meter_id: @In.rate index { index: 2 } config { cir: 1 pir: 1 } }`,
	`MODIFY register_entry { register_id: @In.broad index { index: 2 } data { bitstring: "\005" } }`,
	`MODIFY value_set_entry { value_set_id: @Parse.plain members { match { field_id: 1 exact { value: "\001" } } } }`,
	`INSERT ` + mcast(1) + `replicas { port: "\001" } metadata: "g" } }`,
	`INSERT ` + clone(1) + `replicas { port: "\001" } class_of_service: 3 } }`,
	`INSERT digest_entry { digest_id: @learn_t config { max_list_size: 3 } }`,
}

// changeAll changes everything once more, or deletes it.
var changeAll = []string{
	`MODIFY ` + route10 + `action { action { action_id: @In.drop } } counter_data { packet_count: 99 } metadata: "n" }`,
	`MODIFY ` + acl5 + `action { action { action_id: @In.drop } } idle_timeout_ns: 7 }`,
	`MODIFY direct_counter_entry { ` + route10 + `} data { packet_count: 1 } }`,
	`MODIFY direct_meter_entry { ` + acl5 + `} config { cir: 9 pir: 9 } }`,
	`DELETE ` + acl5 + `}`,
	`MODIFY table_entry { table_id: @In.routes is_default_action: true }`,
	`MODIFY table_entry { table_id: @In.always is_default_action: true action { action { action_id: @NoAction } } }`,
	`MODIFY ` + fixed1 + `counter_data { packet_count: 4 } }`,
	`MODIFY action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @In.to params { param_id: 1 value: "\007" } } }`,
	`MODIFY ` + group1 + `members { member_id: 2 weight: 1 } }`,
	`MODIFY ` + ecmp1 + `action { action_profile_member_id: 2 } }`,
	`DELETE ` + group1 + `}`,
	`DELETE ` + member1,
	`DELETE ` + ecmp1 + `}`,
	`MODIFY counter_entry { counter_id: @In.seen data { packet_count: 6 } }`,
	`MODIFY meter_entry { meter_id: @In.rate }`,
	`MODIFY register_entry { register_id: @In.broad data { bitstring: "\006" } }`,
	`MODIFY value_set_entry { value_set_id: @Parse.plain }`,
	`MODIFY ` + mcast(1) + `replicas { port: "\002" } } }`,
	`DELETE ` + mcast(1) + `} }`,
	`MODIFY ` + clone(1) + `replicas { port: "\002" } } }`,
	`DELETE ` + clone(1) + `} }`,
	`MODIFY digest_entry { digest_id: @learn_t config { max_list_size: 4 } }`,
	`DELETE digest_entry { digest_id: @learn_t }`,
}

const hopeless = `DELETE table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\177\000\000\000" prefix_len: 8 } } }`

func TestAllOrNothing(t *testing.T) {
	for _, a := range []p4.WriteRequest_Atomicity{p4.WriteRequest_ROLLBACK_ON_ERROR, p4.WriteRequest_DATAPLANE_ATOMIC} {
		t.Run(a.String(), func(t *testing.T) {
			r, _ := ready(t)
			for _, batch := range [][]string{aBitOfAll, changeAll} {
				before := r.everything()
				// Every prefix of the batch, each with an update at its end that fails.
				for n := range len(batch) + 1 {
					err := r.tryWrite(a, append(append([]string{}, batch[:n]...), hopeless, batch[0])...)
					expectDetail(t, err, n, codes.NotFound, "entry not found")
					after := ""
					if n < 10 { // of more, the last texts are left out
						after = "not attempted, because update"
					}
					expectDetail(t, err, n+1, codes.Aborted, after)
					expectError(t, err, codes.Unknown, fmt.Sprintf("number %d: table In.routes", n))
					if n > 0 {
						expectDetail(t, err, 0, codes.Aborted, "rolled back, because update")
					}
					expectSame(t, before, r.everything())
					if t.Failed() {
						t.Fatalf("after %d updates: %s\n%v", n, batch[max(n-1, 0)], describe(err))
					}
				}
				if err := r.tryWrite(a, batch...); err != nil {
					t.Fatal(describe(err))
				}
			}
			// What was rolled back has left nothing that counts.
			r.write(`INSERT ` + ecmp1 + `action { action_profile_member_id: 2 } }`)
			expectDetail(t, r.tryWrite(a, `DELETE `+strings.Replace(member1, "member_id: 1", "member_id: 2", 1)), 0, codes.FailedPrecondition, "in use")
		})
	}
}

// A member whose insertion was rolled back does not stand in the way of sets.
func TestRolledBackMemberIsForgotten(t *testing.T) {
	r, _ := ready(t)
	expectDetail(t, r.tryWrite(p4.WriteRequest_ROLLBACK_ON_ERROR, `INSERT `+member1, hopeless), 1, codes.NotFound, "")
	r.write(`INSERT ` + ecmp1 + `action { action_profile_action_set {
		action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } weight: 1 } } } }`)
	expectDetail(t, r.tryWrite(p4.WriteRequest_ROLLBACK_ON_ERROR, `DELETE `+ecmp1+`}`, `INSERT `+member1, hopeless), 2, codes.NotFound, "")
	expectDetail(t, r.tryWrite(0, `INSERT `+member1), 0, codes.InvalidArgument, "entries with action sets")
}

// A full profile lets its sets be replaced, and what was replaced be brought back.
func TestRolledBackSets(t *testing.T) {
	r, _ := ready(t)
	entry := func(key, actions, port int) string {
		return fmt.Sprintf(`table_entry { table_id: @In.ecmp match { field_id: 1 exact { value: "\%03o" } } action { action_profile_action_set {`, key) +
			strings.Repeat(fmt.Sprintf(`action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\%03o" } } weight: 1 }`, port), actions) + `} } }`
	}
	r.write(`INSERT `+entry(1, 8, 1), `INSERT `+entry(2, 8, 2)) // 16 of 16
	expectDetail(t, r.tryWrite(0, `INSERT `+entry(3, 1, 1)), 0, codes.ResourceExhausted, "In.hops")
	before := r.everything()
	for _, batch := range [][]string{
		{`MODIFY ` + entry(1, 8, 3), `MODIFY ` + entry(2, 8, 4)},
		{`MODIFY ` + entry(1, 4, 3), `INSERT ` + entry(3, 4, 3), `MODIFY ` + entry(3, 1, 4), `MODIFY ` + entry(2, 11, 5)},
		{`DELETE ` + entry(2, 1, 1), `MODIFY ` + entry(1, 16, 3), `MODIFY ` + entry(1, 1, 3), `INSERT ` + entry(2, 15, 6)},
	} {
		for n := range len(batch) {
			err := r.tryWrite(p4.WriteRequest_ROLLBACK_ON_ERROR, append(append([]string{}, batch[:n+1]...), hopeless)...)
			expectDetail(t, err, n+1, codes.NotFound, "entry not found")
			expectSame(t, before, r.everything())
		}
	}
	if err := r.tryWrite(p4.WriteRequest_ROLLBACK_ON_ERROR, `MODIFY `+entry(1, 8, 3), `MODIFY `+entry(2, 9, 4)); err == nil {
		t.Error("a set too many")
	}
	expectSame(t, before, r.everything())
	r.write(`MODIFY ` + entry(2, 8, 4))
}

func TestContinueOnError(t *testing.T) {
	r, _ := ready(t)
	err := r.tryWrite(p4.WriteRequest_CONTINUE_ON_ERROR, hopeless, aBitOfAll[0], hopeless, aBitOfAll[1])
	for i, code := range []codes.Code{codes.NotFound, codes.OK, codes.NotFound, codes.OK} {
		expectDetail(t, err, i, code, "")
	}
	expectError(t, err, codes.Unknown, "2 of 4 updates failed; number 0: table In.routes: key {h.ip.dst=0x7f000000/8}: entry not found")
	if e := details(err); e[0].GetSpace() == "" || e[1].GetSpace() != "" || len(e) != 4 {
		t.Errorf("details %v", e)
	}
	if got := r.read(`table_entry { table_id: @In.routes }`, `table_entry { table_id: @In.acl }`); len(got) != 2 {
		t.Errorf("%d entries", len(got))
	}
	if s := r.server.Stats(); s.Updates != 2 || s.UpdateErrors != 2 {
		t.Errorf("stats %+v", s)
	}
	req := r.request(9, hopeless)
	_, err = r.client.Write(t.Context(), req)
	expectError(t, err, codes.InvalidArgument, "there is no atomicity 9")
}

// Packets get their turn between parts of a batch, but not amid one that is to
// be atomic for them.
func TestTurnsOfPackets(t *testing.T) {
	for a, want := range map[p4.WriteRequest_Atomicity]int{
		p4.WriteRequest_CONTINUE_ON_ERROR: 4,
		p4.WriteRequest_ROLLBACK_ON_ERROR: 4,
		p4.WriteRequest_DATAPLANE_ATOMIC:  1,
	} {
		r, _ := ready(t)
		req := r.request(a)
		for i := range 100 {
			req.Updates = append(req.Updates, &p4.Update{Type: p4.Update_INSERT, Entity: routeEntity(r.ids, i)})
		}
		before := r.bench.dos
		if _, err := r.client.Write(t.Context(), req); err != nil {
			t.Fatal(describe(err))
		}
		if n := r.bench.dos - before; n != want {
			t.Errorf("%v: %d parts, want %d", a, n, want)
		}
	}
}

// Controllers read and write everything while packets come. The race detector sees that they never
// meet.
func TestPacketsMeanwhile(t *testing.T) {
	r, _ := ready(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			r.bench.process(1, ethernet(1, true))
			runtime.Gosched()
		}
	})
	for i := range 20 {
		r.everything()
		req := r.request(p4.WriteRequest_CONTINUE_ON_ERROR)
		req.Updates = append(req.Updates, &p4.Update{Type: p4.Update_INSERT, Entity: routeEntity(r.ids, i)})
		if _, err := r.client.Write(t.Context(), req); err != nil {
			t.Error(describe(err))
		}
	}
	stop.Store(true)
	wg.Wait()
}
