package connmgr

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/mcrdma/mcrdma/internal/store"
)

// Buckets of the store.
const (
	groupsBucket  = "groups"  // by number
	membersBucket = "members" // by attach
)

// A groupRecord is what must be known of a group after a restart.
type groupRecord struct {
	ID      groupID
	Spec    spec
	User    userRecord
	Created time.Time
	Form    *formation     `json:",omitempty"` // the one that is formed; nil: none yet
	Forming *formingRecord `json:",omitempty"` // the one that is being formed
	// Last is the highest number that a formation was given. It is durable before a
	// receiver of an earlier formation learns the number: such a receiver refuses it the
	// second time.
	Last uint32 `json:",omitempty"`
	// Departures are receivers that were taken out, and those of Form that are about to be.
	Departures []departure `json:",omitempty"`
}

// A formingRecord is what must be undone of a formation that never was complete.
type formingRecord struct {
	N          uint32
	MCID       uint32
	Candidates []netip.Addr
}

// A userRecord is a session as stored with groups and memberships.
type userRecord struct {
	Token    string
	UID, PID uint32
	Program  string
}

func (s *session) record() userRecord {
	return userRecord{s.token, s.user.uid, s.user.pid, s.program}
}

// MarshalText makes a groupID a text in records.
func (id groupID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText is the opposite of MarshalText.
func (id *groupID) UnmarshalText(b []byte) error {
	source, number, _ := bytes.Cut(b, []byte("/"))
	addr, err := netip.ParseAddr(string(source))
	if err != nil {
		return err
	}
	id.source = addr
	_, err = fmt.Sscan(string(number), &id.number)
	return err
}

func numberKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func groupEdit(number uint64, record []byte) store.Edit {
	return store.Edit{Bucket: groupsBucket, Key: numberKey(number), Value: record}
}

func memberEdit(attach uint64, record []byte) store.Edit {
	return store.Edit{Bucket: membersBucket, Key: numberKey(attach), Value: record}
}

// record puts a group into the state.
func (m *Manager) record(ctx context.Context, g *group, f *formation, begun *formingRecord) error {
	m.mu.Lock()
	r := groupRecord{ID: g.id, Spec: g.spec, User: g.sess.record(), Created: g.created, Form: f, Forming: begun, Last: g.last, Departures: g.departures}
	m.mu.Unlock()
	return m.commitState(ctx, groupEdit(g.id.number, encode(r)))
}

// commitState makes changes of the state durable.
func (m *Manager) commitState(ctx context.Context, edits ...store.Edit) error {
	return stateError(m.store.Commit(ctx, edits...))
}

// stateError returns the error for a request that needs the state when it cannot be
// written, with what to do about it. The daemon goes on with what it has.
func stateError(err error) error {
	if !errors.Is(err, store.ErrFailed) {
		return err
	}
	return &fault{reason: Limit, cause: err,
		text: fmt.Sprintf("the daemon's state file cannot be written: make room on its disk, or repair it, and restart the daemon (%v)", err)}
}

// forget deletes from the state in the background. It may be called with Manager.mu.
func (m *Manager) forget(edits ...store.Edit) {
	m.background(func(ctx context.Context) {
		if err := m.store.Commit(ctx, edits...); err != nil && ctx.Err() == nil {
			m.log.Error("something that is over is still in the daemon's state", "error", err)
		}
	})
}

func encode(r any) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("connmgr: a record: %v", err)) // plain data
	}
	return b
}

func decode(b []byte, r any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows it")
	}
	return nil
}
