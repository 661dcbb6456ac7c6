package softroce

import (
	"bytes"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/link"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// readRequest is a peer's READ of n bytes at va.
func (s *station) readRequest(rkey uint32, va uint64, n int) link.Rx {
	return s.packet(rocev2.ReadRequest, nil, func(h *rocev2.Headers) {
		h.RETH = rocev2.RETH{VA: va, RKey: rkey, Length: uint32(n)}
	})
}

// A READ gets bytes only where its key, the region's access, the queue pair's
// access and the range all allow. The refusal is a NAK and an event here.
func TestReadAccess(t *testing.T) {
	s := newFresh(t, qp.Init{})
	reg := func(pd qp.PD, a qp.Access) *MR {
		m := must(pd.RegMR(make([]byte, 2000), a))(t).(*MR)
		fillPattern(m.buf, 7)
		return m
	}
	closed := reg(s.pd, qp.AccessRemoteRead)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	const most = 1 << 31
	for _, c := range []struct {
		name   string
		access qp.Access // of the queue pair
		mr     *MR
		off, n int
		nak    rocev2.Syndrome // 0: none
	}{
		{"all", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), 0, 2000, 0},
		{"the last byte", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), 1999, 1, 0},
		{"nothing, behind the end", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), 2001, 0, 0}, // no memory, no check
		{"one byte before", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), -1, 10, rocev2.NakRemoteAccess},
		{"one byte too many", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), 1991, 10, rocev2.NakRemoteAccess},
		{"the second packet outside", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), 100, 1901, rocev2.NakRemoteAccess},
		{"behind the end", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), 2000, 1, rocev2.NakRemoteAccess},
		{"around the address space", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), -2000, 4000, rocev2.NakRemoteAccess},
		{"the longest", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), 0, most, rocev2.NakRemoteAccess},
		{"longer than that", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteRead), 0, most + 1, rocev2.NakInvalidRequest},
		{"a region of others to write only", qp.AccessRemoteRead, reg(s.pd, qp.AccessRemoteWrite|qp.AccessRemoteAtomic), 0, 10, rocev2.NakRemoteAccess},
		{"another domain", qp.AccessRemoteRead, reg(must(s.dev.AllocPD())(t), qp.AccessRemoteRead), 0, 10, rocev2.NakRemoteAccess},
		{"a closed region", qp.AccessRemoteRead, closed, 0, 10, rocev2.NakRemoteAccess},
		{"a queue pair to write only", qp.AccessRemoteWrite, reg(s.pd, qp.AccessRemoteRead), 0, 10, rocev2.NakRemoteAccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			modify(t, s.end, qp.StateReset, qp.MaskState)
			s.attr.Access = c.access
			s.up(peerAddr, peerQPN)
			s.psn = s.attr.RQPSN
			s.wire.deliver(s.readRequest(c.mr.RKey(), c.mr.Addr()+uint64(c.off), c.n))
			got := s.wire.take()
			if c.nak != 0 {
				if len(got) != 1 || got[0].AETH.Syndrome != c.nak || got[0].PSN != s.psn || got[0].Opcode != rocev2.Acknowledge {
					t.Errorf("answered by %+v", got)
				}
				if e := s.event(); e.QPN != s.qp.QPN() || e.Err == nil {
					t.Errorf("event %+v", e)
				}
				if st := s.qp.State(); st != qp.StateError {
					t.Errorf("state %v", st)
				}
				return
			}
			var data []byte
			for _, p := range got {
				data = append(data, p.payload...)
			}
			if c.n > 0 && !bytes.Equal(data, c.mr.buf[c.off:c.off+c.n]) || len(data) != c.n || len(got) != max(1, (c.n+1023)/1024) {
				t.Errorf("%d bytes in %d packets, or others than there are", len(data), len(got))
			}
			s.noEvent()
		})
	}
}

// What a READ response carries is a copy: the region may change while the link sends.
func TestReadResponseIsACopy(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	fillPattern(s.buf, 3)
	want := bytes.Clone(s.buf[:3000])
	s.wire.setOnSend(func([]link.Tx) error { clear(s.buf); return nil })
	s.wire.deliver(s.readRequest(s.mr.RKey(), s.mr.Addr(), 3000))
	var got []byte
	for _, p := range s.wire.take() {
		got = append(got, p.payload...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes, or others than there were", len(got))
	}
}

// A READ whose memory is deregistered takes its queue pair down, and what comes then is not written.
func TestRegionClosedUnderREAD(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{})
	buf := make([]byte, 100)
	mr := must(s.pd.RegMR(buf, qp.AccessLocalWrite))(t)
	s.send(qp.SendWR{ID: 1, Opcode: qp.OpRead, SGEs: []qp.SGE{mr.SGE(0, 100)}})
	if err := mr.Close(); err != nil {
		t.Fatal(err)
	}
	s.want(1, qp.StatusWRFlushErr)
	s.wire.deliver(s.packet(rocev2.ReadRespOnly, bytes.Repeat([]byte{1}, 100), func(h *rocev2.Headers) { h.PSN = s.attr.SQPSN }))
	if !bytes.Equal(buf, make([]byte, 100)) {
		t.Error("a closed region was written")
	}
}

