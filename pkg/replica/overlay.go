package replica

import "slices"

// A span is a range of bytes of the volume.
type span struct{ off, end int64 }

func (s span) cut(t span) span { return span{max(s.off, t.off), min(s.end, t.end)} }

func (s span) empty() bool { return s.off >= s.end }

// A part is what is read from one entry of the log.
type part struct {
	span
	index uint64
}

// An overlay finds which parts of a range are of which entries, from the newest entry to older ones.
type overlay struct {
	gaps  []span // are not found yet
	parts []part
}

// add adds an entry that is older than those before. It returns false when the whole range is
// covered.
func (o *overlay) add(index uint64, s span) bool {
	if !slices.ContainsFunc(o.gaps, func(g span) bool { return !g.cut(s).empty() }) { // most, where blocks are overwritten
		return true
	}
	var gaps []span
	for _, g := range o.gaps {
		hit := g.cut(s)
		if hit.empty() {
			gaps = append(gaps, g)
			continue
		}
		o.parts = append(o.parts, part{hit, index})
		for _, left := range []span{{g.off, hit.off}, {hit.end, g.end}} {
			if !left.empty() {
				gaps = append(gaps, left)
			}
		}
	}
	o.gaps = gaps
	return len(gaps) > 0
}
