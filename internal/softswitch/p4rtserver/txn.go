package p4rtserver

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
)

// A txn applies updates to a config's state. The caller has exclusive access.
type txn struct {
	c       *config
	now     time.Duration
	learned bool           // digests were configured
	keep    bool           // record how to undo
	undo    []func() error // in the order of the updates
}

// done records how to undo the operation just done.
func (x *txn) done(undo func() error) {
	if x.keep {
		x.undo = append(x.undo, undo)
	}
}

// rollBack undoes all operations. It fails only if the state is broken.
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
