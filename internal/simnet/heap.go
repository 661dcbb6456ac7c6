package simnet

// A kind says what an event is about.
type kind uint8

const (
	arrive   kind = iota // packet b has arrived at port a
	free                 // port a has sent its packet
	near                 // a timer of endpoint a, some microseconds ahead at most
	far                  // … later
	pause                // port a may not send data, or may again if b is 0
	callback             // of handler a, with b
)

// An event is something that happens at a time; of several at one time, in the order in which
// they were added.
type event struct {
	at   int64 // picoseconds
	seq  uint64
	kind kind
	a, b int32
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// An events is a heap in which each element has four below it: fewer levels than two.
type events struct {
	list []event
	seq  uint64
}

func (q *events) push(at int64, k kind, a, b int32) {
	q.seq++
	e := event{at: at, seq: q.seq, kind: k, a: a, b: b}
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
		for j := least + 1; j < min(least+4, len(l)); j++ {
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
