package p4rtserver

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
)

// badUpdates is every way in which an update can be wrong, with the code and the
// words that say so. Those of before are written first.
var badUpdates = []struct {
	name   string
	before string
	update string
	code   codes.Code
	text   string
}{
	{"no type", "", `UNSPECIFIED ` + route10 + to3 + `}`, codes.InvalidArgument, "the update's type is UNSPECIFIED"},
	{"no entity", "", `INSERT`, codes.InvalidArgument, "the update has no entity"},
	{"extern", "", `INSERT extern_entry { extern_type_id: 129 }`, codes.Unimplemented, "v1model has no externs"},
	{"empty PRE entry", "", `INSERT packet_replication_engine_entry {}`, codes.InvalidArgument, "neither a multicast group nor a clone session"},

	// Tables.
	{"no table", "", `INSERT table_entry {}`, codes.InvalidArgument, "no table id is given"},
	{"table id of nothing", "", `INSERT table_entry { table_id: 5 }`, codes.InvalidArgument, "there is no table with id 5 (0x00000005): that is nothing in the P4Info"},
	{"table id of an action", "", `INSERT table_entry { table_id: @In.to }`, codes.InvalidArgument, "that is action In.to"},
	{"is_const", "", `INSERT ` + route10 + to3 + `is_const: true }`, codes.InvalidArgument, "table In.routes: is_const is set"},
	{"unknown field", "", `INSERT table_entry { table_id: @In.routes match { field_id: 9 exact { value: "\001" } } ` + to3 + `}`, codes.InvalidArgument, "table In.routes: there is no field with id 9"},
	{"field twice", "", `INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } match { field_id: 4 exact { value: "\001" } } priority: 1 ` + limit3 + `}`, codes.InvalidArgument, "field 4 (h.ip.$valid$) is given twice"},
	{"too many fields", "", `INSERT table_entry { table_id: @In.routes ` + strings.Repeat(`match { field_id: 1 lpm { value: "\001" prefix_len: 32 } }`, 9) + to3 + `}`, codes.InvalidArgument, "field 1 (h.ip.dst) is given twice"},
	{"exact field missing", "", `INSERT table_entry { table_id: @In.acl priority: 1 ` + limit3 + `}`, codes.InvalidArgument, "field 4 (h.ip.$valid$) is missing"},
	{"no match", "", `INSERT table_entry { table_id: @In.routes match { field_id: 1 } ` + to3 + `}`, codes.InvalidArgument, "field 1 (h.ip.dst): no match is given; this is a field of type LPM"},
	{"other match", "", `INSERT table_entry { table_id: @In.routes match { field_id: 1 exact { value: "\001" } } ` + to3 + `}`, codes.InvalidArgument, "field 1 (h.ip.dst): the match is of another type; this is a field of type LPM"},
	{"value too wide", "", `INSERT table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\200\000\000\000\000" prefix_len: 8 } } ` + to3 + `}`, codes.InvalidArgument, "table In.routes: field 1 (h.ip.dst): value 0x8000000000 needs 40 bits, the field has 32"},
	{"value empty", "", `INSERT table_entry { table_id: @In.routes match { field_id: 1 lpm { prefix_len: 8 } } ` + to3 + `}`, codes.InvalidArgument, "field 1 (h.ip.dst): the value is empty"},
	{"prefix 0", "", `INSERT table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\000" } } ` + to3 + `}`, codes.InvalidArgument, "prefix length 0: a field that does not matter must be left out"},
	{"prefix 33", "", `INSERT table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\000" prefix_len: 33 } } ` + to3 + `}`, codes.InvalidArgument, "prefix length 33 of 32 bits"},
	{"prefix -1", "", `INSERT table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\000" prefix_len: -1 } } ` + to3 + `}`, codes.InvalidArgument, "prefix length -1 of 32 bits"},
	{"bits outside of the prefix", "", `INSERT table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\n\000\000\001" prefix_len: 31 } } ` + to3 + `}`, codes.InvalidArgument, "value 0x0a000001 has bits outside of its prefix of 31 bits"},
	{"mask 0", "", badACL(`match { field_id: 1 ternary { value: "\000" mask: "\000" } }`), codes.InvalidArgument, "field 1 (h.eth.dst): mask 0: a field that does not matter must be left out"},
	{"mask empty", "", badACL(`match { field_id: 1 ternary { value: "\000" } }`), codes.InvalidArgument, "field 1 (h.eth.dst): mask: the value is empty"},
	{"ternary value empty", "", badACL(`match { field_id: 1 ternary { mask: "\001" } }`), codes.InvalidArgument, "field 1 (h.eth.dst): the value is empty"},
	{"bits outside of the mask", "", badACL(`match { field_id: 1 ternary { value: "\003" mask: "\001" } }`), codes.InvalidArgument, "value 0x03 has bits outside of its mask 0x01"},
	{"range backwards", "", badACL(`match { field_id: 3 range { low: "\003" high: "\001" } }`), codes.InvalidArgument, "field 3 (s.ingress_port): low 0x03 is greater than high 0x01"},
	{"low too wide", "", badACL(`match { field_id: 3 range { low: "\002\000" high: "\001\377" } }`), codes.InvalidArgument, "low: value 0x0200 needs 10 bits, the field has 9"},
	{"high empty", "", badACL(`match { field_id: 3 range { low: "\001" } }`), codes.InvalidArgument, "high: the value is empty"},
	{"optional too wide", "", badACL(`match { field_id: 2 optional { value: "\001\000\000" } }`), codes.InvalidArgument, "field 2 (h.eth.type): value 0x010000 needs 17 bits, the field has 16"},
	{"ternary for optional", "", badACL(`match { field_id: 2 ternary { value: "\001" mask: "\001" } }`), codes.InvalidArgument, "this is a field of type OPTIONAL"},
	{"priority missing", "", `INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } ` + limit3 + `}`, codes.InvalidArgument, "table In.acl: priority 0: its key has a ternary, range or optional field, so entries need a priority of 1 or more"},
	{"priority negative", "", `INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } priority: -1 ` + limit3 + `}`, codes.InvalidArgument, "priority -1"},
	{"priority where there is none", "", `INSERT ` + route10 + to3 + `priority: 1 }`, codes.InvalidArgument, "table In.routes: priority 1: its key has no ternary"},
	{"no action", "", `INSERT ` + route10 + `}`, codes.InvalidArgument, "table In.routes: a new entry needs an action"},
	{"empty action", "", `INSERT ` + route10 + `action {} }`, codes.InvalidArgument, "table In.routes: the entry's action is empty"},
	{"another table's action", "", `INSERT ` + route10 + `action { action { action_id: @In.limited } } }`, codes.InvalidArgument, "table In.routes: action id"},
	{"defaultonly action", "", `INSERT ` + route10 + `action { action { action_id: @NoAction } } }`, codes.PermissionDenied, "table In.routes: action NoAction can only be the default action"},
	{"parameter missing", "", `INSERT ` + route10 + `action { action { action_id: @In.to } } }`, codes.InvalidArgument, "table In.routes: action In.to: parameter 1 (port) is missing"},
	{"parameter unknown", "", `INSERT ` + route10 + `action { action { action_id: @In.to params { param_id: 2 value: "\001" } } } }`, codes.InvalidArgument, "action In.to: there is no parameter with id 2"},
	{"parameter for an action without", "", `INSERT ` + route10 + `action { action { action_id: @In.drop params { param_id: 1 value: "\001" } } } }`, codes.InvalidArgument, "action In.drop: there is no parameter with id 1"},
	{"parameter twice", "", `INSERT ` + route10 + `action { action { action_id: @In.to params { param_id: 1 value: "\001" } params { param_id: 1 value: "\001" } } } }`, codes.InvalidArgument, "parameter 1 (port) is given twice"},
	{"parameter too wide", "", `INSERT ` + route10 + `action { action { action_id: @In.to params { param_id: 1 value: "\002\000" } } } }`, codes.InvalidArgument, "action In.to: parameter 1 (port): value 0x0200 needs 10 bits, the parameter has 9"},
	{"parameter empty", "", `INSERT ` + route10 + `action { action { action_id: @In.to params { param_id: 1 } } } }`, codes.InvalidArgument, "parameter 1 (port): the value is empty"},
	{"member in a direct table", "", `INSERT ` + route10 + `action { action_profile_member_id: 1 } }`, codes.InvalidArgument, "table In.routes: its entries call actions"},
	{"time-out where there is none", "", `INSERT ` + route10 + to3 + `idle_timeout_ns: 1 }`, codes.InvalidArgument, "table In.routes: idle_timeout_ns is set, but the table does not support idle time-outs"},
	{"time-out negative", "", `INSERT ` + acl5 + limit3 + `idle_timeout_ns: -1 }`, codes.InvalidArgument, "idle_timeout_ns is -1"},
	{"last hit written", "", `INSERT ` + acl5 + limit3 + `time_since_last_hit {} }`, codes.InvalidArgument, "time_since_last_hit is set; it is for reading only"},
	{"counter where there is none", "", `INSERT ` + acl5 + limit3 + `counter_data {} }`, codes.InvalidArgument, "table In.acl: counter_data is set, but the table has no direct counter"},
	{"count negative", "", `INSERT ` + route10 + to3 + `counter_data { byte_count: -1 } }`, codes.InvalidArgument, "direct counter In.routed: a count is negative"},
	{"meter where there is none", "", `INSERT ` + route10 + to3 + `meter_config {} }`, codes.InvalidArgument, "table In.routes: meter_config is set, but the table has no direct meter"},
	{"meter colors", "", `INSERT ` + acl5 + limit3 + `meter_counter_data {} }`, codes.Unimplemented, "table In.acl: counters per color"},
	{"meter eburst", "", `INSERT ` + acl5 + limit3 + `meter_config { eburst: 1 } }`, codes.InvalidArgument, "direct meter In.limit: eburst is 1"},
	{"meter rates", "", `INSERT ` + acl5 + limit3 + `meter_config { cir: 2 pir: 1 } }`, codes.InvalidArgument, "direct meter In.limit: pir 1 is less than cir 2"},
	{"meter negative", "", `INSERT ` + acl5 + limit3 + `meter_config { cburst: -2 } }`, codes.InvalidArgument, "a rate or burst is negative"},
	{"exists", `INSERT ` + route10 + to3 + `}`, `INSERT ` + route10 + to3 + `}`, codes.AlreadyExists, "table In.routes: key {h.ip.dst=0x0a000000/8}: entry exists already"},
	{"modify what is not there", "", `MODIFY ` + route10 + to3 + `}`, codes.NotFound, "table In.routes: key {h.ip.dst=0x0a000000/8}: entry not found"},
	{"delete what is not there", "", `DELETE ` + route10 + `}`, codes.NotFound, "entry not found"},
	{"delete with another priority", `INSERT ` + acl5 + limit3 + `}`, `DELETE table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } priority: 6 }`, codes.NotFound, "priority 6: entry not found"},
	{"modify, bad action", `INSERT ` + route10 + to3 + `}`, `MODIFY ` + route10 + `action { action { action_id: @NoAction } } }`, codes.PermissionDenied, "can only be the default action"},
	{"modify, bad time-out", `INSERT ` + route10 + to3 + `}`, `MODIFY ` + route10 + `idle_timeout_ns: 1 }`, codes.InvalidArgument, "does not support idle time-outs"},
	{"modify, bad meter", `INSERT ` + acl5 + limit3 + `}`, `MODIFY ` + acl5 + `meter_config { cir: -1 } }`, codes.InvalidArgument, "is negative"},
	{"table without key", "", `INSERT table_entry { table_id: @In.always action { action { action_id: @NoAction } } }`, codes.InvalidArgument, "table In.always has no key and therefore no entries but the default one"},

	// Constant tables.
	{"insert into a constant table", "", `INSERT table_entry { table_id: @In.fixed match { field_id: 2 exact { value: "\007" } } priority: 1 action { action { action_id: @In.drop } } }`, codes.PermissionDenied, "table In.fixed is constant"},
	{"delete from a constant table", "", `DELETE ` + fixed1 + `}`, codes.PermissionDenied, "DELETE is not possible"},
	{"action of a constant entry", "", `MODIFY ` + fixed1 + `action { action { action_id: @In.drop } } }`, codes.PermissionDenied, "only direct resources can be modified"},
	{"constant entry that is not there", "", `MODIFY table_entry { table_id: @In.fixed match { field_id: 2 exact { value: "\007" } } priority: 1 }`, codes.NotFound, "table In.fixed: there is no such entry"},
	{"constant entry, no meter", "", `MODIFY ` + fixed1 + `meter_config {} }`, codes.InvalidArgument, "has no direct meter"},

	// Default entries.
	{"default: insert", "", `INSERT table_entry { table_id: @In.routes is_default_action: true ` + to3 + `}`, codes.InvalidArgument, "table In.routes: default entry: INSERT is not possible"},
	{"default: delete", "", `DELETE table_entry { table_id: @In.routes is_default_action: true }`, codes.InvalidArgument, "default entry: DELETE is not possible"},
	{"default: match", "", `MODIFY table_entry { table_id: @In.routes is_default_action: true match { field_id: 1 } }`, codes.InvalidArgument, "default entry: it has no match fields"},
	{"default: priority", "", `MODIFY table_entry { table_id: @In.acl is_default_action: true priority: 1 }`, codes.InvalidArgument, "default entry: it has no priority"},
	{"default: time-out", "", `MODIFY table_entry { table_id: @In.acl is_default_action: true idle_timeout_ns: 1 }`, codes.InvalidArgument, "default entry: it has no idle time-out"},
	{"default: constant", "", `MODIFY table_entry { table_id: @In.fixed is_default_action: true }`, codes.PermissionDenied, "table In.fixed: default entry: it is constant"},
	{"default: indirect", "", `MODIFY table_entry { table_id: @In.ecmp is_default_action: true }`, codes.PermissionDenied, "with an action profile is constant"},
	{"default: member", "", `MODIFY table_entry { table_id: @In.routes is_default_action: true action { action_profile_member_id: 1 } }`, codes.InvalidArgument, "default entry: it needs an action"},
	{"default: unknown action", "", `MODIFY table_entry { table_id: @In.routes is_default_action: true action { action { action_id: 5 } } }`, codes.InvalidArgument, "default entry: table In.routes: action id 5 is not one of its actions"},
	{"default: tableonly", "", `MODIFY table_entry { table_id: @In.routes is_default_action: true action { action { action_id: @In.punt } } }`, codes.PermissionDenied, "default entry: action In.punt can only be in entries"},
	{"default: counter", "", `MODIFY table_entry { table_id: @In.acl is_default_action: true counter_data {} }`, codes.InvalidArgument, "has no direct counter"},

	// Action profiles.
	{"action in an indirect table", "", `INSERT table_entry { table_id: @In.ecmp match { field_id: 1 exact { value: "\001" } } ` + to3 + `}`, codes.InvalidArgument, "table In.ecmp: its entries refer to members or groups of action profile In.hops"},
	{"entry of a member that is not there", "", `INSERT ` + ecmp1 + `action { action_profile_member_id: 1 } }`, codes.NotFound, "member 1 not found"},
	{"entry of a group that is not there", "", `INSERT ` + ecmp1 + `action { action_profile_group_id: 1 } }`, codes.NotFound, "group 1 not found"},
	{"entry of a group without selector", "", `INSERT table_entry { table_id: @In.indirect match { field_id: 1 exact { value: "\001" } } action { action_profile_group_id: 1 } }`, codes.InvalidArgument, "action profile In.plainly has no selector, hence no groups"},
	{"set without selector", "", `INSERT table_entry { table_id: @In.indirect match { field_id: 1 exact { value: "\001" } } action { action_profile_action_set {} } }`, codes.InvalidArgument, "has no selector, so entries cannot have action sets"},
	{"empty set", "", `INSERT ` + ecmp1 + `action { action_profile_action_set {} } }`, codes.InvalidArgument, "a set of no actions"},
	{"set: weight", "", `INSERT ` + ecmp1 + `action { action_profile_action_set { action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } } } } }`, codes.InvalidArgument, "table In.ecmp: action set: weight 0: it must be 1 or more"},
	{"set: no action", "", `INSERT ` + ecmp1 + `action { action_profile_action_set { action_profile_actions { weight: 1 } } } }`, codes.InvalidArgument, "needs an action"},
	{"set: watch port", "", `INSERT ` + ecmp1 + `action { action_profile_action_set { action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } weight: 1 watch_port: "\002\000" } } } }`, codes.InvalidArgument, "watch_port: value 0x0200 needs 10 bits, the port has 9"},
	{"set: mode", "", `INSERT ` + ecmp1 + `action { action_profile_action_set { action_selection_mode: RANDOM } } }`, codes.Unimplemented, "this switch selects by hash only"},
	{"set: semantics", "", `INSERT ` + ecmp1 + `action { action_profile_action_set { size_semantics: 7 } } }`, codes.InvalidArgument, "there are no size_semantics 7"},
	{"set beside members", `INSERT ` + member1, `INSERT ` + ecmp1 + `action { action_profile_action_set { action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } weight: 1 } } } }`, codes.InvalidArgument, "action sets cannot be used beside them"},
	{"member beside sets", `INSERT ` + ecmp1 + `action { action_profile_action_set { action_profile_actions { action { action_id: @In.to params { param_id: 1 value: "\003" } } weight: 1 } } } }`, `INSERT ` + member1, codes.InvalidArgument, "members and groups cannot be used beside them"},
	{"no profile", "", `INSERT action_profile_member { member_id: 1 }`, codes.InvalidArgument, "no action profile id is given"},
	{"member id 0", "", `INSERT action_profile_member { action_profile_id: @In.hops }`, codes.InvalidArgument, "action profile In.hops: no member id is given"},
	{"member without action", "", `INSERT action_profile_member { action_profile_id: @In.hops member_id: 1 }`, codes.InvalidArgument, "the member needs an action"},
	{"member, wrong action", "", `INSERT action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @In.drop } }`, codes.InvalidArgument, "action profile In.hops: action id"},
	{"member, defaultonly", "", `INSERT action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @NoAction } }`, codes.PermissionDenied, "can only be the default action"},
	{"member exists", `INSERT ` + member1, `INSERT ` + member1, codes.AlreadyExists, "In.hops: member 1 exists already"},
	{"member not there", "", `MODIFY ` + member1, codes.NotFound, "In.hops: member 1 not found"},
	{"delete member not there", "", `DELETE ` + member1, codes.NotFound, "In.hops: member 1 not found"},
	{"group id 0", "", `INSERT action_profile_group { action_profile_id: @In.hops }`, codes.InvalidArgument, "action profile In.hops: no group id is given"},
	{"group without selector", "", `INSERT action_profile_group { action_profile_id: @In.plainly group_id: 1 }`, codes.InvalidArgument, "has no selector, hence no groups"},
	{"group of unknown profile", "", `INSERT action_profile_group { action_profile_id: @In.seen group_id: 1 }`, codes.InvalidArgument, "that is counter In.seen"},
	{"group exists", `INSERT ` + group1 + `}`, `INSERT ` + group1 + `}`, codes.AlreadyExists, "group 1 exists already"},
	{"group not there", "", `MODIFY ` + group1 + `}`, codes.NotFound, "group 1 not found"},
	{"delete group not there", "", `DELETE ` + group1 + `}`, codes.NotFound, "group 1 not found"},
	{"group, member not there", "", `INSERT ` + group1 + `members { member_id: 4 weight: 1 } }`, codes.NotFound, "member 4 not found"},
	{"group, member id 0", "", `INSERT ` + group1 + `members { weight: 1 } }`, codes.InvalidArgument, "group 1: a member without id"},
	{"group, weight", `INSERT ` + member1, `INSERT ` + group1 + `members { member_id: 1 } }`, codes.InvalidArgument, "group 1: member 1: weight 0"},
	{"group, watch", `INSERT ` + member1, `INSERT ` + group1 + `members { member_id: 1 weight: 1 watch: 512 } }`, codes.InvalidArgument, "watch: port 512: ports are from 0 to 511"},
	{"group, member twice", `INSERT ` + member1, `INSERT ` + group1 + `members { member_id: 1 weight: 1 } members { member_id: 1 weight: 1 } }`, codes.InvalidArgument, "member 1 twice"},
	{"group, max_size", "", `INSERT ` + group1 + `max_size: -1 }`, codes.InvalidArgument, "group 1: max_size is -1"},
	{"group, more than max_size", `INSERT ` + member1, `INSERT ` + group1 + `max_size: 2 members { member_id: 1 weight: 3 } }`, codes.ResourceExhausted, "the weights add up to 3, of 2 at most"},
	{"group, other max_size", `INSERT ` + group1 + `max_size: 2 }`, `MODIFY ` + group1 + `max_size: 3 }`, codes.InvalidArgument, "max_size is 2 and cannot be changed to 3"},

	// Arrays.
	{"no counter", "", `MODIFY counter_entry {}`, codes.InvalidArgument, "no counter id is given"},
	{"counter insert", "", `INSERT counter_entry { counter_id: @In.seen }`, codes.InvalidArgument, "counter In.seen: INSERT is not possible: it can only be modified"},
	{"counter index negative", "", `MODIFY counter_entry { counter_id: @In.seen index { index: -1 } data {} }`, codes.InvalidArgument, "counter In.seen: index -1 is negative"},
	{"counter index", "", `MODIFY counter_entry { counter_id: @In.seen index { index: 8 } data {} }`, codes.OutOfRange, "counter In.seen: index 8: it has 8 cells"},
	{"counter negative", "", `MODIFY counter_entry { counter_id: @In.seen index {} data { packet_count: -1 } }`, codes.InvalidArgument, "counter In.seen: a count is negative"},
	{"direct counter insert", "", `INSERT direct_counter_entry { ` + route10 + `} }`, codes.InvalidArgument, "direct counter entry: INSERT is not possible"},
	{"direct counter, no entry", "", `MODIFY direct_counter_entry { ` + route10 + `} data {} }`, codes.NotFound, "table In.routes: there is no such entry"},
	{"direct counter, no table", "", `MODIFY direct_counter_entry {}`, codes.InvalidArgument, "no table id is given"},
	{"direct counter, none", `INSERT ` + acl5 + limit3 + `}`, `MODIFY direct_counter_entry { ` + acl5 + `} data {} }`, codes.InvalidArgument, "table In.acl has no direct counter"},
	{"direct counter, default", "", `MODIFY direct_counter_entry { table_entry { table_id: @In.routes is_default_action: true priority: 1 } }`, codes.InvalidArgument, "neither match fields nor priority"},
	{"direct counter negative", `INSERT ` + route10 + to3 + `}`, `MODIFY direct_counter_entry { ` + route10 + `} data { byte_count: -1 } }`, codes.InvalidArgument, "a count is negative"},
	{"no meter", "", `MODIFY meter_entry { meter_id: @In.seen }`, codes.InvalidArgument, "there is no meter with id"},
	{"meter delete", "", `DELETE meter_entry { meter_id: @In.rate }`, codes.InvalidArgument, "meter In.rate: DELETE is not possible"},
	{"meter index", "", `MODIFY meter_entry { meter_id: @In.rate index { index: 4 } }`, codes.OutOfRange, "meter In.rate: index 4: it has 4 cells"},
	{"meter config", "", `MODIFY meter_entry { meter_id: @In.rate config { pir: -1 } }`, codes.InvalidArgument, "meter In.rate: a rate or burst is negative"},
	{"meter color counters", "", `MODIFY meter_entry { meter_id: @In.rate counter_data {} }`, codes.Unimplemented, "meter In.rate: counters per color"},
	{"direct meter insert", "", `INSERT direct_meter_entry { ` + acl5 + `} }`, codes.InvalidArgument, "direct meter entry: INSERT is not possible"},
	{"direct meter, no entry", "", `MODIFY direct_meter_entry { ` + acl5 + `} }`, codes.NotFound, "table In.acl: there is no such entry"},
	{"direct meter, none", `INSERT ` + route10 + to3 + `}`, `MODIFY direct_meter_entry { ` + route10 + `} }`, codes.InvalidArgument, "table In.routes has no direct meter"},
	{"direct meter colors", `INSERT ` + acl5 + limit3 + `}`, `MODIFY direct_meter_entry { ` + acl5 + `} counter_data {} }`, codes.Unimplemented, "direct meter In.limit: counters per color"},
	{"direct meter config", `INSERT ` + acl5 + limit3 + `}`, `MODIFY direct_meter_entry { ` + acl5 + `} config { eburst: 2 } }`, codes.InvalidArgument, "eburst is 2"},
	{"no register", "", `MODIFY register_entry {}`, codes.InvalidArgument, "no register id is given"},
	{"register insert", "", `INSERT register_entry { register_id: @In.narrow }`, codes.InvalidArgument, "register In.narrow: INSERT is not possible"},
	{"register index", "", `MODIFY register_entry { register_id: @In.narrow index { index: 16 } data { bitstring: "\001" } }`, codes.OutOfRange, "register In.narrow: index 16: it has 16 cells"},
	{"register too wide", "", `MODIFY register_entry { register_id: @In.broad index {} data { bitstring: "\020\000\000\000\000\000\000\000\000\000\000\000\000" } }`, codes.OutOfRange, "register In.broad: value 0x10000000000000000000000000 needs 101 bits, the register has 100"},
	{"register without data", "", `MODIFY register_entry { register_id: @In.narrow index {} }`, codes.InvalidArgument, "the data is not the bit string of 32 bits that the P4Info describes"},
	{"register of another type", "", `MODIFY register_entry { register_id: @In.narrow index {} data { bool: true } }`, codes.InvalidArgument, "the data is not the bit string of 32 bits"},

	// Value sets and digests.
	{"no value set", "", `MODIFY value_set_entry {}`, codes.InvalidArgument, "no value set id is given"},
	{"value set insert", "", `INSERT value_set_entry { value_set_id: @Parse.plain }`, codes.InvalidArgument, "value set Parse.plain: INSERT is not possible"},
	{"value set full", "", `MODIFY value_set_entry { value_set_id: @Parse.plain ` + strings.Repeat(`members { match { field_id: 1 exact { value: "\001" } } }`, 5) + `}`, codes.ResourceExhausted, "value set Parse.plain: no room: 5 members, of 4 at most"},
	{"value set, bad member", "", `MODIFY value_set_entry { value_set_id: @Parse.plain members { match { field_id: 1 exact { value: "\001" } } } members {} }`, codes.InvalidArgument, "member 1: value set Parse.plain: field 1 (Parse.plain) is missing"},
	{"value set, duplicate", "", `MODIFY value_set_entry { value_set_id: @Parse.plain ` + strings.Repeat(`members { match { field_id: 1 exact { value: "\001" } } }`, 2) + `}`, codes.AlreadyExists, "value set Parse.plain"},
	{"no digest", "", `INSERT digest_entry {}`, codes.InvalidArgument, "no digest id is given"},
	{"digest without config", "", `INSERT digest_entry { digest_id: @learn_t }`, codes.InvalidArgument, "digest learn_t: it needs a config"},
	{"digest negative", "", `INSERT digest_entry { digest_id: @learn_t config { max_list_size: -1 } }`, codes.InvalidArgument, "digest learn_t: a negative number in its config"},
	{"digest exists", `INSERT digest_entry { digest_id: @learn_t config {} }`, `INSERT digest_entry { digest_id: @learn_t config {} }`, codes.AlreadyExists, "digest learn_t is enabled already"},
	{"digest not there", "", `MODIFY digest_entry { digest_id: @learn_t config {} }`, codes.NotFound, "digest learn_t is not enabled"},
	{"delete digest not there", "", `DELETE digest_entry { digest_id: @learn_t }`, codes.NotFound, "digest learn_t is not enabled"},

	// Replication.
	{"group 0", "", `INSERT ` + mcast(0) + `} }`, codes.InvalidArgument, "they have numbers from 1 to 65535"},
	{"group 65536", "", `INSERT ` + mcast(65536) + `} }`, codes.InvalidArgument, "they have numbers from 1 to 65535"},
	{"multicast group exists", `INSERT ` + mcast(1) + `} }`, `INSERT ` + mcast(1) + `} }`, codes.AlreadyExists, "multicast group 1: already exists"},
	{"multicast group not there", "", `MODIFY ` + mcast(1) + `} }`, codes.NotFound, "multicast group 1: not found"},
	{"delete multicast group not there", "", `DELETE ` + mcast(1) + `} }`, codes.NotFound, "multicast group 1: not found"},
	{"replica port", "", `INSERT ` + mcast(1) + `replicas { port: "\001" } replicas { egress_port: 512 } } }`, codes.InvalidArgument, "multicast group 1: replica 1: port 512: ports are from 0 to 511"},
	{"replica port too wide", "", `INSERT ` + mcast(1) + `replicas { port: "\002\000" } } }`, codes.InvalidArgument, "multicast group 1: replica 0: value 0x0200 needs 10 bits, the port has 9"},
	{"replica instance", "", `INSERT ` + mcast(1) + `replicas { port: "\001" instance: 65536 } } }`, codes.InvalidArgument, "instance 65536: the largest is 65535"},
	{"replica twice", "", `INSERT ` + mcast(1) + `replicas { port: "\001" } replicas { egress_port: 1 } } }`, codes.InvalidArgument, "two replicas go to port 1 with instance 0"},
	{"backup replica", "", `INSERT ` + mcast(1) + `replicas { port: "\001" backup_replicas { port: "\002" } } } }`, codes.Unimplemented, "multicast group 1: backup replicas are not supported"},
	{"too many replicas", "", `INSERT ` + mcast(1) + manyReplicas(1001) + `} }`, codes.ResourceExhausted, "1001 replicas in all groups would be more than the 1000"},
	{"session 0", "", `INSERT ` + clone(0) + `} }`, codes.InvalidArgument, "clone session 0"},
	{"session exists", `INSERT ` + clone(1) + `} }`, `INSERT ` + clone(1) + `} }`, codes.AlreadyExists, "clone session 1: already exists"},
	{"session not there", "", `MODIFY ` + clone(1) + `} }`, codes.NotFound, "clone session 1: not found"},
	{"delete session not there", "", `DELETE ` + clone(1) + `} }`, codes.NotFound, "clone session 1: not found"},
	{"session length", "", `INSERT ` + clone(1) + `packet_length_bytes: -1 } }`, codes.InvalidArgument, "a packet length of -1 bytes"},
	{"session class", "", `INSERT ` + clone(1) + `class_of_service: 2147483648 } }`, codes.InvalidArgument, "class_of_service 2147483648: the largest is 2147483647"},
	{"session replica", "", `INSERT ` + clone(1) + `replicas { port: "" } } }`, codes.InvalidArgument, "clone session 1: replica 0: the value is empty"},
}

