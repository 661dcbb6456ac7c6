package simnet

// A kind says what an event is about.
type kind uint8

const (
	arrive   kind = iota // packet b has arrived at port a
	free                 // port a has sent its packet
	near                 // a timer of endpoint a, some microseconds ahead at most
	far                  // … later
	pause                // port a may not send data, or may again if b is 0
	callback             // of function a
	wake                 // of switch a, which is not this package's
)

// An event is something that happens at a time; of several at one time, in the order of their ranks.
type event struct {
	at   int64 // picoseconds
	rank uint64
	kind kind
	a, b int32
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.rank < o.rank }

// rankOf orders what happens at one time: by kind, then by port or endpoint, so that the order in which events
// were added has no part in it. Of what is left, the first that was added comes first.
func rankOf(k kind, a int32, seq uint64) uint64 {
	switch k {
	case free, wake:
		return uint64(a) //nolint:gosec // an index; one of a port, or of a switch that has no other
	case arrive:
		return 1<<60 | uint64(a) //nolint:gosec // likewise
	case near, far:
		return 2<<60 | uint64(a)<<8 | uint64(k) //nolint:gosec // likewise
	}
	return 3<<60 | seq
}

// An events is a heap in which each element has four below it: fewer levels than two.
type events struct {
	list []event
	seq  uint64
}

func (q *events) push(at int64, k kind, a, b int32) {
	q.seq++
	e := event{at: at, rank: rankOf(k, a, q.seq), kind: k, a: a, b: b}
	q.list = append(q.list, e)
	l := q.list
	i := len(l) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&l[up]) {
			break
		}
		l[i] = l[up]
		i = up
	}
	l[i] = e
}

func (q *events) pop() event {
	l := q.list
	top, e := l[0], l[len(l)-1]
	l = l[:len(l)-1]
	q.list = l
	i := 0
	for {
		least := 4*i + 1
		if least >= len(l) {
			break
		}
		for j, end := least+1, min(least+4, len(l)); j < end; j++ {
			if l[j].before(&l[least]) {
				least = j
			}
		}
		if !l[least].before(&e) {
			break
		}
		l[i] = l[least]
		i = least
	}
	if len(l) > 0 {
		l[i] = e
	}
	return top
}
