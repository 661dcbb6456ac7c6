package collective

import (
	"context"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/mcrdma/mcrdma/pkg/collective/core"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
)

// An Element is the type of a buffer's elements, the same at all ranks.
type Element interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64 | ~complex64 | ~complex128
}

// An Ordered is an Element with an order.
type Ordered interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// An Op combines operands: it sets each dst[i] to dst[i] combined with src[i]. The operands of dst
// are of lower ranks than those of src. It must be associative, but need not be commutative. The
// goroutine that calls the operation calls it, on parts of the buffers.
type Op[T Element] func(dst, src []T)

// Sum is the Op that adds.
func Sum[T Element](dst, src []T) {
	for i, v := range src[:len(dst)] {
		dst[i] += v
	}
}

// Prod is the Op that multiplies.
func Prod[T Element](dst, src []T) {
	for i, v := range src[:len(dst)] {
		dst[i] *= v
	}
}

// Min is the Op that takes the lesser operand, or NaN if either is NaN.
func Min[T Ordered](dst, src []T) {
	for i, v := range src[:len(dst)] {
		dst[i] = min(dst[i], v)
	}
}

// Max is the Op that takes the greater operand, or NaN if either is NaN.
func Max[T Ordered](dst, src []T) {
	for i, v := range src[:len(dst)] {
		dst[i] = max(dst[i], v)
	}
}

// Broadcast fills buf at each rank with the root's.
func Broadcast[T Element](ctx context.Context, c *Comm, root int, buf []T) error {
	return do(ctx, c, core.Task{Kind: core.Broadcast, Root: root, Count: len(buf)}, buf, buf, nil)
}

// Reduce sets buf, at the root, to the combination of all ranks' buf, and leaves those of the others as they are.
func Reduce[T Element](ctx context.Context, c *Comm, root int, buf []T, op Op[T]) error {
	return do(ctx, c, core.Task{Kind: core.Reduce, Root: root, Count: len(buf)}, buf, buf, op)
}

// Allreduce sets buf, at each rank, to the combination of all ranks' buf.
func Allreduce[T Element](ctx context.Context, c *Comm, buf []T, op Op[T]) error {
	return do(ctx, c, core.Task{Kind: core.Allreduce, Count: len(buf)}, buf, buf, op)
}

// ReduceScatter sets out to this rank's part of the combination of all ranks' in: out has the elements from Rank*len(out) on, and in
// has Size times as many. They must not overlap.
func ReduceScatter[T Element](ctx context.Context, c *Comm, out, in []T, op Op[T]) error {
	if len(in) != len(out)*c.Size() {
		return fmt.Errorf("%w reduce-scatter: %d elements in and %d out at each rank, where Size is %d", mcrdma.ErrInvalid, len(in), len(out), c.Size())
	}
	if overlap(in, out) {
		return fmt.Errorf("%w reduce-scatter: in and out overlap", mcrdma.ErrInvalid)
	}
	return do(ctx, c, core.Task{Kind: core.ReduceScatter, Count: len(in)}, in, out, op)
}

// Allgather sets out to the concatenation of all ranks' in, in rank order: out has Size times as
// many elements. in may be this rank's part of out, and must not overlap out otherwise.
func Allgather[T Element](ctx context.Context, c *Comm, out, in []T) error {
	if len(out) != len(in)*c.Size() {
		return fmt.Errorf("%w allgather: %d elements in at each rank, and %d out, where Size is %d", mcrdma.ErrInvalid, len(in), len(out), c.Size())
	}
	if own := out[c.Rank()*len(in):][:len(in)]; overlap(in, out) && unsafe.SliceData(in) != unsafe.SliceData(own) {
		return fmt.Errorf("%w allgather: in and out overlap, and in is not this rank's part of out", mcrdma.ErrInvalid)
	}
	return do(ctx, c, core.Task{Kind: core.Allgather, Count: len(out)}, in, out, nil)
}

// overlap says whether two buffers share memory.
func overlap[T Element](a, b []T) bool {
	p, q := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return p < q+uintptr(len(bytesOf(b))) && q < p+uintptr(len(bytesOf(a)))
}

// bytesOf returns the memory of elements.
func bytesOf[T Element](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// elementsOf is the inverse. The memory is aligned for elements: slots are, and what core allocates.
func elementsOf[T Element](b []byte) []T {
	var t T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

func do[T Element](ctx context.Context, c *Comm, t core.Task, in, out []T, op Op[T]) error {
	var e T
	t.Type, t.Elem = uint8(reflect.TypeFor[T]().Kind()), int(unsafe.Sizeof(e)) //nolint:gosec // there are few kinds
	reduces := t.Kind != core.Broadcast && t.Kind != core.Allgather
	switch {
	case t.Root < 0 || t.Root >= c.Size():
		return fmt.Errorf("%w %v: root %d, and ranks are 0 to %d", mcrdma.ErrInvalid, t.Kind, t.Root, c.Size()-1)
	case reduces && op == nil:
		return fmt.Errorf("%w %v: it needs an Op", mcrdma.ErrInvalid, t.Kind)
	}
	var combine func(dst, src []byte)
	if reduces {
		combine = func(dst, src []byte) { op(elementsOf[T](dst), elementsOf[T](src)) }
	}
	if err := c.run(ctx, t, bytesOf(in), bytesOf(out), combine); err != nil {
		return fmt.Errorf("%v: %w", t.Kind, err)
	}
	return nil
}