const (
	fixed1  = `table_entry { table_id: @In.fixed match { field_id: 1 ternary { value: "\010\000" mask: "\377\000" } } match { field_id: 2 exact { value: "\001" } } priority: 2147483646 `
	ecmp1   = `table_entry { table_id: @In.ecmp match { field_id: 1 exact { value: "\001" } } `
	member1 = `action_profile_member { action_profile_id: @In.hops member_id: 1 action { action_id: @In.to params { param_id: 1 value: "\003" } } }`
	group1  = `action_profile_group { action_profile_id: @In.hops group_id: 1 `
)

// badACL is an entry with one bad field among good ones.
func badACL(match string) string {
	return `INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } ` + match + ` priority: 1 ` + limit3 + `}`
}

func mcast(id int) string {
	return fmt.Sprintf(`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: %d `, id)
}

func clone(id int) string {
	return fmt.Sprintf(`packet_replication_engine_entry { clone_session_entry { session_id: %d `, id)
}

func manyReplicas(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "replicas { egress_port: 1 instance: %d }\n", i)
	}
	return b.String()
}

func TestBadUpdates(t *testing.T) {
	r, _ := ready(t)
	empty := r.everything()
	for _, c := range badUpdates {
		t.Run(c.name, func(t *testing.T) {
			if c.before != "" {
				r.write(c.before)
			}
			before := r.everything()
			err := r.tryWrite(p4.WriteRequest_CONTINUE_ON_ERROR, c.update)
			expectDetail(t, err, 0, c.code, c.text)
			expectSame(t, before, r.everything()) // a refused update changes nothing
			if c.before != "" {
				r.write("DELETE" + strings.TrimPrefix(c.before, "INSERT"))
			}
		})
	}
	expectSame(t, empty, r.everything())
}

