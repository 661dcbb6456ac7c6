package core

import "fmt"

// All stands for all other ranks.
const All = -1

// A Path is how a message goes.
type Path uint8

// The paths.
const (
	Multicast Path = iota
	Unicast
	paths

	// Paths is how many there are.
	Paths = int(paths)
)

// A Kind is what an operation does.
type Kind uint8

// The kinds.
const (
	Barrier Kind = iota + 1
	Broadcast
	Reduce
	ReduceScatter
	Allgather
	Allreduce
	Close // a barrier, after which there is nothing
)

var kindNames = [...]string{Barrier: "barrier", Broadcast: "broadcast", Reduce: "reduce", ReduceScatter: "reduce-scatter", Allgather: "allgather", Allreduce: "allreduce", Close: "close"}

// String returns the name of the literature.
func (k Kind) String() string {
	if k > 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// A Task says what an operation is, and which rank's part. All ranks have to have the same but for Rank.
type Task struct {
	Kind       Kind
	Rank, Size int
	Root       int   // of Broadcast and Reduce
	Type       uint8 // of an element, which the caller numbers
	Elem       int   // bytes of one
	Count      int   // elements of the larger buffer
	Block      int   // bytes of a message at most, of which a multiple of Elem is used
	Small      int   // bytes up to which Reduce and Allreduce go over a tree; at most Block
	Degree     int   // of the tree: 2^j-1
}

// Hash tells tasks apart, the how manieth on its lane included. Its lowest bits do, too.
func (t Task) Hash(number uint64) uint32 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	h := number * odd
	for _, v := range [...]int{int(t.Kind), t.Size, t.Root, int(t.Type), t.Elem, t.Count, t.Block, t.Small, t.Degree} {
		h = (h ^ uint64(v)) * odd //nolint:gosec // any bits
	}
	return uint32(h >> 32)
}

// inbound is how many rings of messages may be on their way to a rank on a path, as far as several ranks send to it at a time: more would only wait at its
// link, and all else behind them. Likewise, a rank has one ring of messages to single ranks on their way, to whomever.
const inbound = 3

// window is how many messages a rank may have on their way to another one, or to all, on a path, where rings have so many slots.
func (t Task) window(slots int) uint64 {
	if t.Kind != Broadcast {
		slots = min(slots, (inbound*slots+t.Size-2)/max(1, t.Size-1))
	}
	return uint64(slots) //nolint:gosec // not negative
}

func (t Task) tree() bool { return t.Kind == Barrier || t.Kind == Close || t.Count*t.Elem <= t.Small }

// single says whether a rank sends at most one message to another one or to all, and others follow.
func (t Task) single() bool {
	return t.tree() && (t.Kind == Barrier || t.Kind == Allreduce || t.Kind == Reduce)
}

// meets says whether no rank ends the operation before all have begun it, and none sends more than one message to another one or to all.
func (t Task) meets() bool {
	return t.tree() && (t.Kind == Barrier || t.Kind == Close || t.Kind == Allreduce)
}

// part is the part of a buffer of all elements that belongs to a rank.
func (t Task) part(buf []byte, rank int) []byte {
	return buf[rank*t.Count/t.Size*t.Elem : (rank+1)*t.Count/t.Size*t.Elem]
}

// blocks splits bytes into what messages carry.
func (t Task) blocks(b []byte) (list [][]byte) {
	n := t.Block / t.Elem * t.Elem
	for ; len(b) > n; b = b[n:] {
		list = append(list, b[:n])
	}
	if len(b) > 0 {
		list = append(list, b)
	}
	return list
}

// A Send is a message: its bytes do not change before the operation is done.
type Send struct {
	To   int // a rank, or All, by multicast
	Data []byte
}

// A Free says that so many further messages of a rank are not needed any more.
type Free struct {
	From int
	Path Path
	N    int
}

