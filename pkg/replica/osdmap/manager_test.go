package osdmap_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/tests/osdmaptest"
)

func TestMemory(t *testing.T) {
	osdmaptest.Run(t, func(*testing.T) osdmap.KV { return osdmaptest.New() })
}

// TestDeadline: a store that never answers ends a call after its time.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := osdmap.New(osdmaptest.Faulty{KV: osdmaptest.New(), Fault: func(ctx context.Context, _ string, _ bool) error {
			<-ctx.Done()
			return ctx.Err()
		}}, osdmap.Options{Timeout: 3 * time.Second})
		begun := time.Now()
		_, err := m.Map(t.Context(), 7)
		if took := time.Since(begun); !errors.Is(err, osdmap.ErrAway) || !errors.Is(err, context.DeadlineExceeded) || took != 3*time.Second {
			t.Fatalf("%v after %v", err, took)
		}
		if !strings.Contains(err.Error(), "volumes go on") || !strings.Contains(err.Error(), "start the missing members") {
			t.Errorf("%v does not say what goes on and what to do", err)
		}
	})
}

// TestReads: many calls at a time are a few reads of a store that is slow, a call is answered by a read that began
// after it, and one read that gets no answer delays the next calls little.
func TestReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv, ctx := osdmaptest.New(), t.Context()
		var gets atomic.Int64
		var frozen atomic.Bool
		m := osdmap.New(osdmaptest.Faulty{KV: kv, Fault: func(ctx context.Context, call string, after bool) error {
			if call != "Get" || after {
				return nil
			}
			gets.Add(1)
			if frozen.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(50 * time.Millisecond)
			return nil
		}}, osdmap.Options{})
		const n = 60
		for id := range uint64(n) {
			v := osdmaptest.Volume(id+1, fmt.Sprint("v", id))
			if err := m.Create(ctx, v, osdmap.FirstMap(v, 2)); err != nil {
				t.Fatal(err)
			}
		}
		all := func(epoch uint64) {
			t.Helper()
			var wg sync.WaitGroup
			for id := range uint64(n) {
				wg.Go(func() {
					if at, err := m.Map(ctx, id+1); err != nil || at.Epoch != epoch {
						t.Errorf("volume %d: %+v, %v", id, at, err)
					}
				})
			}
			wg.Wait()
		}
		gets.Store(0)
		if all(1); gets.Load() > 2 {
			t.Errorf("%d reads for %d calls at a time", gets.Load(), n)
		}
		for id := range uint64(n) { // a read that has begun does not answer a later call
			go func() { _, _ = m.Map(ctx, id+1) }()
			synctest.Wait()
			at, err := m.Propose(ctx, id+1, osdmaptest.Next(osdmap.FirstMap(osdmaptest.Volume(id+1, "v"), 2), 1, 1, 2))
			if err != nil || at.Epoch != 2 {
				t.Fatalf("%+v, %v", at, err)
			}
		}
		all(2)
		if _, err := m.Map(ctx, n+1); !errors.Is(err, osdmap.ErrNotFound) {
			t.Error(err)
		}
		frozen.Store(true)
		go func() { _, _ = m.Map(ctx, 1) }()
		synctest.Wait()
		frozen.Store(false)
		begun := time.Now()
		if all(2); time.Since(begun) > 150*time.Millisecond {
			t.Errorf("answered after %v, beside a read that is not", time.Since(begun))
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if _, err := m.Map(short, 1); !errors.Is(err, osdmap.ErrAway) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestWatchAway: the watch says that the store is away, with the last state, and goes on.
func TestWatchAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		kv := osdmaptest.New()
		var away atomic.Bool
		m := osdmap.New(osdmaptest.Faulty{KV: kv, Fault: func(context.Context, string, bool) error {
			if away.Load() {
				return errors.New("cut")
			}
			return nil
		}}, osdmap.Options{})
		states := m.Watch(ctx)
		if err := m.PutHost(ctx, osdmaptest.Host(1)); err != nil {
			t.Fatal(err)
		}
		osdmaptest.Until(t, states, "the host", func(s osdmap.State) bool { return s.Host(1) != nil && s.Away == nil })
		away.Store(true)
		osdmaptest.Until(t, states, "away", func(s osdmap.State) bool { return errors.Is(s.Away, osdmap.ErrAway) && s.Host(1) != nil })
		if err := osdmap.New(kv, osdmap.Options{}).PutHost(ctx, osdmaptest.Host(2)); err != nil {
			t.Fatal(err)
		}
		away.Store(false)
		osdmaptest.Until(t, states, "back", func(s osdmap.State) bool { return s.Away == nil && s.Host(2) != nil })
		cancel()
		synctest.Wait()
		for range states {
		}
	})
}