func TestFull(t *testing.T) {
	r, _ := ready(t)
	for i := range 64 {
		r.write(fmt.Sprintf(`INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } priority: %d `, i+1) + limit3 + `}`)
	}
	expectDetail(t, r.tryWrite(0, `INSERT table_entry { table_id: @In.acl match { field_id: 4 exact { value: "\001" } } priority: 100 `+limit3+`}`),
		0, codes.ResourceExhausted, "table In.acl")
	for i := range 8 {
		r.write(fmt.Sprintf(`INSERT action_profile_member { action_profile_id: @In.plainly member_id: %d action { action_id: @In.drop } }`, i+1))
	}
	expectDetail(t, r.tryWrite(0, `INSERT action_profile_member { action_profile_id: @In.plainly member_id: 9 action { action_id: @In.drop } }`),
		0, codes.ResourceExhausted, "In.plainly")
	for i := range 100 {
		r.write(`INSERT ` + mcast(i+1) + `} }`)
	}
	expectDetail(t, r.tryWrite(0, `INSERT `+mcast(101)+`} }`), 0, codes.ResourceExhausted, "multicast group 101")
}

func TestInUse(t *testing.T) {
	r, _ := ready(t)
	r.write(`INSERT `+member1, `INSERT `+group1+`members { member_id: 1 weight: 1 } }`, `INSERT `+ecmp1+`action { action_profile_group_id: 1 } }`)
	expectDetail(t, r.tryWrite(0, `DELETE `+member1), 0, codes.FailedPrecondition, "member 1: in use")
	expectDetail(t, r.tryWrite(0, `DELETE `+group1+`}`), 0, codes.FailedPrecondition, "group 1: in use")
}

