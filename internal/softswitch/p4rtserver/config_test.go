package p4rtserver

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

const (
	verify    = p4.SetForwardingPipelineConfigRequest_VERIFY
	save      = p4.SetForwardingPipelineConfigRequest_VERIFY_AND_SAVE
	commitNew = p4.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT
	commit    = p4.SetForwardingPipelineConfigRequest_COMMIT
	reconcile = p4.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT
)

func (r *rig) getConfig(t p4.GetForwardingPipelineConfigRequest_ResponseType) *p4.ForwardingPipelineConfig {
	r.t.Helper()
	got, err := r.client.GetForwardingPipelineConfig(r.t.Context(), &p4.GetForwardingPipelineConfigRequest{DeviceId: device, ResponseType: t})
	if err != nil {
		r.t.Fatal(err)
	}
	return got.GetConfig()
}

func (r *rig) loads() int {
	r.bench.mu.Lock()
	defer r.bench.mu.Unlock()
	return r.bench.loads
}

func TestConfigLifeCycle(t *testing.T) {
	r := newRig(t, Options{})
	s := r.open(1)
	s.next()
	if c := r.getConfig(0); c != nil {
		t.Errorf("a config before one was set: %v", c)
	}
	r.set(verify, r.config())
	if c := r.getConfig(0); c != nil || r.loads() != 0 {
		t.Error("VERIFY has set the config")
	}
	expectError(t, r.trySet(commit, nil), codes.NotFound, "there is no saved config to commit")
	r.set(save, r.config())
	if r.loads() != 0 {
		t.Error("VERIFY_AND_SAVE has loaded the config")
	}
	r.write(`INSERT ` + route10 + to3 + `}`) // into the saved one
	expectError(t, r.trySet(commit, r.config()), codes.InvalidArgument, "COMMIT takes no config")
	r.set(commit, nil)
	if r.loads() != 1 || r.bench.p.Table("In.routes").Len() != 1 {
		t.Error("COMMIT has not loaded the pipeline with what was written")
	}
	expectError(t, r.trySet(commit, nil), codes.NotFound, "there is no saved config to commit")

	// While another one is saved, the running one is as it was.
	r.set(save, r.config())
	r.expectRead(`table_entry { table_id: @In.routes }`)
	if r.bench.p.Table("In.routes").Len() != 1 {
		t.Error("VERIFY_AND_SAVE has touched the running pipeline")
	}
	r.set(commitNew, r.config())
	r.expectRead(`table_entry { table_id: @In.routes }`)
	if r.loads() != 2 || r.bench.p.Table("In.routes").Len() != 0 {
		t.Error("VERIFY_AND_COMMIT has not cleared the state")
	}
	expectError(t, r.trySet(commit, nil), codes.NotFound, "there is no saved config")
}

func TestGetConfig(t *testing.T) {
	r, _ := ready(t)
	want := r.config()
	for kind, c := range map[p4.GetForwardingPipelineConfigRequest_ResponseType]*p4.ForwardingPipelineConfig{
		p4.GetForwardingPipelineConfigRequest_ALL:                      want,
		p4.GetForwardingPipelineConfigRequest_COOKIE_ONLY:              {Cookie: want.GetCookie()},
		p4.GetForwardingPipelineConfigRequest_P4INFO_AND_COOKIE:        {Cookie: want.GetCookie(), P4Info: want.GetP4Info()},
		p4.GetForwardingPipelineConfigRequest_DEVICE_CONFIG_AND_COOKIE: {Cookie: want.GetCookie(), P4DeviceConfig: want.GetP4DeviceConfig()},
	} {
		if diff := cmp.Diff(c, r.getConfig(kind), protocmp.Transform()); diff != "" {
			t.Errorf("%v: %s", kind, diff)
		}
	}
	_, err := r.client.GetForwardingPipelineConfig(t.Context(), &p4.GetForwardingPipelineConfigRequest{DeviceId: device, ResponseType: 9})
	expectError(t, err, codes.InvalidArgument, "there is no response type 9")
	without := r.config()
	without.Cookie = nil
	r.set(commitNew, without)
	if c := r.getConfig(0); c.GetCookie() != nil {
		t.Errorf("cookie %v", c.GetCookie())
	}
}

