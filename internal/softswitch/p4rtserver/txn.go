package p4rtserver

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
)

// A txn applies updates to a config's state. Its user has exclusive access.
type txn struct {
	c       *config
	now     time.Duration
	learned bool           // digests have been configured
	keep    bool           // remember how to undo
	undo    []func() error // in the order of what was done
}

// done notes how to undo what has just been done.
func (x *txn) done(undo func() error) {
	if x.keep {
		x.undo = append(x.undo, undo)
	}
}

// rollBack undoes everything. It cannot fail unless the state is broken.
func (x *txn) rollBack() error {
	var failed []error
	for i := len(x.undo) - 1; i >= 0; i-- {
		if err := x.undo[i](); err != nil {
			failed = append(failed, err)
		}
	}
	x.undo = nil
	if len(failed) > 0 {
		return fail(codes.Internal, "roll-back failed: %v", errors.Join(failed...))
	}
	return nil
}
