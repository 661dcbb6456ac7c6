package core

// A fold combines operands in their order, in pairs of pairs.
type fold struct {
	size   int // bytes of an operand
	n      int // operands
	next   int // the one that is combined next
	own    int // which operand is this rank's own
	ownBuf []byte
	ready  bool // ownBuf is there
	stack  []partial
	dst    []byte // of the result; nil: it stays where it is
	done   func(result []byte)
}

// A partial result is of 2^level operands, and has a buffer of its own.
type partial struct {
	level int
	buf   []byte
}

func (o *Op) fold(n, own, size int, dst []byte, done func([]byte)) *fold {
	o.left++
	return &fold{n: n, own: own, size: size, dst: dst, done: done}
}

// offer gives a fold this rank's own operand.
func (o *Op) offer(f *fold, own []byte) {
	f.ownBuf, f.ready = own, true
	if f.next == f.own {
		o.feed(f, own)
	}
}

// feed gives a fold the next operand, and its own if that follows.
func (o *Op) feed(f *fold, data []byte) {
	for {
		o.push(f, data)
		if f.next != f.own || !f.ready || f.next == f.n {
			break
		}
		data = f.ownBuf
	}
	if f.next < f.n {
		return
	}
	for len(f.stack) > 1 {
		o.merge(f)
	}
	result := f.stack[0].buf
	if f.dst != nil {
		copy(f.dst, result)
		o.temps = append(o.temps, result)
		result = f.dst
	}
	o.left--
	f.done(result)
}

// push takes an operand.
func (o *Op) push(f *fold, data []byte) {
	f.next++
	if top := len(f.stack) - 1; top >= 0 && f.stack[top].level == 0 {
		o.combine(f.stack[top].buf, data)
		f.stack[top].level = 1
	} else {
		buf := o.temp(f.size)
		copy(buf, data)
		f.stack = append(f.stack, partial{0, buf})
	}
	for top := len(f.stack) - 1; top > 0 && f.stack[top].level == f.stack[top-1].level; top-- {
		o.merge(f)
	}
}

// merge combines the last two partial results.
func (o *Op) merge(f *fold) {
	top := len(f.stack) - 1
	a, b := &f.stack[top-1], f.stack[top]
	o.combine(a.buf, b.buf)
	a.level++
	f.stack = f.stack[:top]
	o.temps = append(o.temps, b.buf)
}

// temp returns a buffer, whose first byte is aligned for any element.
func (o *Op) temp(n int) []byte {
	if last := len(o.temps) - 1; last >= 0 && cap(o.temps[last]) >= n {
		b := o.temps[last][:n]
		o.temps = o.temps[:last]
		return b
	}
	return make([]byte, n, (n+15)&^7)
}
