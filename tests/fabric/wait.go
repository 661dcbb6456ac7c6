package fabric

import (
	"context"
	"fmt"
	"time"
)

func (f *Fabric) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func within(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return do(ctx)
}

// eventually calls cond until it returns nil, up to patience, every few
// milliseconds.
func (f *Fabric) eventually(what string, cond func() error) {
	f.t.Helper()
	f.must(f.until(what, patience, cond))
}

func (f *Fabric) until(what string, d time.Duration, cond func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(d); ; <-tick.C {
		err := cond()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, d, err)
		}
	}
}

// pause waits, for what has to happen meanwhile.
func (f *Fabric) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}