// TestWatchBackup: a store that was restored from a copy does not take a map back.
func TestWatchBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		kv := osdmaptest.New()
		m := osdmap.New(kv, osdmap.Options{})
		first := osdmap.FirstMap(osdmaptest.Volume(7, "a"), 2)
		if err := m.Create(ctx, osdmaptest.Volume(7, "a"), first); err != nil {
			t.Fatal(err)
		}
		backup, _, err := kv.Get(ctx, "volumes/")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Propose(ctx, 7, osdmaptest.Next(first, 1, 1, 2)); err != nil {
			t.Fatal(err)
		}
		states := m.Watch(ctx)
		osdmaptest.Until(t, states, "epoch 2", func(s osdmap.State) bool { return s.Volume(7).Map.Epoch == 2 })
		now, _, err := kv.Get(ctx, "volumes/")
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := kv.Commit(ctx, osdmap.Change{Key: now[0].Key, Value: backup[0].Value, Revision: now[0].Revision}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		s := osdmaptest.Until(t, states, "the fault", func(s osdmap.State) bool { return len(s.Faults) > 0 })
		if s.Volume(7).Map.Epoch != 2 || !strings.Contains(s.Faults[0].Error(), "backup") {
			t.Errorf("%+v", s)
		}
	})
}

func TestCheckMap(t *testing.T) {
	v := osdmaptest.Volume(7, "a")
	for name, change := range map[string]func(*core.Map){
		"epoch 0":             func(m *core.Map) { m.Epoch = 0 },
		"since later":         func(m *core.Map) { m.Since = 3 },
		"no primary":          func(m *core.Map) { m.Primary = core.Member{} },
		"primary not acting":  func(m *core.Map) { m.Primary.Incarnation++ },
		"none acting":         func(m *core.Map) { m.Acting = nil },
		"twice":               func(m *core.Map) { m.Acting = append(m.Acting, core.Member{ID: 1, Incarnation: 2}) },
		"a stranger":          func(m *core.Map) { m.Acting = append(m.Acting, core.Member{ID: 4, Incarnation: 2}) },
		"min_size 0":          func(m *core.Map) { m.MinSize = 0 },
		"min_size impossible": func(m *core.Map) { m.MinSize = 4 },
		"too many former":     func(m *core.Map) { m.Former = make([]core.ID, 4) },
	} {
		m := osdmaptest.Next(osdmap.FirstMap(v, 2), 1, 1, 2)
		if err := v.CheckMap(m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		if err := v.CheckMap(m); !errors.Is(err, osdmap.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRecord: whatever a record holds, it is refused in words or makes sense, and is then written
// and read as the same.
func FuzzRecord(f *testing.F) {
	kv, ctx := osdmaptest.New(), context.Background()
	m := osdmap.New(kv, osdmap.Options{})
	v := osdmaptest.Volume(7, "a")
	if err := errors.Join(m.PutHost(ctx, osdmaptest.Host(1)), m.Create(ctx, v, osdmap.FirstMap(v, 2))); err != nil {
		f.Fatal(err)
	}
	pairs, _, err := kv.Get(ctx, "")
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range pairs {
		f.Add(p.Key, p.Value)
		f.Add(p.Key, append(bytes.Clone(p.Value), '1'))
		f.Add(p.Key, bytes.Replace(p.Value, []byte(`"format":1`), []byte(`"format":9`), 1))
	}
	if _, err := m.Allow(ctx, 7, []string{"host:vm1"}); err != nil {
		f.Fatal(err)
	}
	listed, _, err := kv.Get(ctx, "volumes/")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(listed[0].Key, listed[0].Value)
	f.Add(listed[0].Key, bytes.Replace(listed[0].Value, []byte(`"format":2`), []byte(`"format":1`), 1))
	f.Add("hosts/", []byte(`null`))
	f.Add("volumes/0000000000000007", []byte(`{"format":1,"volume":{"hosts":[0]},"map":{}}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		kv := osdmaptest.New()
		m := osdmap.New(kv, osdmap.Options{})
		if ok, err := kv.Commit(ctx, osdmap.Change{Key: key, Value: append([]byte{}, value...)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		s, err := m.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range s.Faults {
			if !errors.Is(fault, osdmap.ErrDamaged) && !errors.Is(fault, osdmap.ErrFormat) {
				t.Errorf("%v", fault)
			}
		}
		for _, h := range s.Hosts {
			if err := h.Check(); err != nil {
				t.Error(err)
			}
			if err := m.PutHost(ctx, h); err != nil {
				t.Error(err)
			}
		}
		for _, v := range s.Volumes {
			if err := errors.Join(v.Volume.Check(), v.Volume.CheckMap(v.Map)); err != nil {
				t.Error(err)
			}
			got, err := m.Propose(ctx, v.Volume.ID, v.Map)
			if a, b := asJSON(t, got), asJSON(t, v.Map); err != nil || a != b {
				t.Errorf("%s, %v; want %s", a, err, b)
			}
		}
	})
}

func asJSON(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
