package connmgr

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/internal/failure"
	machine "github.com/mcrdma/mcrdma/internal/group"
	"github.com/mcrdma/mcrdma/internal/store"
)

// Buckets of the store.
const (
	groupsBucket  = "groups"  // by number
	membersBucket = "members" // by attach
	ownerBucket   = "owner"   // one pair, the address of the host whose memberships these are; files of former releases may lack it
)

// A groupRecord is a group in the state file.
type groupRecord struct {
	ID      groupID
	Spec    machine.Spec
	User    machine.Owner
	Created time.Time
	machine.SenderRecord
}

// editOf makes a change of a bucket; nil: the record is deleted.
func editOf(bucket string, number uint64, record []byte) store.Edit {
	return store.Edit{Bucket: bucket, Key: binary.BigEndian.AppendUint64(nil, number), Value: record}
}

// commitState makes changes of the state durable.
func (m *Manager) commitState(ctx context.Context, edits ...store.Edit) error {
	return stateError(m.store.Commit(ctx, edits...))
}

// stateError returns the error for a request that needs the state file when it cannot be written,
// with advice. The daemon goes on with its current state.
func stateError(err error) error {
	if !errors.Is(err, store.ErrFailed) {
		return err
	}
	return &failure.Error{Reason: mcrdmav1.Reason_LIMIT, Cause: err,
		Text: fmt.Sprintf("the daemon's state file cannot be written: make room on its disk, or repair it, and restart the daemon (%v)", err)}
}

// forget deletes from the state.
func (m *Manager) forget(ctx context.Context, edits ...store.Edit) {
	if err := m.store.Commit(ctx, edits...); err != nil && ctx.Err() == nil {
		m.log.Error("a group or membership that has ended is still in the daemon's state", "error", err)
	}
}
