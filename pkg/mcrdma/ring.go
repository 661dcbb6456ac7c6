package mcrdma

// A ring is a queue that grows as needed and never shrinks: in the steady state it does not
// allocate. The zero value is empty.
type ring[T any] struct {
	slots   []T
	head, n int
}

func (r *ring[T]) len() int { return r.n }

// at returns the i-th oldest.
func (r *ring[T]) at(i int) *T {
	return &r.slots[(r.head+i)%len(r.slots)]
}

func (r *ring[T]) push(v T) {
	if r.n == len(r.slots) {
		grown := make([]T, max(8, 2*r.n))
		for i := range r.n {
			grown[i] = *r.at(i)
		}
		r.slots, r.head = grown, 0
	}
	r.n++
	*r.at(r.n - 1) = v
}

// pop removes the oldest. There must be one.
func (r *ring[T]) pop() T {
	var none T
	p := r.at(0)
	v := *p
	*p = none
	r.head = (r.head + 1) % len(r.slots)
	r.n--
	return v
}
