package rc

import (
	"encoding/binary"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
)

// AppendState appends to b all the state of a queue pair that packets can change, encoded so that
// equal bytes mean equal future behavior. It is for model checkers, which keep millions of states
// and compare them by these bytes. LoadState restores the state, into the same queue pair or one
// that was created, started and posted to in the same way.
//
// The rest must be constant meanwhile: attributes, and the posted requests, so NextSendWC and
// NextRecvWC must not be called, since they release requests. Congestion control must be disabled,
// and there must be no READs. Statistics and the completion status of a failed request are not
// kept. Time is abstracted: the state says whether a timer runs, not for how long, so a checker may
// let it expire at any point. Round trips are assumed to take no time. Retry counts are assumed to
// be full, because how soon they run out also depends on time.
func (q *QP) AppendState(b []byte, now time.Duration) []byte {
	c := codec{b: b, now: now}
	q.state(&c)
	return c.b
}

// LoadState restores the state at the beginning of b, as of now, and returns the rest of b. It
// panics if b is not from AppendState.
func (q *QP) LoadState(b []byte, now time.Duration) []byte {
	c := codec{b: b, now: now, load: true}
	q.state(&c)
	return c.b
}

func (q *QP) state(c *codec) {
	q.req.state(c)
	q.resp.state(c)
}

func (r *Requester) state(c *codec) {
	c.bool(&r.live)
	c.bool(&r.drain)
	c.bool(&r.err)
	for _, v := range []*uint64{&r.una, &r.nxt, &r.max, &r.window.size, &r.window.credit} {
		number(c, v)
	}
	number(c, &r.cur)
	number(c, &r.sq.done)
	number(c, &r.sq.tail)
	number(c, &r.sq.end)
	c.bool(&r.probe)
	number(c, &r.failed)

	timer, waits, old := r.ackBy != Never, r.rnrUntil > c.now, r.nakUna != noNak && r.nakAt < c.now
	c.bool(&timer)
	c.bool(&waits)
	c.bool(&old)
	number(c, &r.nakUna)
	if !c.load {
		return
	}
	r.rtt, r.retries, r.rnrRetries = rttMeter{}, r.cfg.RetryCnt, r.cfg.RNRRetry
	r.ackBy, r.rnrUntil, r.nakAt = Never, 0, c.now
	if timer {
		r.ackBy = c.now + qp.AckTimeout(r.cfg.Timeout)
	}
	if waits {
		r.rnrUntil = c.now + time.Millisecond
	}
	if old {
		r.nakAt--
	}
}

func (p *Responder) state(c *codec) {
	c.bool(&p.err)
	number(c, &p.epsn)
	number(c, &p.msn)
	number(c, &p.msg.kind)
	number(c, &p.msg.done)
	number(c, &p.msg.total)
	number(c, &p.msg.rkey)
	number(c, &p.msg.va)
	number(c, &p.rq.done)
	number(c, &p.rq.tail)
	number(c, &p.reply)
	number(c, &p.nakCode)
	c.bool(&p.nakSilent)
	if !p.nakSilent {
		p.ahead = 0 // it is not used then
	}
	number(c, &p.ahead)
	number(c, &p.failed)
}

// A codec writes values to b, or reads them from it.
type codec struct {
	b    []byte
	now  time.Duration
	load bool
}

func number[T ~uint8 | ~uint32 | ~uint64 | ~int](c *codec, v *T) {
	if c.load {
		n, k := binary.Uvarint(c.b)
		if k <= 0 {
			panic("rc: LoadState of what is not from AppendState")
		}
		*v, c.b = T(n), c.b[k:]
	} else {
		c.b = binary.AppendUvarint(c.b, uint64(*v))
	}
}

func (c *codec) bool(v *bool) {
	n := byte(0)
	if *v {
		n = 1
	}
	number(c, &n)
	*v = n != 0
}