// Long READs of several peers are answered in turns, and a timer that is due meanwhile does not wait.
func TestLongREADsTakeTurns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const packets, turn = 3000, maxBatches * batchSize
		c := newCrowd(t, 5, leastOpen)
		other, readers := c.all[0], c.all[1:]
		c.post(other, 1) // and no answer comes
		var requests []link.Rx
		for _, s := range readers {
			long := must(s.pd.RegMR(make([]byte, packets*1024), qp.AccessRemoteRead))(t)
			requests = append(requests, s.readRequest(long.RKey(), long.Addr(), packets*1024))
		}
		c.wire.setOnSend(func([]link.Tx) error { time.Sleep(time.Millisecond); return nil })
		c.wire.deliver(requests...)
		time.Sleep(250 * time.Millisecond)
		sent, begun := map[*station]int{}, 0
		since := map[*station]int{} // all had their first turn
		again := false
		for i, p := range c.wire.take() {
			who := c.of[p.DestQP]
			if sent[who]++; who == other {
				again = i > 0
				continue
			}
			if sent[who] == turn {
				begun++
			}
			if begun < len(readers) {
				continue
			}
			since[who]++
			for _, s := range readers {
				if ahead := since[who] - since[s]; sent[s] < packets && ahead > 2*turn {
					t.Fatalf("%d packets to one, %d to another", since[who], since[s])
				}
			}
			if who == readers[0] && sent[who] == packets && !again {
				t.Error("a packet was not sent again after its timeout")
			}
		}
		for _, s := range readers {
			if sent[s] != packets {
				t.Errorf("%d packets, want %d", sent[s], packets)
			}
		}
	})
}

// What READs ask for counts as on its way: queue pairs that read take turns as those that send.
func TestCrowdReads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCrowd(t, 20, leastOpen)
		const size = 2 * burst
		for _, s := range c.all {
			s.send(qp.SendWR{ID: 1, Opcode: qp.OpRead, SGEs: []qp.SGE{s.mr.SGE(0, size*1024)}})
		}
		for done, round := 0, 0; done < len(c.all); round++ {
			time.Sleep(time.Microsecond)
			asked := 0
			for _, p := range c.wire.take() {
				if p.Opcode != rocev2.ReadRequest || p.Len() == 0 {
					t.Fatalf("sent %v", p.Opcode)
				}
				s, n := c.of[p.DestQP], int(p.RETH.Length/1024)
				asked += n
				for i := range n {
					s.wire.deliver(s.packet(rocev2.ReadRespMiddle, make([]byte, 1024), func(h *rocev2.Headers) { h.PSN = p.PSN.Add(i) }))
				}
				var wc [1]qp.WC
				if k, _ := s.cq.Poll(wc[:]); k == 1 {
					if wc[0].Status != qp.StatusSuccess {
						t.Fatalf("%+v", wc[0])
					}
					done++
				}
			}
			if asked == 0 || asked > leastOpen {
				t.Fatalf("round %d: %d packets of response asked for", round, asked)
			}
		}
		if n := c.dev.Counters()["tx_retransmits"]; n != 0 || c.dev.limiter.used != 0 {
			t.Errorf("%d asked for again, %d of the bound are used", n, c.dev.limiter.used)
		}
	})
}

// READ responses are packets with data to congestion control: they are marked, the one who gets
// them says so, and the one who sends them goes slower.
func TestReadResponsesAndCongestion(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWire()
		s := newStationOn(t, w, onLink(t, w, Options{CC: rc.CCParams{LineRate: 1e9}}), qp.Init{})
		s.up(peerAddr, peerQPN)
		s.send(qp.SendWR{ID: 1, Opcode: qp.OpRead, SGEs: []qp.SGE{s.mr.SGE(0, 8)}})
		if got := w.take(); len(got) != 1 || got[0].tos&3 != 0 {
			t.Errorf("request %+v", got)
		}
		p := s.packet(rocev2.ReadRespOnly, make([]byte, 8), func(h *rocev2.Headers) { h.PSN = s.attr.SQPSN })
		p.TOS = ecnCE
		w.deliver(p)
		s.want(1, qp.StatusSuccess)
		if got := w.take(); len(got) != 1 || got[0].Opcode != rocev2.CNP {
			t.Errorf("a marked response is answered by %+v", got)
		}
		w.deliver(s.packet(rocev2.CNP, nil, func(h *rocev2.Headers) { h.BECN = true }))
		w.deliver(s.readRequest(s.mr.RKey(), s.mr.Addr(), len(s.buf)))
		first := len(w.take())
		time.Sleep(time.Second)
		rest := w.take()
		if want := len(s.buf) / 1024; first == 0 || first > want/2 || first+len(rest) != want || rest[0].tos&3 != ecnECT0 {
			t.Errorf("%d packets at once and %d later, of %d", first, len(rest), want)
		}
	})
}
