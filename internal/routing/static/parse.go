package static

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/mcrdma/mcrdma/internal/routing"
)

// MaxFile is the largest topology file accepted, in bytes.
const MaxFile = 16 << 20

// maxPort is the highest data-plane port of a v1model switch that is neither
// the drop port (511) nor, by convention here, that of the CPU (510).
const maxPort = 509

// maxErrors bounds how many errors of one file are reported.
const maxErrors = 20

// An Error is a fault in a topology file.
type Error struct {
	File string // empty if read from memory
	Line int    // 0: of the file as a whole
	Msg  string
}

// Error returns "file:line: what is wrong".
func (e *Error) Error() string {
	name := cmp.Or(e.File, "topology")
	if e.Line == 0 {
		return name + ": " + e.Msg
	}
	return fmt.Sprintf("%s:%d: %s", name, e.Line, e.Msg)
}

// The file as it is written.
type fileYAML struct {
	Switches []switchYAML `yaml:"switches"`
	Hosts    []hostYAML   `yaml:"hosts"`
	Links    []linkYAML   `yaml:"links"`
}

type switchYAML struct {
	Name         string   `yaml:"name"`
	Programmable *bool    `yaml:"programmable"`
	Address      string   `yaml:"address"`
	MAC          string   `yaml:"mac"`
	Prefixes     []string `yaml:"prefixes"`
}

type hostYAML struct {
	Name    string `yaml:"name"`
	Address string `yaml:"address"`
	MAC     string `yaml:"mac"`
}

type linkYAML struct {
	A endYAML `yaml:"a"`
	B endYAML `yaml:"b"`
}

type endYAML struct {
	Node    string `yaml:"node"`
	Port    uint32 `yaml:"port"`
	Address string `yaml:"address"`
	MAC     string `yaml:"mac"`
}

// Load reads the topology file called name.
func Load(name string) (*Topology, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("static: reading the topology: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("static: reading the topology: %w", err)
	}
	return parse(name, data)
}

// Parse reads a topology. The error joins one [*Error] for each fault, in the
// order of the file, up to 20 of them.
func Parse(data []byte) (*Topology, error) { return parse("", data) }

func parse(name string, data []byte) (*Topology, error) {
	p := &parser{file: name, t: &Topology{nodes: map[string]*node{}}, owner: map[netip.Addr]string{}}
	if len(data) > MaxFile {
		p.fail(0, "more than %d bytes", MaxFile)
		return nil, p.err()
	}
	var file fileYAML
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		p.yamlErrors(err)
		return nil, p.err()
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		p.fail(0, "more than one document: want a single one, without a second \"---\"")
		return nil, p.err()
	}
	if err := yaml.Unmarshal(data, &p.root); err != nil { // once more, for the lines
		p.yamlErrors(err)
		return nil, p.err()
	}
	for i, s := range file.Switches {
		p.addSwitch(i, s)
	}
	for i, h := range file.Hosts {
		p.addHost(i, h)
	}
	for i, l := range file.Links {
		p.addLink(i, l)
	}
	for i, n := range slices.Concat(p.t.switches, p.t.hosts) {
		n.id = i
	}
	p.checkPrefixes(file)
	if len(file.Switches) == 0 {
		p.fail(0, "no switches: list at least one under \"switches\"")
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return p.t, nil
}

type parser struct {
	file   string
	root   yaml.Node
	t      *Topology
	owner  map[netip.Addr]string // address → whose it is
	errors []*Error
}

func (p *parser) fail(line int, format string, args ...any) {
	p.errors = append(p.errors, &Error{p.file, line, fmt.Sprintf(format, args...)})
}

