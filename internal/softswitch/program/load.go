package program

// Limits of a program's declarations, so that the JSON cannot cause unlimited allocations by the
// code that instantiates it.
const (
	maxName    = 1000
	maxHex     = 1024      // digits of a constant
	maxBits    = 2048      // of a field, parameter or register that is not a varbit; p4c's own limit
	maxVarbit  = 1 << 19   // bits of a header with a varbit
	maxHeaders = 1 << 14   // header instances
	maxCells   = 1 << 24   // of one table, profile, counter, meter or register
	maxState   = 256 << 20 // bytes of all counters, meters and registers
	maxID      = 1 << 31   // identifiers in the JSON

	maxMembers  = 64      // of a header union
	maxCompared = 1 << 16 // fields, in comparisons of whole headers
)

// Load loads a program from p4c's bmv2 JSON, format 2.x. Every error is a *LoadError.
//
// Load rejects everything that it does not know. It ignores only what is informative: compiler,
// source fragments, pi_omit, pragmas, enums (the compiler has inserted their values), force_arith,
// aliases that do not name a field known to the switch, and the receiver of a digest, which has no
// meaning in v1model. It reads the variants of older compilers as bmv2 does.
func Load(json []byte) (p *Program, err error) {
	tree, err := parseJSON(json)
	if err != nil {
		return nil, &LoadError{"the JSON text", Source{}, err.Error(), ErrInvalid}
	}
	l := &loader{prog: &Program{}, actions: registry{shared: true}, fieldLists: registry{shared: true}}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case refusal:
			if r.err.Source == (Source{}) {
				r.err.Source.File = l.prog.Name
			}
			p, err = nil, r.err
		default:
			panic(r)
		}
	}()
	l.load(node{v: tree, construct: "the program"})
	return l.prog, nil
}

// loader resolves names while a program is loaded.
type loader struct {
	prog        *Program
	types       map[string]*headerType
	headers     registry
	stacks      registry // stacks of headers; into Program.Stacks, as the next two
	unions      registry
	unionStacks registry
	unionTypes  map[string]*unionType
	unionOf     map[int]*unionType // by index into Program.Stacks
	aliases     map[string]FieldRef
	valueSets   registry
	setsUsed    []bool
	calcs       registry
	counters    registry
	bindings    []func() // of direct counters and meters to tables that are loaded later
	meters      registry
	registers   registry
	digests     registry
	fieldLists  registry
	actions     registry
	tables      registry
	conds       registry
	profiles    registry
	state       int // total bytes of counters, meters and registers
	compared    int // number of fields in comparisons of headers
}

const rootRequired = "header_types headers parsers deparsers actions pipelines"

const rootOptional = "__meta__ program header_stacks header_union_types header_unions header_union_stacks field_lists " +
	"errors enums parse_vsets meter_arrays counter_arrays register_arrays calculations learn_lists checksums " +
	"force_arith extern_instances field_aliases"

func (l *loader) load(n node) {
	n = n.object(rootRequired, rootOptional)
	l.meta(n)
	l.loadHeaderTypes(n)
	l.loadHeaders(n)
	l.loadStacks(n)
	l.loadUnions(n)
	l.loadEnums(n)
	l.loadErrors(n)
	l.loadAliases(n)
	l.loadStd(n)
	l.refuseExterns(n)
	l.loadCounters(n)
	l.loadMeters(n)
	l.loadRegisters(n)
	l.loadCalculations(n)
	l.loadDigests(n)
	l.loadFieldLists(n)
	l.loadValueSets(n)
	l.loadParser(n)
	l.loadDeparser(n)
	l.loadActions(n)
	l.loadPipelines(n)
	l.bindDirect(n)
	l.loadChecksums(n)
}

func (l *loader) meta(n node) {
	if name := n.get("program"); !name.isNull() {
		l.prog.Name = name.str()
	}
	if !n.has("__meta__") {
		return
	}
	m := n.get("__meta__").in("__meta__").object("", "version compiler")
	if m.has("version") {
		v := m.get("version").tuple(2, 2)
		for i := range v {
			l.prog.Version[i] = v[i].integer(0, 1<<20)
		}
		if l.prog.Version[0] != 2 {
			m.unsupported("format version %d.%d, want 2.x", l.prog.Version[0], l.prog.Version[1])
		}
	}
	if c := m.get("compiler"); !c.isNull() {
		c.str()
	}
}
