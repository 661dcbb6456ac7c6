package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	errinfo "github.com/mcrdma/mcrdma/internal/failure"
)

// TestReasons: what a daemon reports is of the kind of its reason and of no other kind, says the host,
// and has an advice; and that is found around it, with the group.
func TestReasons(t *testing.T) {
	id := GroupID{"10.0.0.1", 7}
	for reason, want := range kinds {
		got := fromStatus(errinfo.New(reason, "so").AtHost("h7").GRPCStatus().Err())
		for _, err := range []error{got, fmt.Errorf("around: %w", got), id.about(fmt.Errorf("around: %w", got))} {
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Reason != reason || e.Host != "h7" || e.Text == "" {
				t.Errorf("%v: %+v", reason, e)
				continue
			}
			if e.Advice() == "" && reason != mcrdmav1.Reason_CLOSED && reason != mcrdmav1.Reason_STALE {
				t.Errorf("%v has no advice", reason)
			}
			for other, kind := range kinds {
				if errors.Is(err, kind) != errors.Is(want, kind) {
					t.Errorf("%v is of kind %v: %t", reason, kind, errors.Is(err, kind))
				}
				if errors.Is(err, &Error{Reason: other}) != (other == reason) {
					t.Errorf("%v is of reason %v: %t", reason, other, other != reason)
				}
			}
		}
		if e, _ := errors.AsType[*Error](id.about(got)); e.Group != id {
			t.Errorf("%v is about %v", reason, e.Group)
		}
	}
	if err := fromStatus(errinfo.New(mcrdmav1.Reason_AMBIGUOUS, "so").GRPCStatus().Err()); !errors.Is(err, ErrFailed) {
		t.Errorf("a reason without a kind: %v", err)
	}
	err := fromStatus(status.Error(codes.Unavailable, "error reading from server: EOF"))
	if !errors.Is(err, ErrDaemon) || err.Error() != "mcrdma: daemon: the connection was lost: EOF" {
		t.Errorf("the daemon was killed: %v", err)
	}
	if errors.Is(ErrBusy, ErrFailed) || errors.Is(ErrFailed, &Error{}) {
		t.Error("errors without a reason are taken for each other")
	}
	if err := id.about(context.Canceled); !errors.Is(err, context.Canceled) || id.about(nil) != nil {
		t.Error(err)
	}
}

// TestOldDaemonEnds: a daemon of an earlier release, which would end a group with too few receivers, is
// refused if the group is to wait.
func TestOldDaemonEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 2)
		src, r := ds[0].client(), ds[1].receiver(100, 0)
		_, err := src.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{ds[1].address}, Regions: []Region{{"r", 100}}, WaitForMinSize: true})
		wants(t, "create", err, ErrVersion, "update it")
		eventually(t, "nothing is left", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			r.c.mu.Lock()
			defer r.c.mu.Unlock()
			return len(w.groups) == 0 && len(r.c.members) == 0
		})
	})
}

// TestAbsent: why a receiver is not in a formation, and on which host: its name, if the daemon has said it.
func TestAbsent(t *testing.T) {
	list := []*mcrdmav1.Absent{
		{Address: "10.0.0.2", Host: "h2", Reason: mcrdmav1.Reason_DENIED, Text: "no"},
		{Address: "10.0.0.3", Reason: mcrdmav1.Reason_NO_SERVICE, Text: "none"},
	}
	for receiver, want := range map[string]Error{
		"10.0.0.2": {Host: "h2", Reason: mcrdmav1.Reason_DENIED},
		"h2":       {Host: "h2", Reason: mcrdmav1.Reason_DENIED},
		"10.0.0.3": {Host: "10.0.0.3", Reason: mcrdmav1.Reason_NO_SERVICE},
		"h4":       {Reason: mcrdmav1.Reason_UNREACHABLE},
	} {
		var got *Error
		if err := absent(list, receiver); !errors.As(err, &got) || got.Host != want.Host || got.Reason != want.Reason {
			t.Errorf("%s: %#v, want host %q and reason %v", receiver, got, want.Host, want.Reason)
		}
	}
}
