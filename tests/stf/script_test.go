package stf

import (
	"encoding/hex"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// A run is a script at work.
type run struct {
	pipe  *pipeline.Pipeline
	pre   *pre.Engine
	want  map[int][]string // frames by port, in hexadecimal; an empty text: any frame
	any   map[int]bool     // ports where anything may come out
	got   map[int][]string
	ports map[int]bool  // those that the script names: there are no others
	nodes []pre.Replica // of multicast groups, by handle
	ids   [][]int       // nodes of each handle
	named map[string]*pipeline.Entry
}

// script runs an STF script. Its commands are
//
//	packet PORT HEX
//	expect PORT [HEX][$]   * stands for any digit; $: no more follows
//	add TABLE [PRIORITY] FIELD:VALUE… ACTION(PARAMETER:VALUE, …) [= NAME]
//	check_counter COUNTER(INDEX or $NAME) [packets or bytes == NUMBER]
//	setdefault TABLE ACTION(PARAMETER:VALUE, …)
//	mirroring_add SESSION PORT
//	mc_mgrp_create GROUP, mc_node_create INSTANCE PORT…, mc_node_associate GROUP HANDLE
//	wait
func (r *run) script(text string) error {
	r.want, r.any, r.got, r.ports = map[int][]string{}, map[int]bool{}, map[int][]string{}, map[int]bool{}
	r.named = map[string]*pipeline.Entry{}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 0 {
			if err := r.command(f[0], f[1:]); err != nil {
				return fmt.Errorf("line %d: %s: %w", i+1, strings.TrimSpace(line), err)
			}
		}
	}
	return r.compare()
}

func (r *run) command(name string, args []string) error {
	switch name {
	case "packet", "expect":
		return r.frame(name == "packet", args)
	case "add":
		return r.add(args)
	case "check_counter":
		return r.checkCounter(strings.Join(args, " "))
	case "setdefault":
		t, err := r.table(args[0])
		if err != nil {
			return err
		}
		c, err := r.call(t, strings.Join(args[1:], ""))
		if err != nil {
			return err
		}
		return t.SetDefault(c)
	case "wait":
		return nil
	}
	var n []int
	for _, a := range args {
		v, err := strconv.ParseInt(a, 0, 17)
		if err != nil {
			return err
		}
		n = append(n, int(v))
	}
	switch {
	case name == "mirroring_add" && len(n) == 2:
		return r.pre.InsertSession(uint32(n[0]), pre.Session{Replicas: []pre.Replica{{Port: uint16(n[1])}}})
	case name == "mc_mgrp_create" && len(n) == 1:
		return r.pre.InsertGroup(uint32(n[0]), nil)
	case name == "mc_node_create" && len(n) > 1:
		r.ids = append(r.ids, nil)
		for _, port := range n[1:] {
			r.ids[len(r.ids)-1] = append(r.ids[len(r.ids)-1], len(r.nodes))
			r.nodes = append(r.nodes, pre.Replica{Port: uint16(port), Instance: uint16(n[0])})
		}
		return nil
	case name == "mc_node_associate" && len(n) == 2 && n[1] < len(r.ids):
		members := slices.Clone(r.pre.Group(uint16(n[0])))
		for _, i := range r.ids[n[1]] {
			members = append(members, r.nodes[i])
		}
		return r.pre.ModifyGroup(uint32(n[0]), members)
	}
	return fmt.Errorf("no such command with %d arguments", len(args))
}

var counterSyntax = regexp.MustCompile(`^(\w+)\((\$\w+|\d+)\)(?: (packets|bytes) == (\d+))?$`)

// checkCounter looks at a counter's cell, or, with the name of an entry, at the entry's.
func (r *run) checkCounter(text string) error {
	m := counterSyntax.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("%s is not a check of a counter", text)
	}
	var names []string
	for _, c := range r.pipe.Program().Counters {
		names = append(names, c.Name)
	}
	i, err := suffix(names, m[1])
	if err != nil {
		return err
	}
	var have pipeline.Counts
	if name, ok := strings.CutPrefix(m[2], "$"); !ok {
		n, _ := strconv.Atoi(m[2])
		if have, err = r.pipe.Counter(names[i]).Get(n); err != nil {
			return err
		}
	} else if e := r.named[name]; e != nil {
		have = e.Counts
	} else {
		return fmt.Errorf("no entry has the name %s", name)
	}
	n := map[string]uint64{"packets": have.Packets, "bytes": have.Bytes}[m[3]]
	if want, _ := strconv.ParseUint("0"+m[4], 10, 64); n != want {
		return fmt.Errorf("it has %d %s", n, m[3])
	}
	return nil
}

func (r *run) frame(in bool, args []string) error {
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	r.ports[port] = true
	data := strings.ToLower(strings.Join(args[1:], ""))
	switch {
	case in:
		frame, err := hex.DecodeString(data)
		if err != nil {
			return err
		}
		r.pipe.Process(0, uint16(port), frame, func(out uint16, b []byte) {
			r.got[int(out)] = append(r.got[int(out)], hex.EncodeToString(b))
		})
	case data == "":
		r.any[port] = true
	default:
		r.want[port] = append(r.want[port], data)
	}
	return nil
}