// A P4Info that is not that of the program is refused, with what is wrong.
func TestBadConfigs(t *testing.T) {
	info := func(f func(*p4cfg.P4Info)) func(*p4.ForwardingPipelineConfig) {
		return func(c *p4.ForwardingPipelineConfig) { f(c.P4Info) }
	}
	json := func(old, repl string) func(*p4.ForwardingPipelineConfig) {
		return func(c *p4.ForwardingPipelineConfig) {
			if !bytes.Contains(c.P4DeviceConfig, []byte(old)) {
				panic("nothing to replace: " + old)
			}
			c.P4DeviceConfig = bytes.Replace(c.P4DeviceConfig, []byte(old), []byte(repl), 1)
		}
	}
	table := func(i *p4cfg.P4Info, name string) *p4cfg.Table {
		for _, t := range i.GetTables() {
			if t.GetPreamble().GetName() == name {
				return t
			}
		}
		panic(name)
	}
	cases := []struct {
		name string
		edit func(*p4.ForwardingPipelineConfig)
		text string
	}{
		{"no P4Info", func(c *p4.ForwardingPipelineConfig) { c.P4Info = nil }, "the config has no P4Info"},
		{"no JSON", func(c *p4.ForwardingPipelineConfig) { c.P4DeviceConfig = nil }, "the config has no P4 device config"},
		{"broken JSON", func(c *p4.ForwardingPipelineConfig) { c.P4DeviceConfig = c.P4DeviceConfig[:1000] }, "P4 device config: "},
		{"unknown primitive", json(`"op" : "mark_to_drop"`, `"op" : "explode"`), "explode"},
		{"architecture", info(func(i *p4cfg.P4Info) { i.PkgInfo.Arch = "psa" }), "the P4Info is for the architecture psa"},
		{"extern", info(func(i *p4cfg.P4Info) {
			i.Externs = []*p4cfg.Extern{{ExternTypeName: "Aes", Instances: []*p4cfg.ExternInstance{{Preamble: &p4cfg.Preamble{Name: "a", Id: 1}}}}}
		}), "extern a of type Aes"},
		{"platform", info(func(i *p4cfg.P4Info) {
			i.PkgInfo.PlatformProperties = &p4cfg.PlatformProperties{MulticastGroupTableSize: 101}
		}), "platform property multicast_group_table_size is 101, more than the 100"},
		{"no name", info(func(i *p4cfg.P4Info) { i.Tables[0].Preamble.Name = "" }), "has no name"},
		{"no id", info(func(i *p4cfg.P4Info) { i.Counters[0].Preamble.Id = 0 }), "counter In.seen has no id"},
		{"same id", info(func(i *p4cfg.P4Info) { i.Counters[0].Preamble.Id = table(i, "In.acl").Preamble.Id }), "counter In.seen has the id"},
		{"table names", info(func(i *p4cfg.P4Info) {
			for _, t := range i.Tables {
				t.Preamble.Name += "x"
			}
		}), "none of its tables is in the program, which has the table In.acl"},
		{"empty", func(c *p4.ForwardingPipelineConfig) { c.P4Info = &p4cfg.P4Info{} }, "the P4Info has no tables, and the program has the table In.acl"},
		{"field name", info(func(i *p4cfg.P4Info) { table(i, "In.acl").MatchFields[0].Name = "h.eth.other" }), "table In.acl: match field h.eth.other is not in the program; table In.acl: match field h.eth.dst of the program is not in the P4Info"},
		{"field missing", info(func(i *p4cfg.P4Info) { x := table(i, "In.acl"); x.MatchFields = x.MatchFields[1:] }), "table In.acl: match field h.eth.dst of the program is not in the P4Info"},
		{"field id", info(func(i *p4cfg.P4Info) { table(i, "In.acl").MatchFields[1].Id = 1 }), "match field h.eth.type has the id 1, which is none or another's"},
		{"field width", info(func(i *p4cfg.P4Info) { table(i, "In.acl").MatchFields[0].Bitwidth = 47 }), "table In.acl: match field h.eth.dst has 47 bits in the P4Info and 48 in the program"},
		{"field kind", info(func(i *p4cfg.P4Info) {
			table(i, "In.routes").MatchFields[0].Match = &p4cfg.MatchField_MatchType_{MatchType: p4cfg.MatchField_EXACT}
		}), "table In.routes: match field h.ip.dst is EXACT in the P4Info and LPM in the program"},
		{"field of no kind", info(func(i *p4cfg.P4Info) { table(i, "In.routes").MatchFields[0].Match = nil }), "match field h.ip.dst has no match type"},
		{"field of other kind", info(func(i *p4cfg.P4Info) {
			table(i, "In.routes").MatchFields[0].Match = &p4cfg.MatchField_OtherMatchType{OtherMatchType: "regex"}
		}), "match type regex, which is not of v1model"},
		{"string type", info(func(i *p4cfg.P4Info) {
			i.TypeInfo.NewTypes = map[string]*p4cfg.P4NewTypeSpec{"name_t": {Representation: &p4cfg.P4NewTypeSpec_TranslatedType{
				TranslatedType: &p4cfg.P4NewTypeTranslation{SdnType: &p4cfg.P4NewTypeTranslation_SdnString_{SdnString: &p4cfg.P4NewTypeTranslation_SdnString{}}}}}}
			table(i, "In.routes").MatchFields[0].TypeName = &p4cfg.P4NamedType{Name: "name_t"}
		}), "values of type name_t are strings to the controller"},
		{"action name", info(func(i *p4cfg.P4Info) { actionOf(i, "In.to").Preamble.Name = "In.fro" }), "action In.fro is not among the table's actions in the program"},
		{"action of another table", info(func(i *p4cfg.P4Info) {
			x := table(i, "In.routes")
			x.ActionRefs = append(x.ActionRefs, &p4cfg.ActionRef{Id: actionOf(i, "In.limited").Preamble.Id})
		}), "table In.routes: action In.limited is not among the table's actions in the program"},
		{"action reference", info(func(i *p4cfg.P4Info) { table(i, "In.routes").ActionRefs[0].Id = 4 }), "table In.routes: its action with id 4 is nothing in the P4Info"},
		{"parameter name", info(func(i *p4cfg.P4Info) { actionOf(i, "In.to").Params[0].Name = "gate" }), "action In.to: parameter gate is not in the program"},
		{"parameter width", info(func(i *p4cfg.P4Info) { actionOf(i, "In.to").Params[0].Bitwidth = 16 }), "action In.to: parameter port has 16 bits in the P4Info and 9 in the program"},
		{"profile missing", info(func(i *p4cfg.P4Info) { table(i, "In.ecmp").ImplementationId = 0 }), "table In.ecmp: the program has the action profile In.hops for it"},
		{"profile of nothing", info(func(i *p4cfg.P4Info) { table(i, "In.ecmp").ImplementationId = 8 }), "its implementation with id 8 is nothing"},
		{"other profile", info(func(i *p4cfg.P4Info) {
			table(i, "In.ecmp").ImplementationId = table(i, "In.indirect").ImplementationId
		}), `table In.ecmp: its action profile In.plainly is not the program's ("In.hops")`},
		{"profile name", info(func(i *p4cfg.P4Info) { i.ActionProfiles[0].Preamble.Name = "In.x" }), "action profile In.x, which is not in the program"},
		{"selector", info(func(i *p4cfg.P4Info) {
			for _, p := range i.ActionProfiles {
				p.WithSelector = false
			}
		}), "action profile In.hops: only one of P4Info and program has a selector"},
		{"weights", info(func(i *p4cfg.P4Info) { i.ActionProfiles[0].WeightsDisallowed = true }), "weights_disallowed"},
		{"profile size", info(func(i *p4cfg.P4Info) { i.ActionProfiles[0].Size = -1 }), "has a negative size"},
		{"idle", info(func(i *p4cfg.P4Info) {
			table(i, "In.routes").IdleTimeoutBehavior = p4cfg.Table_NOTIFY_CONTROL
		}), "table In.routes: idle time-outs are supported in the P4Info and not supported in the program"},
		{"counter name", info(func(i *p4cfg.P4Info) { i.Counters[0].Preamble.Name = "In.x" }), "counter In.x is not in the program"},
		{"counter size", info(func(i *p4cfg.P4Info) { i.Counters[0].Size = 9 }), "counter In.seen has 9 cells in the P4Info and 8 in the program"},
		{"meter name", info(func(i *p4cfg.P4Info) { i.Meters[0].Preamble.Name = "In.x" }), "meter In.x is not in the program"},
		{"meter unit", info(func(i *p4cfg.P4Info) { i.Meters[0].Spec.Unit = p4cfg.MeterSpec_PACKETS }), "meter In.rate counts PACKETS in the P4Info"},
		{"meter type", info(func(i *p4cfg.P4Info) { i.Meters[0].Spec.Type = p4cfg.MeterSpec_SINGLE_RATE_THREE_COLOR }), "SINGLE_RATE_THREE_COLOR"},
		{"direct counter name", info(func(i *p4cfg.P4Info) { i.DirectCounters[0].Preamble.Name = "In.x" }), "has no such counter in the program"},
		{"direct counter's table", info(func(i *p4cfg.P4Info) { i.DirectCounters[0].DirectTableId = 5 }), "its table with id 5 is nothing"},
		{"direct meter name", info(func(i *p4cfg.P4Info) { i.DirectMeters[0].Preamble.Name = "In.x" }), "has no such meter in the program"},
		{"direct meter's table", info(func(i *p4cfg.P4Info) { i.DirectMeters[0].DirectTableId = 5 }), "its table with id 5 is nothing"},
		{"direct resource", info(func(i *p4cfg.P4Info) { table(i, "In.acl").DirectResourceIds = []uint32{5} }), "table In.acl: its direct resource with id 5 is nothing"},
		{"value set name", info(func(i *p4cfg.P4Info) { i.ValueSets[0].Preamble.Name = "x" }), "value set x is not in the program"},
		{"value set size", info(func(i *p4cfg.P4Info) { i.ValueSets[0].Size = 9 }), "value set Parse.plain has room for 9 members in the P4Info and 4 in the program"},
		{"value set fields", info(func(i *p4cfg.P4Info) { i.ValueSets[0].Match = nil }), "value set Parse.plain has 0 fields in the P4Info and 1 in the program"},
		{"value set width", info(func(i *p4cfg.P4Info) { i.ValueSets[0].Match[0].Bitwidth = 9 }), "has 9 bits in the P4Info and 16 in the program"},
		{"value set id", info(func(i *p4cfg.P4Info) { i.ValueSets[1].Match[1].Id = 1 }), "value set Parse.kinds: field flags has the id 1"},
		{"value set kind", info(func(i *p4cfg.P4Info) { i.ValueSets[1].Match[1].Match = nil }), "value set Parse.kinds: field flags has no match type"},
		{"register name", info(func(i *p4cfg.P4Info) { i.Registers[0].Preamble.Name = "x" }), "register x is not in the program"},
		{"register size", info(func(i *p4cfg.P4Info) { i.Registers[0].Size = 1 }), "register In.narrow has 1 cells in the P4Info and 16 in the program"},
		{"register width", info(func(i *p4cfg.P4Info) { i.Registers[0].TypeSpec.GetBitstring().GetBit().Bitwidth = 31 }), "register In.narrow: a field has 31 bits in the P4Info and 32 in the program"},
		{"register type", info(func(i *p4cfg.P4Info) { i.Registers[0].TypeSpec = nil }), "register In.narrow: its type in the P4Info is not one that v1model can have"},
		{"digest name", info(func(i *p4cfg.P4Info) { i.Digests[0].Preamble.Name = "x" }), "digest x is not in the program"},
		{"digest type", info(func(i *p4cfg.P4Info) { i.Digests[0].TypeSpec = i.Registers[0].TypeSpec }), "digest learn_t: a field has 32 bits in the P4Info and 9 in the program"},
		{"digest member missing", info(func(i *p4cfg.P4Info) {
			s := i.TypeInfo.Structs["learn_t"]
			s.Members = s.Members[:1]
		}), "digest learn_t has 1 fields in the P4Info and 2 in the program"},
		{"digest member too many", info(func(i *p4cfg.P4Info) {
			s := i.TypeInfo.Structs["learn_t"]
			s.Members = append(s.Members, s.Members[0])
		}), "digest learn_t has more fields in the P4Info than in the program"},
		{"digest without struct", info(func(i *p4cfg.P4Info) { i.TypeInfo.Structs = nil }), "the P4Info does not say what the struct learn_t is"},
		{"endless type", info(func(i *p4cfg.P4Info) {
			i.TypeInfo.Structs["learn_t"].Members[0].TypeSpec = i.Digests[0].TypeSpec
		}), "digest learn_t: its type is nested more than 8 deep"},
		{"header bits", info(func(i *p4cfg.P4Info) { i.ControllerPacketMetadata[0].Metadata[0].Bitwidth++ }), "is 25 bits long, not whole bytes"},
		{"header too long", info(func(i *p4cfg.P4Info) { i.ControllerPacketMetadata[0].Metadata[0].Bitwidth = 1 << 30 }), "a header that a packet can have has 8192 at most"},
		{"header name", info(func(i *p4cfg.P4Info) { i.ControllerPacketMetadata[0].Preamble.Name = "packet_up" }), "there is packet metadata called packet_up"},
		{"header field id", info(func(i *p4cfg.P4Info) { i.ControllerPacketMetadata[0].Metadata[1].Id = 1 }), "packet metadata packet_out: field class has the id 1"},
		{"header field width", info(func(i *p4cfg.P4Info) {
			m := i.ControllerPacketMetadata[0].Metadata
			m[0].Bitwidth, m[1].Bitwidth = m[0].Bitwidth+m[1].Bitwidth, 0
		}), "field class has a width of 0 bits"},
	}
	r, _ := ready(t)
	r.write(`INSERT ` + route10 + to3 + `}`)
	before := r.everything()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, a := range []p4.SetForwardingPipelineConfigRequest_Action{verify, save, commitNew, reconcile} {
				bad := r.config()
				c.edit(bad)
				expectError(t, r.trySet(a, bad), codes.InvalidArgument, c.text)
			}
		})
	}
	for _, a := range []p4.SetForwardingPipelineConfigRequest_Action{verify, save, commitNew, reconcile} {
		expectError(t, r.trySet(a, nil), codes.InvalidArgument, "no config is given")
	}
	expectError(t, r.trySet(0, r.config()), codes.InvalidArgument, "action UNSPECIFIED is not one")
	expectError(t, r.trySet(9, r.config()), codes.InvalidArgument, "action 9 is not one")
	if r.loads() != 1 {
		t.Errorf("%d pipelines loaded", r.loads())
	}
	expectSame(t, before, r.everything())
}