// An Op is an operation at one rank.
type Op struct {
	Task
	combine func(dst, src []byte) // dst = dst combined with src; ranks of dst are lower
	streams []stream              // by rank and path
	left    int                   // items and folds that are not done
	temps   [][]byte              // not in use
	sends   []Send
	frees   []Free
}

// A stream is what comes from a rank on a path, in its order.
type stream struct {
	plan    []item
	arrived [][]byte
	got     int // messages that have arrived
}

// An item is what becomes of a message: it is copied to dst, or is an operand of a fold.
type item struct {
	dst  []byte
	fold *fold
	at   int // which operand
}

func (i item) size() int {
	if i.fold != nil {
		return i.fold.size
	}
	return len(i.dst)
}

// NewOp begins an operation: of bytes in, with the result in out. For Broadcast, Reduce and Allreduce, both are the
// same, and Reduce changes only the root's. combine sets dst to dst combined with src.
func NewOp(t Task, in, out []byte, combine func(dst, src []byte)) *Op {
	o := &Op{Task: t, combine: combine, streams: make([]stream, t.Size*int(paths))}
	all := func(b []byte) { o.send(All, b) }
	switch t.Kind {
	case Barrier, Close, Allreduce:
		if t.tree() {
			o.reduceTree(0, in, out, all)
			if t.Rank != 0 {
				o.expect(0, Multicast, item{dst: out})
			}
			break
		}
		o.scatter(in, func(b []byte) []byte { return b }, all)
		o.gather(out)
	case Broadcast:
		for _, b := range t.blocks(out) {
			if t.Rank == t.Root {
				all(b)
			} else {
				o.expect(t.Root, Multicast, item{dst: b})
			}
		}
	case Reduce:
		switch root := t.Rank == t.Root; {
		case t.tree() && root:
			o.reduceTree(t.Root, in, out, func([]byte) {})
		case t.tree():
			o.reduceTree(t.Root, in, nil, nil)
		case root:
			o.scatter(in, func(b []byte) []byte { return b }, func([]byte) {})
			for r := range t.Size {
				for _, b := range t.blocks(t.part(out, r)) {
					if r != t.Root {
						o.expect(r, Unicast, item{dst: b})
					}
				}
			}
		default:
			o.scatter(in, func(b []byte) []byte { return make([]byte, len(b)) }, func(b []byte) { o.send(t.Root, b) })
		}
	case ReduceScatter:
		rest := out
		o.scatter(in, func(b []byte) []byte {
			dst := rest[:len(b)]
			rest = rest[len(b):]
			return dst
		}, func([]byte) {})
	case Allgather:
		own := t.part(out, t.Rank)
		copy(own, in)
		for _, b := range t.blocks(own) {
			all(b)
		}
		o.gather(out)
	}
	return o
}

func (o *Op) send(to int, b []byte) {
	if o.Size > 1 {
		o.sends = append(o.sends, Send{to, b})
	}
}

func (o *Op) expect(from int, p Path, i item) {
	s := &o.streams[from*int(paths)+int(p)]
	s.plan = append(s.plan, i)
	o.left++
}

// gather expects the others' parts by multicast.
func (o *Op) gather(out []byte) {
	for r := range o.Size {
		for _, b := range o.blocks(o.part(out, r)) {
			if r != o.Rank {
				o.expect(r, Multicast, item{dst: b})
			}
		}
	}
}

// scatter sends each rank its part of in, and folds what comes of this rank's: blocks go where dst says, and then to done.
func (o *Op) scatter(in []byte, dst func(block []byte) []byte, done func(block []byte)) {
	var lists [][][]byte
	most := 0
	for d := 1; d < o.Size; d++ { // each rank begins with another one
		list := o.blocks(o.part(in, (o.Rank+d)%o.Size))
		lists = append(lists, list)
		most = max(most, len(list))
	}
	for i := range most {
		for d, list := range lists {
			if i < len(list) {
				o.send((o.Rank+d+1)%o.Size, list[i])
			}
		}
	}
	for _, b := range o.blocks(o.part(in, o.Rank)) {
		f := o.fold(o.Size, o.Rank, len(b), dst(b), done)
		for r := range o.Size {
			if r != o.Rank {
				o.expect(r, Unicast, item{fold: f, at: r})
			}
		}
		o.offer(f, b)
	}
}