func TestBadReads(t *testing.T) {
	r, _ := ready(t)
	for _, c := range []struct {
		request string
		code    codes.Code
		text    string
	}{
		{``, codes.InvalidArgument, "the request has no entity"},
		{`packet_replication_engine_entry {}`, codes.InvalidArgument, "neither a multicast group nor a clone session"},
		{`extern_entry { extern_type_id: 129 }`, codes.Unimplemented, "v1model has no externs"},
		{`table_entry { table_id: 5 }`, codes.InvalidArgument, "there is no table with id 5"},
		{`table_entry { priority: 5 }`, codes.InvalidArgument, "table id 0 means all tables"},
		{`table_entry { meter_counter_data {} }`, codes.Unimplemented, "counters per color"},
		{`table_entry { table_id: @In.routes time_since_last_hit {} }`, codes.InvalidArgument, "time_since_last_hit is asked for"},
		{`table_entry { table_id: @In.acl is_default_action: true time_since_last_hit {} }`, codes.InvalidArgument, "time_since_last_hit is asked for"},
		{`table_entry { table_id: @In.routes is_default_action: true match { field_id: 1 } }`, codes.InvalidArgument, "neither match fields nor priority"},
		{`table_entry { table_id: @In.routes match { field_id: 1 } }`, codes.InvalidArgument, "no match is given"},
		{`table_entry { table_id: @In.routes priority: 1 }`, codes.InvalidArgument, "its entries have no priority"},
		{`table_entry { table_id: @In.acl priority: -1 }`, codes.InvalidArgument, "priority -1"},
		{`table_entry { table_id: @In.routes action { action { action_id: 5 } } }`, codes.InvalidArgument, "action id 5 is not one of its actions"},
		{`action_profile_member { action_profile_id: 5 }`, codes.InvalidArgument, "there is no action profile with id 5"},
		{`action_profile_member { member_id: 5 }`, codes.InvalidArgument, "member id 5 without an action profile id"},
		{`action_profile_member { action_profile_id: @In.hops member_id: 5 }`, codes.NotFound, "action profile In.hops: there is no member 5"},
		{`action_profile_group { action_profile_id: 5 }`, codes.InvalidArgument, "there is no action profile with id 5"},
		{`action_profile_group { group_id: 5 }`, codes.InvalidArgument, "group id 5 without an action profile id"},
		{`action_profile_group { action_profile_id: @In.hops group_id: 5 }`, codes.NotFound, "action profile In.hops: there is no group 5"},
		{`counter_entry { counter_id: 5 }`, codes.InvalidArgument, "there is no counter with id 5"},
		{`counter_entry { counter_id: @In.seen index { index: -1 } }`, codes.InvalidArgument, "index -1 is negative"},
		{`counter_entry { counter_id: @In.seen index { index: 8 } }`, codes.OutOfRange, "it has 8 cells"},
		{`direct_counter_entry {}`, codes.InvalidArgument, "direct counter: no table entry is given"},
		{`direct_counter_entry { table_entry { table_id: 5 } }`, codes.InvalidArgument, "there is no table with id 5"},
		{`direct_counter_entry { table_entry { table_id: @In.acl } }`, codes.InvalidArgument, "table In.acl has no direct counter"},
		{`direct_counter_entry { ` + route10 + `} }`, codes.NotFound, "table In.routes: there is no such entry"},
		{`meter_entry { meter_id: 5 }`, codes.InvalidArgument, "there is no meter with id 5"},
		{`meter_entry { counter_data {} }`, codes.Unimplemented, "counters per color"},
		{`meter_entry { meter_id: @In.rate index { index: 4 } }`, codes.OutOfRange, "it has 4 cells"},
		{`direct_meter_entry { table_entry { table_id: @In.routes } }`, codes.InvalidArgument, "table In.routes has no direct meter"},
		{`direct_meter_entry { counter_data {} }`, codes.Unimplemented, "counters per color"},
		{`register_entry { register_id: 5 }`, codes.InvalidArgument, "there is no register with id 5"},
		{`register_entry { register_id: @In.narrow index { index: 16 } }`, codes.OutOfRange, "it has 16 cells"},
		{`value_set_entry { value_set_id: 5 }`, codes.InvalidArgument, "there is no value set with id 5"},
		{`digest_entry { digest_id: 5 }`, codes.InvalidArgument, "there is no digest with id 5"},
		{`digest_entry { digest_id: @learn_t }`, codes.NotFound, "digest learn_t is not enabled"},
		{mcast(5) + `} }`, codes.NotFound, "there is no multicast group 5"},
		{clone(5) + `} }`, codes.NotFound, "there is no clone session 5"},
	} {
		t.Run(c.request, func(t *testing.T) {
			// What is right beside it is answered.
			got, err := r.tryRead(`register_entry { register_id: @In.narrow index {} }`, c.request, `register_entry { register_id: @In.narrow index {} }`)
			expectDetail(t, err, 1, c.code, c.text)
			if len(got) != 2 || len(details(err)) != 3 || details(err)[0].GetCanonicalCode() != 0 || details(err)[2].GetCanonicalCode() != 0 {
				t.Errorf("%d entities, %v", len(got), describe(err))
			}
		})
	}
}

// The status of a large failed batch stays within what C++ and Python clients
// accept, and the first error keeps its text.
func TestErrorsFitTheTrailer(t *testing.T) {
	r, _ := ready(t)
	bad := `INSERT table_entry { table_id: @In.routes match { field_id: 1 lpm { value: "\200\000\000\000\000" prefix_len: 8 } } ` + to3 + `}`
	var lines []string
	for range 100 {
		lines = append(lines, bad)
	}
	err := r.tryWrite(0, lines...)
	if n := len(details(err)); n != 100 {
		t.Fatalf("%d details", n)
	}
	expectDetail(t, err, 0, codes.InvalidArgument, "field 1 (h.ip.dst): value 0x8000000000 needs 40 bits")
	if e := details(err)[99]; e.GetCanonicalCode() != int32(codes.InvalidArgument) || e.GetMessage() != "" {
		t.Errorf("the last error is %v", e)
	}
	expectError(t, err, codes.Unknown, "100 of 100 updates failed; number 0: table In.routes")
	if st := status.Convert(err).Proto(); protoSize(st)*4/3 > 8192 {
		t.Errorf("the status has %d bytes", protoSize(st))
	}
}