// A table that the compiler removed is in the P4Info only: the config is accepted, and a write to
// the table gets an error that says so.
func TestDroppedTable(t *testing.T) {
	r, _ := ready(t)
	c := r.config()
	c.P4Info.Tables = append(c.P4Info.Tables, &p4cfg.Table{
		Preamble: &p4cfg.Preamble{Id: 0x02abcdef, Name: "In.gone"}, ImplementationId: 0x11abcdef, DirectResourceIds: []uint32{0x13abcdef},
	})
	c.P4Info.ActionProfiles = append(c.P4Info.ActionProfiles, &p4cfg.ActionProfile{Preamble: &p4cfg.Preamble{Id: 0x11abcdef, Name: "In.lost"}})
	c.P4Info.DirectCounters = append(c.P4Info.DirectCounters, &p4cfg.DirectCounter{
		Preamble: &p4cfg.Preamble{Id: 0x13abcdef, Name: "In.counts"}, DirectTableId: 0x02abcdef,
	})
	if err := r.trySet(commitNew, c); err != nil {
		t.Fatal(err)
	}
	err := r.tryWrite(p4.WriteRequest_CONTINUE_ON_ERROR, `INSERT table_entry { table_id: 44813807 }`)
	expectDetail(t, err, 0, codes.InvalidArgument, "that is table In.gone, which is not in the program")
}

