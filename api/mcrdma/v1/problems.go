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

// ProblemOf returns the kind of a problem by its place in the list; unspecified: the release does not
// say.
func ProblemOf(kinds []ProblemKind, i int) ProblemKind {
	if i < len(kinds) {
		return kinds[i]
	}
	return ProblemKind_PROBLEM_KIND_UNSPECIFIED
}
