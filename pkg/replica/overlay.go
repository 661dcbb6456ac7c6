package replica

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
	for i := 0; i < len(o.gaps); i++ {
		g := o.gaps[i]
		hit := g.cut(s)
		if hit.empty() {
			continue
		}
		o.parts = append(o.parts, part{hit, index})
		before, after := span{g.off, hit.off}, span{hit.end, g.end}
		switch {
		case before.empty() && after.empty():
			o.gaps = append(o.gaps[:i], o.gaps[i+1:]...)
			i--
		case before.empty():
			o.gaps[i] = after
		case after.empty():
			o.gaps[i] = before
		default:
			o.gaps[i] = before
			o.gaps = append(o.gaps[:i+1], append([]span{after}, o.gaps[i+1:]...)...)
			i++
		}
	}
	return len(o.gaps) > 0
}
