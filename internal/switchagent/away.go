package switchagent

import (
	"context"
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/failure"
	"github.com/mcrdma/mcrdma/internal/p4rt"
)

// connected waits for a session.
func (d *driver) connected(ctx context.Context) (*p4rt.Session, error) {
	for {
		if _, s := d.current(); s != nil {
			return s, nil
		}
		if err := d.write(ctx, puts(nil, nil)); err != nil {
			return nil, err
		}
	}
}

// lostGrace is how long a switch may be away before requests that need it are refused.
const lostGrace = time.Second

// there returns the session, for requests that cannot wait for a reconnection. It waits briefly for
// a switch that has just been lost or is being read: another agent may have the switch.
func (d *driver) there(ctx context.Context) (*p4rt.Session, error) {
	st, s := d.current()
	left := lostGrace - time.Since(st.since)
	if st.phase == reading {
		left = lostGrace
	}
	if s == nil && left > 0 {
		soon, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		s, _ = d.connected(soon)
	}
	if s == nil {
		return nil, &failure.Error{Text: d.away(), Cause: ErrNotReady}
	}
	return s, nil
}

// away returns the reason why no session is in use; "": one is.
func (d *driver) away() string {
	st, _ := d.current()
	since := st.since.UTC().Format(time.DateTime + " MST")
	switch st.phase {
	case serving:
		return ""
	case backup:
		return "another agent has controlled the switch since " + since
	case reading:
		return "the switch is being read"
	}
	if st.err != nil {
		return fmt.Sprintf("the switch has not been connected to its agent since %s: %v", since, st.err)
	}
	return "the switch has not been connected to its agent since " + since
}
