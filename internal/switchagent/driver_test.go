package switchagent

import (
	"context"
	"errors"
	"testing"
)

// TestNotWritten: an edit whose caller gives up before the driver takes it says so once, and is
// not made later.
func TestNotWritten(t *testing.T) {
	d := newDriver(nil, nil) // it does not run
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the caller has left")
	cancel(why)
	err := d.write(ctx, puts(nil, nil))
	if want := "the switch was not written: the caller has left"; err == nil || err.Error() != want || !errors.Is(err, why) {
		t.Errorf("%v, want %q", err, want)
	}
	if len(d.queue) > 0 {
		t.Errorf("%d edits are left", len(d.queue))
	}
}
