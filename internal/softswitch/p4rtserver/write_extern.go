package p4rtserver

import (
	"fmt"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/softswitch/match"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
)

// cells returns the range of cells selected by an index: all of them if it is unset.
func (a *array[V]) cells(index *p4.Index) (from, to int, err error) {
	if index == nil {
		return 0, a.state.Len(), nil
	}
	switch i := index.GetIndex(); {
	case i < 0:
		return 0, 0, invalid("%s: index %d is negative", a, i)
	case i >= int64(a.state.Len()):
		return 0, 0, fail(codes.OutOfRange, "%s: index %d: it has %d cells", a, i, a.state.Len())
	default:
		return int(i), int(i) + 1, nil
	}
}

// set sets cells of an array to a value.
func (a *array[V]) set(x *txn, index *p4.Index, v V) error {
	from, to, err := a.cells(index)
	if err != nil {
		return err
	}
	var before []V
	for i := from; i < to; i++ {
		if x.keep {
			old, err := a.state.Get(i)
			if err != nil {
				return err
			}
			before = append(before, old)
		}
		if err := a.state.Set(i, v); err != nil {
			return err
		}
	}
	x.done(func() error {
		for i, v := range before {
			if err := a.state.Set(from+i, v); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

func checkCounts(what fmt.Stringer, c *p4.CounterData) error {
	if c.GetPacketCount() < 0 || c.GetByteCount() < 0 {
		return invalid("%s: a count is negative: %d packets, %d bytes", what, c.GetPacketCount(), c.GetByteCount())
	}
	return nil
}

func noColors(what any) error {
	return fail(codes.Unimplemented, "%s: counters per color of a meter are not supported", what)
}

// readMeter checks and reads a meter's configuration ("MeterEntry & DirectMeterEntry"); nil means
// an unconfigured meter.
func readMeter(what fmt.Stringer, kind p4cfg.MeterSpec_Type, m *p4.MeterConfig) (pipeline.MeterConfig, error) {
	if m == nil {
		return pipeline.MeterConfig{}, nil
	}
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
	c, err := x.c.counters.modified(e.GetCounterId(), kind)
	if err != nil {
		return err
	}
	if e.GetData() == nil { // nothing to modify
		_, _, err = c.cells(e.GetIndex())
		return err
	}
	if err := checkCounts(c, e.GetData()); err != nil {
		return err
	}
	return c.set(x, e.GetIndex(), readCounts(e.GetData()))
}

func readCounts(c *p4.CounterData) pipeline.Counts {
	return pipeline.Counts{Packets: uint64(c.GetPacketCount()), Bytes: uint64(c.GetByteCount())}
}

// meter modifies cells of a meter.
func (x *txn) meter(kind p4.Update_Type, e *p4.MeterEntry) error {
	m, err := x.c.meters.modified(e.GetMeterId(), kind)
	if err != nil {
		return err
	}
	if e.GetCounterData() != nil {
		return noColors(m)
	}
	config, err := readMeter(m, m.kind, e.GetConfig())
	if err != nil {
		return err
	}
	return m.set(x, e.GetIndex(), config)
}

// register modifies cells of a register.
func (x *txn) register(kind p4.Update_Type, e *p4.RegisterEntry) error {
	r, err := x.c.registers.modified(e.GetRegisterId(), kind)
	if err != nil {
		return err
	}
	values, err := r.data.decode(nil, e.GetData())
	if err != nil {
		return in(r.String(), err)
	}
	return r.set(x, e.GetIndex(), values[0])
}

// valueSet replaces the members of a parser value set.
func (x *txn) valueSet(kind p4.Update_Type, e *p4.ValueSetEntry) error {
	v, err := x.c.valueSets.modified(e.GetValueSetId(), kind)
	if err != nil {
		return err
	}
	members := make([][]match.Field, len(e.GetMembers()))
	for i, m := range e.GetMembers() {
		if members[i], err = v.key.fields(m.GetMatch()); err != nil {
			return in(fmt.Sprintf("member %d", i), err)
		}
	}
	before := v.state.Get()
	if err := v.state.Set(members); err != nil {
		return err
	}
	x.done(func() error { return v.state.Set(before) })
	return nil
}

// digest enables, disables or configures a digest ("DigestEntry").
func (x *txn) digest(kind p4.Update_Type, e *p4.DigestEntry) error {
	d, err := x.c.digests.find(e.GetDigestId())
	if err != nil {
		return err
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
