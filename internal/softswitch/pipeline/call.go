package pipeline

import (
	"fmt"
	"slices"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// Call is an action with its arguments.
type Call struct {
	Action int           // into Program.Actions
	Args   []match.Value // of the widths of the action's parameters
}

// bound is a Call prepared for packets.
type bound struct {
	action int
	args   []uint64 // parameter i begins at state.argOffset[action][i]
}

// bind checks a call, which must be of one of the allowed actions, and flattens
// its arguments.
func (s *state) bind(allowed []int, c Call) (*bound, error) {
	if !slices.Contains(allowed, c.Action) {
		return nil, fmt.Errorf("%w: %s is not one of the table's", ErrInvalid, s.actionName(c.Action))
	}
	a := &s.prog.Actions[c.Action]
	if len(c.Args) != len(a.Params) {
		return nil, fmt.Errorf("%w: action %s: %d arguments for %d parameters", ErrInvalid, a.Name, len(c.Args), len(a.Params))
	}
	b := &bound{action: c.Action, args: make([]uint64, 0, s.argWords[c.Action])}
	for i, v := range c.Args {
		if p := &a.Params[i]; !v.Fits(p.Bits) {
			return nil, fmt.Errorf("%w: action %s: argument %s = %v is not %d bits wide", ErrInvalid, a.Name, p.Name, v, p.Bits)
		}
		b.args = append(b.args, v...)
	}
	return b, nil
}

// own returns the table's action that corresponds to another table's: a compiler gives each table
// its own copies of the actions, with the same names but other numbers. An action without a
// counterpart is returned unchanged.
func (s *state) own(table []int, action int) int {
	if action < 0 || action >= len(s.prog.Actions) || slices.Contains(table, action) {
		return action
	}
	for _, a := range table {
		if s.prog.Actions[a].Name == s.prog.Actions[action].Name {
			return a
		}
	}
	return action
}

func (s *state) actionName(i int) string {
	if i < 0 || i >= len(s.prog.Actions) {
		return fmt.Sprintf("action number %d", i)
	}
	return "action " + s.prog.Actions[i].Name
}

// fromProgram converts a call that the program contains.
func (s *state) fromProgram(c program.Call) Call {
	params := s.prog.Actions[c.Action].Params
	args := make([]match.Value, len(c.Args))
	for i, x := range c.Args {
		args[i] = match.FromBig(x, params[i].Bits)
	}
	return Call{c.Action, args}
}
