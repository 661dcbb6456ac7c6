package store

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
)

// TestStore is how a store tests itself: on a rack of its own. A backup is killed; another takes its place, and
// has everything.
func TestStore(t *testing.T) {
	rack := mcrdmatest.Start(t, 3)
	backup := func(host string) *Backup {
		b, err := NewBackup(t.Context(), rack.Dial(host))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	backups := map[string]*Backup{"h2": backup("h2"), "h3": backup("h3")}
	p, err := NewPrimary(t.Context(), rack.Dial("h1"), mcrdma.GroupConfig{}, "h2", "h3")
	if err != nil {
		t.Fatal(err)
	}
	go p.Keep(t.Context())
	put := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if err := p.Put(t.Context(), fmt.Sprint("key ", i), fmt.Sprint("value ", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(0, 100)
	rack.Kill("h3")
	put(100, 200)
	backups["h3"] = backup("h3")
	put(200, 300)
	if i := p.group.Info(); i.Path != mcrdma.PathSwitch {
		t.Errorf("by hosts: %q", i.Why)
	}
	for host, b := range backups {
		late := time.After(time.Minute)
		for !maps.Equal(b.All(), p.All()) {
			select {
			case <-late:
				t.Fatalf("%s has %d entries of %d after a minute", host, len(b.All()), len(p.All()))
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}