// compare holds what came out against what was expected.
func (r *run) compare() error {
	for port := range r.ports {
		want, got := r.want[port], r.got[port]
		if r.any[port] {
			if len(got) == 0 {
				return fmt.Errorf("nothing came out of port %d", port)
			}
			continue
		}
		if len(want) != len(got) {
			return fmt.Errorf("%d frames came out of port %d, not %d: %v", len(got), port, len(want), got)
		}
		for i := range want {
			if !alike(want[i], got[i]) {
				return fmt.Errorf("frame %d out of port %d is %s, not %s", i, port, got[i], want[i])
			}
		}
	}
	return nil
}

func alike(want, got string) bool {
	exact := strings.TrimSuffix(want, "$")
	if len(got) < len(exact) || exact != want && len(got) > len(exact) {
		return false
	}
	for i := range exact {
		if exact[i] != '*' && exact[i] != got[i] {
			return false
		}
	}
	return true
}

// suffix finds the one of names that is the name, or else ends with it.
func suffix(names []string, name string) (int, error) {
	at := slices.Index(names, name)
	for i, n := range names {
		switch {
		case slices.Contains(names, name) || !strings.HasSuffix(n, name):
		case at >= 0:
			return 0, fmt.Errorf("%s is ambiguous", name)
		default:
			at = i
		}
	}
	if at < 0 {
		return 0, fmt.Errorf("there is no %s", name)
	}
	return at, nil
}

func (r *run) table(name string) (*pipeline.Table, error) {
	var names []string
	for _, t := range r.pipe.Program().Tables {
		names = append(names, t.Name)
	}
	i, err := suffix(names, name)
	if err != nil {
		return nil, err
	}
	return r.pipe.Table(names[i]), nil
}

var callSyntax = regexp.MustCompile(`^([^(]+)\((.*)\)$`)

// call reads ACTION(PARAMETER:VALUE, …).
func (r *run) call(t *pipeline.Table, text string) (c pipeline.Call, err error) {
	m := callSyntax.FindStringSubmatch(text)
	if m == nil {
		return c, fmt.Errorf("%s is not a call", text)
	}
	var names []string
	prog := r.pipe.Program()
	for _, a := range t.Info().Actions {
		names = append(names, prog.Actions[a].Name)
	}
	i, err := suffix(names, m[1])
	if err != nil {
		return c, err
	}
	c.Action = t.Info().Actions[i]
	params := prog.Actions[c.Action].Params
	c.Args = make([]match.Value, len(params))
	for _, arg := range strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' }) {
		name, v, _ := strings.Cut(arg, ":")
		at := slices.IndexFunc(params, func(p program.Param) bool { return p.Name == name })
		n, ok := new(big.Int).SetString(v, 0)
		if at < 0 || !ok {
			return c, fmt.Errorf("argument %s", arg)
		}
		c.Args[at] = match.FromBig(n, params[at].Bits)
	}
	return c, nil
}

func (r *run) add(args []string) error {
	t, err := r.table(args[0])
	if err != nil {
		return err
	}
	e := &pipeline.Entry{Key: make(match.Key, len(t.Info().Key))}
	prio := 0
	args = args[1:]
	if prio, err = strconv.Atoi(args[0]); err == nil {
		args = args[1:]
	}
	if t.Info().Kind >= program.Ternary {
		e.Priority = int32(prio + 1)
	}
	for len(args) > 0 && !strings.Contains(args[0], "(") {
		name, v, _ := strings.Cut(args[0], ":")
		if err := field(t.Info(), e.Key, name, v); err != nil {
			return err
		}
		args = args[1:]
	}
	for i, k := range t.Info().Key {
		if k.Match == program.Exact && e.Key[i].Value == nil {
			e.Key[i].Value = match.FromBig(new(big.Int), k.Bits)
		}
	}
	call, name, _ := strings.Cut(strings.Join(args, ""), "=")
	if e.Call, err = r.call(t, call); err != nil {
		return err
	}
	r.named[name] = e
	return t.Insert(e)
}

var (
	element = regexp.MustCompile(`\$([0-9]+)`)
	anyBits = map[byte]int{'x': 4, 'b': 1, 'o': 3}
)

// field sets a field of a key.
func field(t *program.Table, key match.Key, name, text string) error {
	name = element.ReplaceAllString(name, "[$1]")
	at := slices.IndexFunc(t.Key, func(k program.KeyField) bool {
		return k.Name == name || k.Name == name+"$" || k.Name == name+".$valid$" || strings.HasSuffix(k.Name, "."+name) ||
			name == "valid" && strings.HasSuffix(k.Name, "$valid$")
	})
	if at < 0 {
		return fmt.Errorf("there is no field %s", name)
	}
	k, f := &t.Key[at], &key[at]
	value, prefix, isPrefix := strings.Cut(text, "/")
	mask := new(big.Int)
	if bits := anyBits[(text + "  ")[1]]; bits > 0 {
		for _, c := range text[2:] {
			mask.Lsh(mask, uint(bits))
			if c != '*' {
				mask.Add(mask, big.NewInt(1<<bits-1))
			}
		}
	}
	v, ok := new(big.Int).SetString(strings.ReplaceAll(value, "*", "0"), 0)
	if !ok {
		return fmt.Errorf("%s is not a number", text)
	}
	f.Value = match.FromBig(v, k.Bits)
	switch k.Match {
	case program.Ternary:
		f.Mask = match.FromBig(mask, k.Bits)
		f.Value = match.FromBig(v.And(v, mask), k.Bits)
	case program.LPM:
		f.PrefixLen = mask.BitLen()
		if isPrefix {
			n, err := strconv.Atoi(prefix)
			if err != nil {
				return err
			}
			f.PrefixLen = n
		}
	case program.Range:
		f.High = f.Value
	}
	return nil
}