func actionOf(i *p4cfg.P4Info, name string) *p4cfg.Action {
	for _, a := range i.GetActions() {
		if a.GetPreamble().GetName() == name {
			return a
		}
	}
	panic(name)
}

// A translated type may have another width in the P4Info: the number is kept.
func TestTranslatedType(t *testing.T) {
	r, _ := ready(t)
	c := r.config()
	c.P4Info.TypeInfo.NewTypes = map[string]*p4cfg.P4NewTypeSpec{"port_t": {Representation: &p4cfg.P4NewTypeSpec_TranslatedType{
		TranslatedType: &p4cfg.P4NewTypeTranslation{SdnType: &p4cfg.P4NewTypeTranslation_SdnBitwidth{SdnBitwidth: 32}}}}}
	p := actionOf(c.P4Info, "In.to").Params[0]
	p.Bitwidth, p.TypeName = 32, &p4cfg.P4NamedType{Name: "port_t"}
	r.set(commitNew, c)
	r.write(`INSERT ` + route10 + to3 + `}`)
	expectDetail(t, r.tryWrite(0, `MODIFY `+route10+`action { action { action_id: @In.to params { param_id: 1 value: "\002\000" } } } }`),
		0, codes.InvalidArgument, "value 0x0200 needs 10 bits, the parameter has 9")
}