func (p *parser) err() error {
	if len(p.errors) == 0 {
		return nil
	}
	slices.SortStableFunc(p.errors, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	var list []error
	for i, e := range p.errors {
		if i == maxErrors {
			list = append(list, fmt.Errorf("and %d more", len(p.errors)-i))
			break
		}
		list = append(list, e)
	}
	return errors.Join(list...)
}

var (
	yamlLine  = regexp.MustCompile(`^(?:yaml: )?line (\d+): (?s:(.*))$`)
	yamlTypes = regexp.MustCompile(` (?:in|into) (?:type )?(?:static\.\w+|\[\]static\.\w+)`)
)

// yamlErrors takes over what the YAML decoder found, without the names of Go
// types in it.
func (p *parser) yamlErrors(err error) {
	list := []string{err.Error()}
	var te *yaml.TypeError
	if errors.As(err, &te) {
		list = te.Errors
	}
	for _, msg := range list {
		line := 0
		if m := yamlLine.FindStringSubmatch(msg); m != nil {
			line, _ = strconv.Atoi(m[1]) // digits; a line that overflows is no line
			msg = m[2]
		}
		p.fail(line, "%s", yamlTypes.ReplaceAllString(msg, ""))
	}
}

// line returns the line of what path leads to, or of the last thing on the way
// that is there. Keys are strings, positions in lists ints.
func (p *parser) line(path ...any) int {
	n := &p.root
	if len(n.Content) == 0 {
		return 0
	}
	n = n.Content[0]
	line := n.Line
	for _, step := range path {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		var found *yaml.Node
		switch step := step.(type) {
		case int:
			if n.Kind == yaml.SequenceNode && step < len(n.Content) {
				found = n.Content[step]
			}
		case string:
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					found = n.Content[i+1]
				}
			}
		}
		if found == nil {
			return line
		}
		n, line = found, found.Line
	}
	return line
}

// newNode makes a node with a name of its own.
func (p *parser) newNode(list string, i int, name string) *node {
	switch line := p.line(list, i, "name"); {
	case name == "":
		p.fail(line, "%s without a name", map[string]string{"switches": "switch", "hosts": "host"}[list])
	case p.t.nodes[name] != nil:
		p.fail(line, "name %q is taken already, in line %d", name, p.t.nodes[name].line)
	default:
		n := &node{name: name, line: line, ports: map[uint32]int{}}
		p.t.nodes[name] = n
		return n
	}
	return &node{name: name, ports: map[uint32]int{}} // to find the other faults
}

func (p *parser) addSwitch(i int, s switchYAML) {
	n := p.newNode("switches", i, s.Name)
	n.isSwitch = true
	n.programmable = s.Programmable == nil || *s.Programmable
	n.addr = p.address(s.Address, "switch "+s.Name, "switches", i, "address")
	n.mac = p.mac(s.MAC, "switches", i, "mac")
	for k, text := range s.Prefixes {
		line := p.line("switches", i, "prefixes", k)
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			p.fail(line, "%q is not a prefix: want as 10.1.0.0/24", text)
		case prefix != prefix.Masked():
			p.fail(line, "prefix %v has host bits set: did you mean %v?", prefix, prefix.Masked())
		default:
			n.prefixes = append(n.prefixes, prefix)
		}
	}
	p.t.switches = append(p.t.switches, n)
}

func (p *parser) addHost(i int, h hostYAML) {
	n := p.newNode("hosts", i, h.Name)
	if h.Address == "" {
		p.fail(p.line("hosts", i), "host %q has no address", h.Name)
	}
	n.addr = p.address(h.Address, "host "+h.Name, "hosts", i, "address")
	n.mac = p.mac(h.MAC, "hosts", i, "mac")
	p.t.hosts = append(p.t.hosts, n)
}

func (p *parser) addLink(i int, l linkYAML) {
	id := len(p.t.links)
	a, aOK := p.end(id, l.A, "links", i, "a")
	b, bOK := p.end(id, l.B, "links", i, "b")
	if !aOK || !bOK {
		return
	}
	switch line := p.line("links", i); {
	case a.node == b.node:
		p.fail(line, "link from %q to itself", a.node.name)
	case !a.node.isSwitch && !b.node.isSwitch:
		p.fail(line, "link between the hosts %q and %q: one end must be a switch", a.node.name, b.node.name)
	default:
		p.t.links = append(p.t.links, link{a, b})
		a.node.links = append(a.node.links, id)
		b.node.links = append(b.node.links, id)
		if b.node.isSwitch {
			a.node.fabric = append(a.node.fabric, id)
		}
		if a.node.isSwitch {
			b.node.fabric = append(b.node.fabric, id)
		}
	}
}

