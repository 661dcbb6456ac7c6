package p4rtserver

import (
	"testing"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
)

const (
	route10 = `table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\n\000\000\000" prefix_len: 8 } } `
	acl5    = `table_entry { table_id: @In.acl match { field_id: 3 range { low: "\000" high: "\001\377" } } match { field_id: 4 exact { value: "\001" } } priority: 5 `
	to3     = `action { action { action_id: @In.to params { param_id: 1 value: "\003" } } } `
	limit3  = `action { action { action_id: @In.limited params { param_id: 1 value: "\003" } } } `
)

// What is written is read back the same.
func TestReadWriteSymmetry(t *testing.T) {
	for _, c := range []struct {
		name    string
		before  []string // updates
		entity  string
		modify  bool   // instead of insert
		request string // default: the entity
	}{
		{name: "lpm", entity: route10 + to3 + `}`},
		{name: "host route, three parameters, metadata", entity: `table_entry { table_id: @In.routes
			match { field_id: 1 lpm { value: "\300\000\002\001" prefix_len: 32 } }
			action { action { action_id: @In.rewrite params { param_id: 1 value: "\001\377" } params { param_id: 2 value: "\000" } params { param_id: 3 value: "\377\377\377\377\377\377" } } }
			controller_metadata: 9 metadata: "mine" }`},
		{name: "tableonly action", entity: route10 + `action { action { action_id: @In.punt } } }`},
		{name: "default route, read by wildcard", entity: `table_entry { table_id: @In.routes ` + to3 + `}`, request: `table_entry { table_id: @In.routes }`},
		{name: "all kinds of match", entity: `table_entry { table_id: @In.acl
			match { field_id: 1 ternary { value: "\001\000" mask: "\377\000" } } match { field_id: 2 optional { value: "\010\000" } }
			match { field_id: 3 range { low: "\001" high: "\001\377" } } match { field_id: 4 exact { value: "\001" } }
			match { field_id: 5 lpm { value: "\n\000\000\000" prefix_len: 8 } }
			priority: 2147483647 ` + limit3 + ` idle_timeout_ns: 1234567890123 }`},
		{name: "only the exact field", entity: acl5 + limit3 + `}`},
		{name: "direct meter", entity: acl5 + limit3 + `meter_config { cir: 1 cburst: 2 pir: 3 pburst: 4 } }`},
		{name: "direct counter", entity: route10 + to3 + `counter_data { byte_count: 1000 packet_count: 10 } }`},
		{name: "default entry", modify: true, entity: `table_entry { table_id: @In.routes is_default_action: true ` + to3 + `metadata: "x" }`},
		{name: "default entry of a table without key", modify: true, entity: `table_entry { table_id: @In.always is_default_action: true
			action { action { action_id: @In.note params { param_id: 1 value: "\001\002\003\004\005\006\007\010\011\012\013\014\015\016\017\020" } } } }`},
		{name: "member", entity: `action_profile_member { action_profile_id: @In.hops member_id: 1 ` + `action { action_id: @In.to params { param_id: 1 value: "\003" } } }`},
		{name: "member of a plain profile", entity: `action_profile_member { action_profile_id: @In.plainly member_id: 4000000000 action { action_id: @In.drop } }`},
		{name: "empty group", entity: `action_profile_group { action_profile_id: @In.hops group_id: 1 }`},
		{name: "group", before: []string{
			`INSERT action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @In.to params { param_id: 1 value: "\003" } } }`,
			`INSERT action_profile_member { action_profile_id: @In.hops member_id: 2 action { action_id: @In.to params { param_id: 1 value: "\004" } } }`},
			entity: `action_profile_group { action_profile_id: @In.hops group_id: 1 max_size: 9
			members { member_id: 2 weight: 3 watch_port: "\001" } members { member_id: 1 weight: 1 watch: 7 } }`},
		{name: "entry by member", before: []string{`INSERT action_profile_member { action_profile_id: @In.plainly member_id: 1 action { action_id: @In.drop } }`},
			entity: `table_entry { table_id: @In.indirect match { field_id: 1 exact { value: "\001" } } action { action_profile_member_id: 1 } }`},
		{name: "entry by group", before: []string{`INSERT action_profile_group { action_profile_id: @In.hops group_id: 1 }`},
			entity: `table_entry { table_id: @In.ecmp match { field_id: 1 exact { value: "\001" } } action { action_profile_group_id: 1 } }`},
		{name: "one-shot", entity: `table_entry { table_id: @In.ecmp match { field_id: 1 exact { value: "\001" } } action { action_profile_action_set {
			action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } weight: 2 watch_port: "\001\001" }
			action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } weight: 1 }
			action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\004" } } weight: 1 watch: 3 } } } }`},
		{name: "counter", modify: true, entity: `counter_entry { counter_id: @In.seen index { index: 7 } data { byte_count: 9 packet_count: 8 } }`},
		{name: "direct counter entry", modify: true, before: []string{`INSERT ` + route10 + to3 + `}`},
			entity: `direct_counter_entry { table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\n\000\000\000" prefix_len: 8 } } } data { byte_count: 9 packet_count: 8 } }`},
		{name: "direct counter of the default entry", modify: true,
			entity: `direct_counter_entry { table_entry { table_id: @In.routes is_default_action: true } data { byte_count: 9 packet_count: 8 } }`},
		{name: "meter", modify: true, entity: `meter_entry { meter_id: @In.rate index {} config { cir: 1 cburst: 2 pir: 1 pburst: 4 } }`},
		{name: "meter, unset", modify: true, entity: `meter_entry { meter_id: @In.rate index { index: 3 } }`},
		{name: "direct meter entry", modify: true, before: []string{`INSERT ` + acl5 + limit3 + `}`},
			entity: `direct_meter_entry { table_entry { table_id: @In.acl match { field_id: 3 range { low: "\000" high: "\001\377" } } match { field_id: 4 exact { value: "\001" } } priority: 5 } config { cir: 1 cburst: 2 pir: 3 pburst: 4 } }`},
		{name: "register", modify: true, entity: `register_entry { register_id: @In.narrow index { index: 15 } data { bitstring: "\377\000\000\001" } }`},
		{name: "wide register", modify: true, entity: `register_entry { register_id: @In.broad index {} data { bitstring: "\017\000\000\000\000\000\000\000\000\000\000\000\001" } }`},
		{name: "value set", modify: true, entity: `value_set_entry { value_set_id: @Parse.plain
			members { match { field_id: 1 exact { value: "\206\335" } } } members { match { field_id: 1 exact { value: "\001" } } } }`},
		{name: "value set with two fields", modify: true, entity: `value_set_entry { value_set_id: @Parse.kinds
			members { match { field_id: 1 exact { value: "\206\335" } } match { field_id: 2 exact { value: "\001" } } } }`},
		{name: "multicast group", entity: `packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 65535 metadata: "abc"
			replicas { port: "\001\376" instance: 65535 } replicas { egress_port: 3 } replicas { port: "\003" instance: 1 } } }`},
		{name: "clone session", entity: `packet_replication_engine_entry { clone_session_entry { session_id: 7
			replicas { port: "\001\376" instance: 1 } class_of_service: 2 packet_length_bytes: 128 } }`},
		{name: "digest", entity: `digest_entry { digest_id: @learn_t config { max_timeout_ns: 5 max_list_size: 6 ack_timeout_ns: 7 } }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _ := ready(t)
			if c.before != nil {
				r.write(c.before...)
			}
			kind := "INSERT "
			if c.modify {
				kind = "MODIFY "
			}
			r.write(kind + c.entity)
			request := c.request
			if request == "" {
				request = c.entity
			}
			r.expectRead(request, c.entity)
		})
	}
}

// A range that is left out is all values. It is read as it is by bmv2: as a range
// where the field is not of whole bytes, as here, and may be written so, too.
func TestWholeRange(t *testing.T) {
	r, _ := ready(t)
	r.write(`INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } priority: 5 ` + limit3 + `}`)
	r.expectRead(acl5+`}`, acl5+limit3+`}`)
	r.expectRead(`table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } }`, acl5+limit3+`}`)
	r.write(`MODIFY `+acl5+limit3+`}`, `DELETE `+acl5+`}`)
	r.expectRead(`table_entry { table_id: @In.acl }`)
	for _, c := range []struct {
		low, high string
		all       bool
	}{{"\x00", "\xff", true}, {"\x00\x00", "\xff\xff", true}, {"\x00", "\xff\xff", false}, {"\x00", "\x01\xff", false}, {"\x01", "\xff", false}} {
		if allBytes(&p4.FieldMatch_Range{Low: []byte(c.low), High: []byte(c.high)}) != c.all {
			t.Errorf("%x to %x", c.low, c.high)
		}
	}
}

// Values may have leading zeros; they are read back without.
func TestCanonicalValues(t *testing.T) {
	r, _ := ready(t)
	r.write(`INSERT table_entry { table_id: @In.acl
			match { field_id: 1 ternary { value: "\000\000\000\000\000\000\001\000" mask: "\000\377\000" } }
			match { field_id: 4 exact { value: "\000\000\001" } } match { field_id: 3 range { low: "\000\000" high: "\000\001" } }
			priority: 1 action { action { action_id: @In.limited params { param_id: 1 value: "\000\000\000\003" } } } }`,
		`INSERT table_entry { table_id: @In.ecmp match { field_id: 1 exact { value: "\000\001" } } action { action_profile_action_set {
			action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\000\003" } } weight: 2 watch_port: "\000\001" } } } }`,
		`INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { port: "\000\000\001" } } }`,
		`INSERT packet_replication_engine_entry { clone_session_entry { session_id: 1 replicas { port: "\000\000\001" } } }`,
		`MODIFY register_entry { register_id: @In.narrow index {} data { bitstring: "\000\000\000\000\000\001" } }`)
	r.expectRead(`table_entry { table_id: @In.acl }`, `table_entry { table_id: @In.acl
			match { field_id: 1 ternary { value: "\001\000" mask: "\377\000" } } match { field_id: 3 range { low: "\000" high: "\001" } }
			match { field_id: 4 exact { value: "\001" } }
			priority: 1 action { action { action_id: @In.limited params { param_id: 1 value: "\003" } } } }`)
	r.expectRead(`table_entry { table_id: @In.ecmp }`, `table_entry { table_id: @In.ecmp match { field_id: 1 exact { value: "\001" } } action { action_profile_action_set {
			action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } weight: 2 watch_port: "\001" } } } }`)
	r.expectRead(`packet_replication_engine_entry { multicast_group_entry {} }`, `packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { port: "\001" } } }`)
	r.expectRead(`packet_replication_engine_entry { clone_session_entry {} }`, `packet_replication_engine_entry { clone_session_entry { session_id: 1 replicas { port: "\001" } } }`)
	r.expectRead(`register_entry { register_id: @In.narrow index {} }`, `register_entry { register_id: @In.narrow index {} data { bitstring: "\001" } }`)
}

// Each modification and deletion has the effect that it should, and no other.
func TestModifyAndDelete(t *testing.T) {
	r, _ := ready(t)
	r.write(`INSERT ` + route10 + to3 + `counter_data { packet_count: 5 byte_count: 6 } metadata: "a" }`)
	all := route10 + `counter_data {} }`
	r.write(`MODIFY ` + route10 + `}`) // nothing given: action and counter stay, metadata goes
	r.expectRead(all, route10+to3+`counter_data { packet_count: 5 byte_count: 6 } }`)
	r.write(`MODIFY ` + route10 + `action { action { action_id: @In.drop } } counter_data { packet_count: 1 } }`)
	r.expectRead(all, route10+`action { action { action_id: @In.drop } } counter_data { packet_count: 1 } }`)
	r.write(`DELETE ` + route10 + `action { action { action_id: 12345 } } metadata: "ignored" idle_timeout_ns: -5 }`)
	r.expectRead(all)

	r.write(`INSERT ` + acl5 + limit3 + `meter_config { cir: 1 cburst: 2 pir: 3 pburst: 4 } idle_timeout_ns: 8 }`)
	r.write(`MODIFY ` + acl5 + `}`) // a meter that is not given is reset
	r.expectRead(acl5+`meter_config {} }`, acl5+limit3+`}`)
	r.write(`MODIFY ` + acl5 + `meter_config { cir: 5 cburst: 5 pir: 5 pburst: 5 } }`)
	r.expectRead(acl5+`meter_config {} }`, acl5+limit3+`meter_config { cir: 5 cburst: 5 pir: 5 pburst: 5 } }`)
	r.expectRead(acl5+`}`, acl5+limit3+`}`) // not asked for
	r.write(`MODIFY direct_meter_entry { ` + acl5 + `} }`)
	r.expectRead(acl5+`meter_config {} }`, acl5+limit3+`}`)

	initial := `table_entry { table_id: @In.routes is_default_action: true action { action { action_id: @In.drop } } `
	r.expectRead(`table_entry { table_id: @In.routes is_default_action: true }`, initial+`}`)
	r.write(`MODIFY table_entry { table_id: @In.routes is_default_action: true ` + to3 + `metadata: "m" controller_metadata: 3 counter_data { packet_count: 4 } }`)
	r.write(`MODIFY table_entry { table_id: @In.routes is_default_action: true }`)
	r.expectRead(`table_entry { table_id: @In.routes is_default_action: true counter_data {} }`, initial+`counter_data {} }`)

	r.write(`MODIFY counter_entry { counter_id: @In.seen data { packet_count: 1 } }`) // all cells
	r.write(`MODIFY counter_entry { counter_id: @In.seen index { index: 2 } }`)       // no data: nothing
	for i, e := range r.read(`counter_entry { counter_id: @In.seen }`) {
		if e.GetCounterEntry().GetData().GetPacketCount() != 1 || e.GetCounterEntry().GetIndex().GetIndex() != int64(i) {
			t.Errorf("cell %d: %v", i, e)
		}
	}
	r.write(`MODIFY register_entry { register_id: @In.broad data { bitstring: "\005" } }`)
	if got := r.read(`register_entry { register_id: @In.broad }`); len(got) != 4 || string(got[3].GetRegisterEntry().GetData().GetBitstring()) != "\005" {
		t.Errorf("registers %v", got)
	}
	r.write(`MODIFY meter_entry { meter_id: @In.rate config { cir: 1 cburst: 1 pir: 1 pburst: 1 } }`)
	if got := r.read(`meter_entry {}`); len(got) != 4 || got[3].GetMeterEntry().GetConfig().GetPir() != 1 {
		t.Errorf("meters %v", got)
	}
	r.write(`MODIFY value_set_entry { value_set_id: @Parse.plain members { match { field_id: 1 exact { value: "\001" } } } }`,
		`MODIFY value_set_entry { value_set_id: @Parse.plain }`)
	r.expectRead(`value_set_entry { value_set_id: @Parse.plain }`, `value_set_entry { value_set_id: @Parse.plain }`)

	group := `packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 `
	r.write(`INSERT `+group+`replicas { port: "\001" } } }`, `MODIFY `+group+`replicas { port: "\002" } } }`)
	r.expectRead(group+`} }`, group+`replicas { port: "\002" } } }`)
	r.write(`DELETE ` + group + `} }`)
	clone := `packet_replication_engine_entry { clone_session_entry { session_id: 1 `
	r.write(`INSERT `+clone+`replicas { port: "\001" } } }`, `MODIFY `+clone+`packet_length_bytes: 5 } }`)
	r.expectRead(clone+`} }`, clone+`packet_length_bytes: 5 } }`)
	r.write(`DELETE ` + clone + `} }`)
	r.write(`INSERT digest_entry { digest_id: @learn_t config {} }`, `MODIFY digest_entry { digest_id: @learn_t config { max_list_size: 4 } }`)
	r.expectRead(`digest_entry {}`, `digest_entry { digest_id: @learn_t config { max_list_size: 4 } }`)
	r.write(`DELETE digest_entry { digest_id: @learn_t }`)
	r.expectRead(`digest_entry {}`)
	r.expectRead(`packet_replication_engine_entry { multicast_group_entry {} }`)
	r.expectRead(`packet_replication_engine_entry { clone_session_entry {} }`)
}

func TestProfileLifeCycle(t *testing.T) {
	r, _ := ready(t)
	member := `action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @In.to params { param_id: 1 value: "\003" } } }`
	group := `action_profile_group { action_profile_id: @In.hops group_id: 1 `
	entry := `table_entry { table_id: @In.ecmp match { field_id: 1 exact { value: "\001" } } `
	r.write(`INSERT `+member, `INSERT `+group+`}`, `MODIFY `+group+`members { member_id: 1 weight: 2 } }`,
		`INSERT `+entry+`action { action_profile_group_id: 1 } }`,
		`MODIFY action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @In.to params { param_id: 1 value: "\004" } } }`)
	r.expectRead(`action_profile_member {}`, `action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @In.to params { param_id: 1 value: "\004" } } }`)
	r.expectRead(`action_profile_group {}`, group+`members { member_id: 1 weight: 2 } }`)
	r.write(`DELETE `+entry+`}`, `DELETE `+group+`}`, `DELETE `+member)
	r.expectRead(`action_profile_member {}`)
	r.expectRead(`action_profile_group {}`)
	// Now that the members are gone, one-shot sets are possible, and change places.
	set := `action { action_profile_action_set { action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } weight: 2 } } } }`
	r.write(`INSERT `+entry+set, `MODIFY `+entry+set, `DELETE `+entry+`}`, `INSERT `+member)
}

// The priorities and default of constant entries, and that they are said to be.
func TestConstantEntries(t *testing.T) {
	r, _ := ready(t)
	one := `table_entry { table_id: @In.fixed match { field_id: 1 ternary { value: "\010\000" mask: "\377\000" } } match { field_id: 2 exact { value: "\001" } } priority: 2147483646 `
	r.expectRead(`table_entry { table_id: @In.fixed }`,
		one+`action { action { action_id: @In.to params { param_id: 1 value: "\005" } } } is_const: true }`,
		`table_entry { table_id: @In.fixed match { field_id: 1 ternary { value: "\011\000" mask: "\377\377" } } match { field_id: 2 exact { value: "\002" } } priority: 2147483645
			action { action { action_id: @In.drop } } is_const: true }`)
	r.expectRead(`table_entry { table_id: @In.fixed is_default_action: true }`,
		`table_entry { table_id: @In.fixed is_default_action: true action { action { action_id: @NoAction } } is_const: true }`)
	r.expectRead(`table_entry { table_id: @In.ecmp is_default_action: true }`,
		`table_entry { table_id: @In.ecmp is_default_action: true action { action { action_id: @NoAction } } is_const: true }`)
	// Direct resources are all that can change.
	r.write(`MODIFY ` + one + `counter_data { packet_count: 3 } }`)
	r.expectRead(one+`counter_data {} }`, one+`action { action { action_id: @In.to params { param_id: 1 value: "\005" } } } counter_data { packet_count: 3 } is_const: true }`)
}

func TestWildcardReads(t *testing.T) {
	r, _ := ready(t)
	r.write(`INSERT `+route10+to3+`metadata: "a" controller_metadata: 1 }`,
		`INSERT table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\013\000\000\000" prefix_len: 8 } } action { action { action_id: @In.drop } } metadata: "b" }`,
		`INSERT `+acl5+limit3+`}`,
		`INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } priority: 6 `+limit3+`}`,
		`INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\000" } } priority: 6 `+limit3+`}`,
		`INSERT action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @In.to params { param_id: 1 value: "\003" } } }`,
		`INSERT action_profile_member { action_profile_id: @In.hops member_id: 2 action { action_id: @In.to params { param_id: 1 value: "\003" } } }`,
		`INSERT action_profile_member { action_profile_id: @In.plainly member_id: 1 action { action_id: @In.drop } }`,
		`INSERT action_profile_group { action_profile_id: @In.hops group_id: 1 }`,
		`INSERT action_profile_group { action_profile_id: @In.hops group_id: 2 }`,
		`INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }`,
		`INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 2 } }`)
	for _, c := range []struct {
		request string
		n       int
	}{
		{`table_entry {}`, 7}, // 2 routes, 3 rules, 2 constant ones
		{`table_entry { is_default_action: true }`, 6},
		{`table_entry { table_id: @In.routes }`, 2},
		{`table_entry { table_id: @In.routes action { action { action_id: @In.to } } }`, 1},
		{`table_entry { table_id: @In.routes metadata: "b" }`, 1},
		{`table_entry { table_id: @In.routes metadata: "c" }`, 0},
		{`table_entry { table_id: @In.routes controller_metadata: 1 }`, 1},
		{`table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\014\000\000\000" prefix_len: 8 } } }`, 0},
		{route10 + `metadata: "b" }`, 0},
		{`table_entry { table_id: @In.acl priority: 6 }`, 2},
		{`table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } }`, 2},
		{acl5 + `}`, 1},
		{`action_profile_member { action_profile_id: @In.hops }`, 2},
		{`action_profile_member {}`, 3},
		{`action_profile_group { action_profile_id: @In.hops }`, 2},
		{`action_profile_group { action_profile_id: @In.hops group_id: 2 }`, 1},
		{`counter_entry {}`, 8},
		{`counter_entry { counter_id: @In.seen }`, 8},
		{`counter_entry { index { index: 3 } }`, 8}, // an index counts only with an id
		{`meter_entry {}`, 4},
		{`register_entry {}`, 20},
		{`value_set_entry {}`, 2},
		{`direct_counter_entry { table_entry {} }`, 4},
		{`direct_counter_entry { table_entry { table_id: @In.routes } }`, 2},
		{`direct_meter_entry { table_entry {} }`, 3},
		{`direct_meter_entry { table_entry { table_id: @In.acl } }`, 3},
		{`packet_replication_engine_entry { multicast_group_entry {} }`, 2},
		{`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 2 } }`, 1},
		{`extern_entry {}`, 0},
	} {
		if got := r.read(c.request); len(got) != c.n {
			t.Errorf("%s: %d entities, want %d: %v", c.request, len(got), c.n, got)
		}
	}
}

// A large read comes in many messages, none of them large.
func TestReadInChunks(t *testing.T) {
	r, _ := ready(t)
	req := r.request(0)
	const n = 2*responseSize + 500
	for i := range n {
		req.Updates = append(req.Updates, &p4.Update{Type: p4.Update_INSERT, Entity: routeEntity(r.ids, i)})
	}
	if _, err := r.client.Write(t.Context(), req); err != nil {
		t.Fatal(describe(err))
	}
	stream, err := r.client.Read(t.Context(), &p4.ReadRequest{DeviceId: device, Entities: []*p4.Entity{r.entity(`table_entry { table_id: @In.routes }`)}})
	if err != nil {
		t.Fatal(err)
	}
	var got []*p4.Entity
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		if len(m.GetEntities()) > responseSize {
			t.Errorf("%d entities in one message", len(m.GetEntities()))
		}
		got = append(got, m.GetEntities()...)
	}
	if len(got) != n {
		t.Fatalf("%d entities were read, and %d are there", len(got), n)
	}
	for i, e := range got {
		if !proto.Equal(e, req.Updates[i].GetEntity()) {
			t.Fatalf("entity %d is %v, want %v", i, e, req.Updates[i].GetEntity())
		}
	}
}

// routeEntity is the i-th host route.
func routeEntity(ids map[string]uint32, i int) *p4.Entity {
	return &p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: &p4.TableEntry{
		TableId: ids["In.routes"],
		Match: []*p4.FieldMatch{{FieldId: 1, FieldMatchType: &p4.FieldMatch_Lpm{Lpm: &p4.FieldMatch_LPM{
			Value: []byte{10, byte(i >> 16), byte(i >> 8), byte(i)}, PrefixLen: 32,
		}}}},
		Action: &p4.TableAction{Type: &p4.TableAction_Action{Action: &p4.Action{
			ActionId: ids["In.to"], Params: []*p4.Action_Param{{ParamId: 1, Value: []byte{byte(i%100 + 1)}}},
		}}},
	}}}
}