// reduceTree reduces over a tree, whose root gets the result in dst, and then does done.
func (o *Op) reduceTree(root int, in, dst []byte, done func([]byte)) {
	lead := func(lo, hi int) int { // the rank that has what was combined of ranks from lo up to hi
		if lo <= root && root < hi {
			return root
		}
		return lo
	}
	up := done // what is done with the result of the step before
	var first, last *fold
	for width := 1; width < o.Size; width *= o.Degree + 1 {
		whole := width * (o.Degree + 1)
		lo := o.Rank / whole * whole
		hi := min(lo+whole, o.Size)
		n := (hi - lo + width - 1) / width
		if to := lead(lo, hi); to != o.Rank {
			up = func(b []byte) { o.send(to, b) }
			dst = nil
			break
		}
		if n == 1 {
			continue
		}
		f := o.fold(n, (o.Rank-lo)/width, len(in), nil, nil)
		for i := range n {
			from := lo + i*width
			if who := lead(from, min(from+width, o.Size)); who != o.Rank {
				o.expect(who, Unicast, item{fold: f, at: i})
			}
		}
		if last == nil {
			first = f
		} else {
			last.done = func(b []byte) { o.offer(f, b) }
		}
		last = f
	}
	if last == nil {
		copy(dst, in)
		up(in)
		return
	}
	last.dst, last.done = dst, up
	o.offer(first, in)
}

// Plan returns how many messages of a rank it takes in all.
func (o *Op) Plan(from int, p Path) int { return len(o.streams[from*int(paths)+int(p)].plan) }

// Want returns how many more messages of a rank it takes.
func (o *Op) Want(from int, p Path) int {
	s := &o.streams[from*int(paths)+int(p)]
	return len(s.plan) - s.got
}

// Awaited returns the ranks whose messages are missing.
func (o *Op) Awaited() (ranks []int) {
	for r := range o.Size {
		if o.Want(r, Multicast)+o.Want(r, Unicast) > 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Arrive takes a message, of those that it wants. Its bytes must stay until Take says that they are free. The error is that they
// are not as many as they have to be.
func (o *Op) Arrive(from int, p Path, data []byte) error {
	s := &o.streams[from*int(paths)+int(p)]
	if want := s.plan[s.got].size(); len(data) != want {
		return fmt.Errorf("rank %d has sent %d bytes where the %v has %d", from, len(data), o.Kind, want)
	}
	s.got++
	s.arrived = append(s.arrived, data)
	if len(s.arrived) == 1 {
		o.advance()
	}
	return nil
}

// advance does what can be done with what has arrived.
func (o *Op) advance() {
	for again := true; again; {
		again = false
		for i := range o.streams {
			s := &o.streams[i]
			n := 0
			for n < len(s.arrived) && o.do(s.plan[s.got-len(s.arrived)+n], s.arrived[n]) {
				n++
			}
			if n > 0 {
				again = true
				s.arrived = s.arrived[n:]
				o.frees = append(o.frees, Free{i / int(paths), Path(i % int(paths)), n})
			}
		}
	}
}

// do does an item, if it is its turn.
func (o *Op) do(i item, data []byte) bool {
	if i.fold != nil {
		if i.fold.next != i.at {
			return false
		}
		o.feed(i.fold, data)
	} else {
		copy(i.dst, data)
	}
	o.left--
	return true
}

// Take returns what is to be sent, and what is free, since the last call.
func (o *Op) Take() (sends []Send, frees []Free) {
	sends, frees = o.sends, o.frees
	o.sends, o.frees = nil, nil
	return sends, frees
}

// Done says that nothing more comes, and that Take has returned or returns all that is to be sent.
func (o *Op) Done() bool { return o.left == 0 }