func (p *parser) end(id int, e endYAML, path ...any) (end, bool) {
	at := func(key string) []any { return append(slices.Clone(path), key) }
	n := p.t.nodes[e.Node]
	if n == nil {
		p.fail(p.line(at("node")...), "unknown neighbour %q: it is neither under switches nor under hosts", e.Node)
		return end{}, false
	}
	line := p.line(at("port")...)
	switch was, taken := n.ports[e.Port]; {
	case !n.isSwitch && e.Port != 0:
		p.fail(line, "port %d at host %q: only ends at switches have ports", e.Port, e.Node)
	case n.isSwitch && (e.Port == 0 || e.Port > maxPort):
		p.fail(line, "port %d of switch %q: want 1 to %d", e.Port, e.Node, maxPort)
	case n.isSwitch && taken:
		p.fail(line, "port %d of switch %q is in use already, by the link in line %d", e.Port, e.Node, was)
	case n.isSwitch:
		n.ports[e.Port] = p.line(path[:2]...)
	}
	x := end{node: n, port: e.Port, addr: n.addr, mac: n.mac}
	if e.Address != "" {
		x.addr = p.address(e.Address, fmt.Sprintf("port %d of %s", e.Port, e.Node), at("address")...)
	}
	if e.MAC != "" {
		x.mac = p.mac(e.MAC, at("mac")...)
	}
	if !x.addr.IsValid() && n.isSwitch {
		p.fail(p.line(path...), "the end at switch %q has no address: give it one, or the switch", e.Node)
	}
	return x, true
}

// address reads an address that no other owner may have. Empty: none.
func (p *parser) address(text, owner string, path ...any) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	line := p.line(path...)
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		p.fail(line, "%q is not an address: want as 10.1.0.7, without a length", text)
		return netip.Addr{}
	case !a.Unmap().IsGlobalUnicast() || a.Zone() != "":
		p.fail(line, "address %v cannot be routed to", a)
		return netip.Addr{}
	}
	a = a.Unmap()
	if other, ok := p.owner[a]; ok {
		p.fail(line, "address %v is that of %s already", a, other)
		return netip.Addr{}
	}
	p.owner[a] = owner
	return a
}

func (p *parser) mac(text string, path ...any) routing.MAC {
	if text == "" {
		return routing.MAC{}
	}
	m, err := routing.ParseMAC(text)
	switch {
	case err != nil:
		p.fail(p.line(path...), "%q is not a MAC address: want as 02:00:00:00:00:01", text)
	case m.IsMulticast() || m == routing.MAC{}:
		p.fail(p.line(path...), "MAC address %v is not that of one station", m)
	}
	return m
}

// checkPrefixes makes sure that each prefix belongs to one switch: all others
// send what is for the prefix there.
func (p *parser) checkPrefixes(file fileYAML) {
	type owned struct {
		prefix netip.Prefix
		n      *node
		line   int
	}
	var all []owned
	for i, s := range file.Switches {
		for k, text := range s.Prefixes {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				all = append(all, owned{prefix.Masked(), p.t.switches[i], p.line("switches", i, "prefixes", k)})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b owned) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	for i := 1; i < len(all); i++ { // sorted: an overlapping prefix follows its container
		if a, b := all[i-1], all[i]; a.prefix.Overlaps(b.prefix) {
			p.fail(max(a.line, b.line), "prefix %v of switch %q overlaps %v of %q, in line %d", b.prefix, b.n.name, a.prefix, a.n.name, min(a.line, b.line))
			all[i] = a // it may contain the next as well
		}
	}
}
