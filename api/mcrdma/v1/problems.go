package mcrdmav1

import "slices"

// AllProblems lists, as text, the problems of an agent and those that its switch reports.
func (x *GetStatusResponse) AllProblems() []string {
	all := slices.Clone(x.GetProblems())
	for _, p := range x.GetP4Runtime().GetProblems() {
		text := "the switch: " + p.GetWhat()
		if p.GetRemedy() != "" {
			text += "; " + p.GetRemedy()
		}
		all = append(all, text)
	}
	return all
}