// RECONCILE_AND_COMMIT carries everything over, or leaves everything.
func TestReconcile(t *testing.T) {
	r := newRig(t, Options{})
	r.open(1).next()
	r.set(reconcile, r.config()) // nothing to carry over
	r.write(aBitOfAll...)
	before := r.everything()
	c := r.config()
	c.Cookie.Cookie = 78
	r.set(reconcile, c)
	if r.loads() != 2 || r.getConfig(1).GetCookie().GetCookie() != 78 {
		t.Error("the new config is not in place")
	}
	expectSame(t, before, r.everything())
	if r.bench.p.Table("In.routes").Len() != 1 || r.bench.e.Group(1) == nil || r.bench.e.Session(1) == nil {
		t.Error("the state has not been carried over to the switch")
	}

	// A swap of two tables' ids would put state into the wrong table.
	c = r.config()
	a, b := c.P4Info.ActionProfiles[0].Preamble, c.P4Info.ActionProfiles[1].Preamble
	a.Id, b.Id = b.Id, a.Id
	for _, t := range c.P4Info.Tables {
		switch t.ImplementationId {
		case a.Id:
			t.ImplementationId = b.Id
		case b.Id:
			t.ImplementationId = a.Id
		}
	}
	expectError(t, r.trySet(reconcile, c), codes.InvalidArgument, "the forwarding state cannot be preserved: action profile In.hops has state, and its id")
	c = r.config()
	for _, t := range c.P4Info.Tables {
		if t.Preamble.Name == "In.acl" {
			t.MatchFields[0].Id, t.MatchFields[1].Id = 2, 1
		}
	}
	expectError(t, r.trySet(reconcile, c), codes.InvalidArgument, "table In.acl has state, and has changed in the new P4Info: field 1 (h.eth.dst)")
	if r.loads() != 2 {
		t.Error("a config was loaded although the state could not be preserved")
	}
	expectSame(t, before, r.everything())
}

func TestPreset(t *testing.T) {
	r := newRig(t, Options{})
	expectError(t, r.server.Preset(nil), codes.InvalidArgument, "no config is given")
	if err := r.server.Preset(r.config()); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(r.getConfig(0), r.config()) || r.loads() != 1 {
		t.Error("the config is not in place")
	}
	expectError(t, r.tryWrite(0), codes.PermissionDenied, "there is no primary")
	r.open(1).expectArbitration(codes.OK, 1)
	r.write(`INSERT ` + route10 + to3 + `}`)
}
