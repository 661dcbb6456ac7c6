package p4rtserver

import (
	"fmt"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// cells is which cells of an array an index means: all of them if it is unset.
func cells(of fmt.Stringer, index *p4.Index, size int) (from, to int, err error) {
	if index == nil {
		return 0, size, nil
	}
	switch i := index.GetIndex(); {
	case i < 0:
		return 0, 0, invalid("%s: index %d is negative", of, i)
	case i >= int64(size):
		return 0, 0, fail(codes.OutOfRange, "%s: index %d: it has %d cells", of, i, size)
	default:
		return int(i), int(i) + 1, nil
	}
}

func checkCounts(what string, c *p4.CounterData) error {
	if c.GetPacketCount() < 0 || c.GetByteCount() < 0 {
		return invalid("%s: a count is negative: %d packets, %d bytes", what, c.GetPacketCount(), c.GetByteCount())
	}
	return nil
}

func noColours(what string) error {
	return fail(codes.Unimplemented, "%s: counters per colour of a meter are not supported", what)
}

// readMeter checks a meter's configuration ("MeterEntry & DirectMeterEntry").
func readMeter(what string, kind p4cfg.MeterSpec_Type, m *p4.MeterConfig) (pipeline.MeterConfig, error) {
	c := pipeline.MeterConfig{CIR: m.GetCir(), CBurst: m.GetCburst(), PIR: m.GetPir(), PBurst: m.GetPburst(), Set: true}
	switch {
	case m.GetEburst() != 0:
		return c, invalid("%s: eburst is %d; meters of this type have none", what, m.GetEburst())
	case min(c.CIR, c.CBurst, c.PIR, c.PBurst) < 0:
		return c, invalid("%s: a rate or burst is negative: cir %d, cburst %d, pir %d, pburst %d", what, c.CIR, c.CBurst, c.PIR, c.PBurst)
	case kind == p4cfg.MeterSpec_SINGLE_RATE_TWO_COLOR && (c.CIR != c.PIR || c.CBurst != c.PBurst):
		return c, invalid("%s: a meter of one rate needs cir = pir and cburst = pburst, not %d, %d and %d, %d", what, c.CIR, c.PIR, c.CBurst, c.PBurst)
	case c.PIR < c.CIR:
		return c, invalid("%s: pir %d is less than cir %d", what, c.PIR, c.CIR)
	}
	return c, nil
}

func writeMeter(c pipeline.MeterConfig) *p4.MeterConfig {
	if !c.Set {
		return nil
	}
	return &p4.MeterConfig{Cir: c.CIR, Cburst: c.CBurst, Pir: c.PIR, Pburst: c.PBurst}
}

// counter modifies cells of a counter.
func (x *txn) counter(kind p4.Update_Type, e *p4.CounterEntry) error {
	c := x.c.counters[e.GetCounterId()]
	if c == nil {
		return x.c.noSuch("counter", e.GetCounterId())
	}
	if kind != p4.Update_MODIFY {
		return notModify(c.String(), kind)
	}
	from, to, err := cells(c, e.GetIndex(), c.size)
	if err != nil || e.GetData() == nil { // without data, nothing is modified
		return err
	}
	if err := checkCounts(c.String(), e.GetData()); err != nil {
		return err
	}
	type counts struct{ packets, octets uint64 }
	var before []counts
	for i := from; i < to; i++ {
		if x.keep {
			p, o, err := c.state.Get(i)
			if err != nil {
				return err
			}
			before = append(before, counts{p, o})
		}
		if err := c.state.Set(i, uint64(e.GetData().GetPacketCount()), uint64(e.GetData().GetByteCount())); err != nil {
			return err
		}
	}
	x.done(func() error {
		for i, b := range before {
			if err := c.state.Set(from+i, b.packets, b.octets); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// directCounter modifies the counter of a table entry.
func (x *txn) directCounter(kind p4.Update_Type, d *p4.DirectCounterEntry) error {
	if kind != p4.Update_MODIFY {
		return notModify("direct counter entry", kind)
	}
	t, e, err := x.c.entryOf(d.GetTableEntry())
	switch {
	case err != nil:
		return err
	case t.counter == nil:
		return invalid("%s has no direct counter", t)
	}
	if d.GetData() == nil {
		return nil
	}
	if err := checkCounts(t.counter.what, d.GetData()); err != nil {
		return err
	}
	x.setCounts(e, d.GetData())
	return nil
}

// meter modifies cells of a meter.
func (x *txn) meter(kind p4.Update_Type, e *p4.MeterEntry) error {
	m := x.c.meters[e.GetMeterId()]
	if m == nil {
		return x.c.noSuch("meter", e.GetMeterId())
	}
	if kind != p4.Update_MODIFY {
		return notModify(m.String(), kind)
	}
	if e.GetCounterData() != nil {
		return noColours(m.String())
	}
	from, to, err := cells(m, e.GetIndex(), m.size)
	if err != nil {
		return err
	}
	var config pipeline.MeterConfig
	if e.GetConfig() != nil {
		if config, err = readMeter(m.String(), m.kind, e.GetConfig()); err != nil {
			return err
		}
	}
	var before []pipeline.MeterConfig
	for i := from; i < to; i++ {
		if x.keep {
			b, err := m.state.Get(i)
			if err != nil {
				return err
			}
			before = append(before, b)
		}
		if err := m.state.Set(i, config); err != nil {
			return err
		}
	}
	x.done(func() error {
		for i, b := range before {
			if err := m.state.Set(from+i, b); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// directMeter modifies the meter of a table entry.
func (x *txn) directMeter(kind p4.Update_Type, d *p4.DirectMeterEntry) error {
	if kind != p4.Update_MODIFY {
		return notModify("direct meter entry", kind)
	}
	t, e, err := x.c.entryOf(d.GetTableEntry())
	switch {
	case err != nil:
		return err
	case t.meter == nil:
		return invalid("%s has no direct meter", t)
	case d.GetCounterData() != nil:
		return noColours(t.meter.what)
	}
	var config pipeline.MeterConfig
	if d.GetConfig() != nil {
		if config, err = readMeter(t.meter.what, t.meter.kind, d.GetConfig()); err != nil {
			return err
		}
	}
	return x.setMeter(t, e, config)
}

// register modifies cells of a register.
func (x *txn) register(kind p4.Update_Type, e *p4.RegisterEntry) error {
	r := x.c.registers[e.GetRegisterId()]
	if r == nil {
		return x.c.noSuch("register", e.GetRegisterId())
	}
	if kind != p4.Update_MODIFY {
		return notModify(r.String(), kind)
	}
	from, to, err := cells(r, e.GetIndex(), r.size)
	if err != nil {
		return err
	}
	values, err := r.data.decode(nil, e.GetData())
	if err != nil {
		return in(r.String(), err)
	}
	var before []match.Value
	for i := from; i < to; i++ {
		if x.keep {
			b, err := r.state.Get(i)
			if err != nil {
				return err
			}
			before = append(before, b)
		}
		if err := r.state.Set(i, values[0]); err != nil {
			return err
		}
	}
	x.done(func() error {
		for i, b := range before {
			if err := r.state.Set(from+i, b); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// valueSet replaces the members of a parser value set.
func (x *txn) valueSet(kind p4.Update_Type, e *p4.ValueSetEntry) error {
	v := x.c.valueSets[e.GetValueSetId()]
	if v == nil {
		return x.c.noSuch("value set", e.GetValueSetId())
	}
	if kind != p4.Update_MODIFY {
		return notModify(v.String(), kind)
	}
	if n := len(e.GetMembers()); n > v.size {
		return fail(codes.ResourceExhausted, "%s: %d members, of %d at most", v, n, v.size)
	}
	members := make([][]match.Field, len(e.GetMembers()))
	for i, m := range e.GetMembers() {
		key, err := v.key.fields(m.GetMatch())
		if err != nil {
			return in(fmt.Sprintf("member %d", i), err)
		}
		members[i] = key
	}
	before := v.state.Get()
	if err := v.state.Set(members); err != nil {
		return err
	}
	x.done(func() error { return v.state.Set(before) })
	return nil
}

// digest switches a digest on or off, or configures it ("DigestEntry").
func (x *txn) digest(kind p4.Update_Type, e *p4.DigestEntry) error {
	d := x.c.digests[e.GetDigestId()]
	if d == nil {
		return x.c.noSuch("digest", e.GetDigestId())
	}
	x.learned = true
	old, on := x.c.learning[d.id]
	switch {
	case kind == p4.Update_INSERT && on:
		return fail(codes.AlreadyExists, "%s is enabled already; modify it instead", d)
	case kind != p4.Update_INSERT && !on:
		return fail(codes.NotFound, "%s is not enabled; insert it first", d)
	}
	if kind == p4.Update_DELETE {
		delete(x.c.learning, d.id)
	} else {
		c := e.GetConfig()
		switch {
		case c == nil:
			return invalid("%s: it needs a config", d)
		case c.GetMaxTimeoutNs() < 0 || c.GetAckTimeoutNs() < 0 || c.GetMaxListSize() < 0:
			return invalid("%s: a negative number in its config: max_timeout_ns %d, max_list_size %d, ack_timeout_ns %d",
				d, c.GetMaxTimeoutNs(), c.GetMaxListSize(), c.GetAckTimeoutNs())
		}
		x.c.learning[d.id] = c
	}
	x.done(func() error {
		if on {
			x.c.learning[d.id] = old
		} else {
			delete(x.c.learning, d.id)
		}
		return nil
	})
	return nil
}
