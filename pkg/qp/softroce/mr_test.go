package softroce

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

func TestRegMR(t *testing.T) {
	s := newFresh(t, qp.Init{})
	buf := make([]byte, 100)
	m := must(s.pd.RegMR(buf, 0))(t)
	if &m.Bytes()[0] != &buf[0] || len(m.Bytes()) != 100 || m.LKey() == 0 || m.RKey() == 0 || m.Addr() == 0 {
		t.Errorf("region of %d bytes at %#x, keys %#x and %#x", len(m.Bytes()), m.Addr(), m.LKey(), m.RKey())
	}
	if got := m.SGE(10, 90); got != (qp.SGE{Addr: m.Addr() + 10, Length: 90, LKey: m.LKey()}) {
		t.Errorf("SGE %+v", got)
	}
	for _, bad := range [][2]int{{-1, 1}, {0, 101}, {100, 1}, {50, -1}, {101, 0}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("SGE(%d, %d) of 100 bytes did not panic", bad[0], bad[1])
				}
			}()
			m.SGE(bad[0], bad[1])
		}()
	}
	if _, err := s.pd.RegMR(nil, 0); !errors.Is(err, qp.ErrAttr) {
		t.Errorf("empty region: %v", err)
	}
	if _, err := s.pd.RegMR(buf, 0x10); !errors.Is(err, qp.ErrAttr) {
		t.Errorf("unknown access: %v", err)
	}
}

// A key is new each time, for as long as there are any.
func TestKeysDoNotComeBack(t *testing.T) {
	s := newFresh(t, qp.Init{})
	seen := map[uint32]bool{s.mr.RKey(): true}
	buf := make([]byte, 1)
	for range 64 << 8 {
		m := must(s.pd.RegMR(buf, 0))(t)
		if seen[m.RKey()] {
			t.Fatalf("key %#x again after %d others", m.RKey(), len(seen))
		}
		seen[m.RKey()] = true
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if s.dev.mrs.find(m.RKey()) != nil {
			t.Fatalf("key %#x still works", m.RKey())
		}
	}
	if len(s.dev.mrs.free) > 65 {
		t.Errorf("%d indices lie idle", len(s.dev.mrs.free))
	}
}

// Regions for requests of groups have keys between which switches change no source port, as long as there are any, and none soon again.
func TestPortKeys(t *testing.T) {
	s := newFresh(t, qp.Init{})
	pd := s.pd.(qp.Mapper)
	buf := make([]byte, 1)
	seen := map[uint32]bool{}
	most := 0
	for n := range 1 << 16 {
		if rocev2.PortKey(uint16(n)) >= 1<<28 {
			most++
		}
	}
	var all []qp.MR
	for n := range most + 2 {
		m := must(pd.RegMRAt(buf, 1<<40, 0))(t)
		ours := rocev2.PortKey(uint16(m.RKey())) == m.RKey()
		if seen[m.RKey()] || s.dev.mrs.find(m.RKey()) != m || n < most && !ours {
			t.Fatalf("key %d is %#x", n, m.RKey())
		}
		seen[m.RKey()] = true
		all = append(all, m)
	}
	for _, m := range all {
		if err := m.Close(); err != nil || s.dev.mrs.find(m.RKey()) != nil {
			t.Fatalf("key %#x: %v", m.RKey(), err)
		}
	}
	first := must(pd.RegMRAt(buf, 1<<40, 0))(t).RKey()
	must(pd.RegMRAt(buf, 1<<40, 0))(t)
	for range 1000 {
		m := must(pd.RegMRAt(buf, 1<<40, 0))(t)
		if m.RKey() == first || rocev2.PortKey(uint16(m.RKey())) != m.RKey() {
			t.Fatalf("key %#x", m.RKey())
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Work requests name memory of their own protection domain, inside regions,
// with the right access.
func TestLocalAccess(t *testing.T) {
	s := newStation(t, Options{}, qp.Init{MaxSGE: 2})
	reg := func(pd qp.PD, a qp.Access) qp.MR { return must(pd.RegMR(make([]byte, 100), a))(t) }
	readOnly, remote, foreign := reg(s.pd, 0), reg(s.pd, qp.AccessRemoteWrite), reg(must(s.dev.AllocPD())(t), qp.AccessLocalWrite)
	closed := reg(s.pd, qp.AccessLocalWrite)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	whole := s.mr.SGE(0, len(s.buf))
	shift := func(e qp.SGE, addr int, n int) qp.SGE {
		e.Addr, e.Length = e.Addr+uint64(addr), uint32(int(e.Length)+n)
		return e
	}
	for _, c := range []struct {
		name       string
		sges       []qp.SGE
		send, recv string // part of the error, "" for none
	}{
		{"none", nil, "", ""},
		{"the whole region", []qp.SGE{whole}, "", ""},
		{"the last byte", []qp.SGE{s.mr.SGE(len(s.buf)-1, 1)}, "", ""},
		{"none of a region's bytes", []qp.SGE{{Addr: 1, LKey: 0xbad}, whole}, "", ""}, // not looked at
		{"read only", []qp.SGE{readOnly.SGE(0, 100)}, "", "local write"},
		{"remote write implies local write", []qp.SGE{remote.SGE(0, 100)}, "", ""},
		{"one byte before", []qp.SGE{shift(whole, -1, 0)}, "not inside", "not inside"},
		{"one byte more", []qp.SGE{shift(whole, 0, 1)}, "not inside", "not inside"},
		{"one byte behind", []qp.SGE{shift(whole, len(s.buf), 1-len(s.buf))}, "not inside", "not inside"},
		{"to the end of the address space", []qp.SGE{shift(whole, 1, -1-len(s.buf))}, "not inside", "not inside"},
		{"second entry bad", []qp.SGE{whole, shift(whole, 0, 1)}, "entry 1", "entry 1"},
		{"another domain", []qp.SGE{foreign.SGE(0, 1)}, "protection domain", "protection domain"},
		{"closed region", []qp.SGE{closed.SGE(0, 1)}, "lkey", "lkey"},
		{"no region", []qp.SGE{{Addr: s.mr.Addr(), Length: 1, LKey: s.mr.LKey() ^ 1}}, "lkey", "lkey"},
		{"key beyond the table", []qp.SGE{{Addr: s.mr.Addr(), Length: 1, LKey: ^uint32(0)}}, "lkey", "lkey"},
		{"three entries", []qp.SGE{whole, whole, whole}, "allows 2", "allows 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for what, got := range map[string]struct {
				err  error
				want string
			}{
				"send":    {s.qp.PostSend(&qp.SendWR{Opcode: qp.OpSend, SGEs: c.sges}), c.send},
				"READ":    {s.qp.PostSend(&qp.SendWR{Opcode: qp.OpRead, SGEs: c.sges}), c.recv},
				"receive": {s.qp.PostRecv(&qp.RecvWR{SGEs: c.sges}), c.recv},
			} {
				switch {
				case got.want == "" && got.err != nil:
					t.Errorf("%s: %v", what, got.err)
				case got.want != "" && (!errors.Is(got.err, qp.ErrSGE) || !strings.Contains(got.err.Error(), got.want)):
					t.Errorf("%s: error %v, want one that says %q", what, got.err, got.want)
				}
			}
		})
	}
}

// A WRITE lands only where its key, the region's access, the queue pair's
// access and the range all allow. The refusal is a NAK and an event here.
func TestRemoteAccess(t *testing.T) {
	s := newFresh(t, qp.Init{})
	reg := func(pd qp.PD, a qp.Access) *MR { return must(pd.RegMR(make([]byte, 2000), a))(t).(*MR) }
	for _, c := range []struct {
		name string
		mr   *MR
		off  int
		n    int // of the message
		ok   bool
	}{
		{"all", reg(s.pd, qp.AccessRemoteWrite), 0, 2000, true},
		{"the last byte", reg(s.pd, qp.AccessRemoteWrite), 1999, 1, true},
		{"nothing, behind the end", reg(s.pd, qp.AccessRemoteWrite), 2001, 0, true}, // no memory, no check
		{"one byte before", reg(s.pd, qp.AccessRemoteWrite), -1, 10, false},
		{"one byte too many", reg(s.pd, qp.AccessRemoteWrite), 1991, 10, false},
		{"second packet outside", reg(s.pd, qp.AccessRemoteWrite), 100, 1901, false},
		{"behind the end", reg(s.pd, qp.AccessRemoteWrite), 2000, 1, false},
		{"around the address space", reg(s.pd, qp.AccessRemoteWrite), -2000, 4000, false},
		{"local only", reg(s.pd, qp.AccessLocalWrite), 0, 10, false},
		{"remote read only", reg(s.pd, qp.AccessLocalWrite|qp.AccessRemoteRead|qp.AccessRemoteAtomic), 0, 10, false},
		{"another domain", reg(must(s.dev.AllocPD())(t), qp.AccessRemoteWrite), 0, 10, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			modify(t, s.end, qp.StateReset, qp.MaskState)
			s.up(peerAddr, peerQPN)
			s.psn = s.attr.RQPSN
			data := make([]byte, c.n)
			fillPattern(data, 5)
			op, first := rocev2.WriteOnly, data
			if c.n > 1024 {
				op, first = rocev2.WriteFirst, data[:1024]
			}
			p := s.packet(op, first, func(h *rocev2.Headers) {
				h.RETH = rocev2.RETH{VA: c.mr.Addr() + uint64(c.off), RKey: c.mr.RKey(), Length: uint32(c.n)}
			})
			s.wire.deliver(p)
			if c.n > 1024 && c.ok {
				s.psn = s.psn.Add(1)
				s.request(rocev2.WriteLast, data[1024:])
			}
			if c.ok {
				if c.n > 0 && !bytes.Equal(c.mr.buf[c.off:c.off+c.n], data) {
					t.Error("the data did not arrive")
				}
				if st := s.qp.State(); st != qp.StateRTS {
					t.Errorf("state %v", st)
				}
				s.noEvent()
				s.wire.take()
				return
			}
			if got := s.wire.take(); len(got) != 1 || got[0].AETH.Syndrome != rocev2.NakRemoteAccess || got[0].PSN != s.psn {
				t.Errorf("answered by %+v", got)
			}
			if e := s.event(); e.Type != qp.EventQPAccessErr || e.QPN != s.qp.QPN() || e.Err == nil {
				t.Errorf("event %+v", e)
			}
			if st := s.qp.State(); st != qp.StateError {
				t.Errorf("state %v", st)
			}
			if !bytes.Equal(c.mr.buf, make([]byte, 2000)) {
				t.Error("the region has changed")
			}
		})
	}
}

// A key that was good is refused once the region is closed, between two devices.
func TestStaleRKey(t *testing.T) {
	a, b := pair(t, "", 4096)
	write := func(id uint64) {
		a.send(qp.SendWR{ID: id, Opcode: qp.OpWrite, SGEs: []qp.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	}
	write(1)
	a.want(1, qp.StatusSuccess)
	if err := b.mr.Close(); err != nil {
		t.Fatal(err)
	}
	write(2)
	a.want(2, qp.StatusRemAccessErr)
	if e := b.event(); e.Type != qp.EventQPAccessErr || e.QPN != b.qp.QPN() {
		t.Errorf("event %+v", e)
	}
	for _, e := range []*end{a, b} {
		if st := e.qp.State(); st != qp.StateError {
			t.Errorf("state %v", st)
		}
	}
}

// Closing a region under work requests brings their queue pair down, and no
// other.
func TestCloseRegionInUse(t *testing.T) {
	for name, post := range map[string]func(*station, qp.SGE){
		"send":    func(s *station, g qp.SGE) { s.send(qp.SendWR{ID: 1, Opcode: qp.OpSend, SGEs: []qp.SGE{g}}) },
		"receive": func(s *station, g qp.SGE) { s.recv(1, s.mr.SGE(0, 1), g) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire()
			d := onLink(t, w, Options{})
			s, other := newStationOn(t, w, d, qp.Init{}), newStationOn(t, w, d, qp.Init{})
			s.up(peerAddr, peerQPN)
			other.up(peerAddr, peerQPN)
			m := must(s.pd.RegMR(make([]byte, 10), qp.AccessLocalWrite))(t)
			unused := must(s.pd.RegMR(make([]byte, 10), qp.AccessLocalWrite))(t)
			post(s, m.SGE(9, 1))
			if err := unused.Close(); err != nil || s.qp.State() != qp.StateRTS {
				t.Fatalf("close of an unused region: %v, %v", err, s.qp.State())
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			s.want(1, qp.StatusWRFlushErr)
			if st := s.qp.State(); st != qp.StateError {
				t.Errorf("state %v", st)
			}
			if e := s.event(); e.Type != qp.EventQPFatal || e.QPN != s.qp.QPN() || !errors.Is(e.Err, qp.ErrSGE) {
				t.Errorf("event %+v", e)
			}
			other.works()
		})
	}
}

// A receive posted in INIT holds its region too.
func TestCloseRegionInUseEarly(t *testing.T) {
	s := newFresh(t, qp.Init{})
	s.in(qp.StateInit)
	s.recv(1, s.mr.SGE(0, 10))
	if err := s.mr.Close(); err != nil {
		t.Fatal(err)
	}
	s.want(1, qp.StatusWRFlushErr)
	if st := s.qp.State(); st != qp.StateError {
		t.Errorf("state %v", st)
	}
}

// A region that is closed while peers write to it is left alone from then on,
// which the race detector sees better than the comparison.
func TestCloseRegionUnderWrites(t *testing.T) {
	const writers = 4
	da, db := open(t, ""), open(t, "")
	var from, to [writers]*end
	to[0] = newEnd(t, db, 256<<10, qp.Init{})
	for i := range writers {
		from[i] = newEnd(t, da, 256<<10, qp.Init{})
		if i > 0 { // one domain
			to[i] = new(*to[0])
			to[i].qp = must(to[0].pd.CreateQP(qp.Init{SendCQ: to[0].cq, RecvCQ: to[0].cq}))(t)
		}
		connect(from[i], to[i])
	}
	mr, buf := to[0].mr, to[0].buf
	var wg sync.WaitGroup
	for i, e := range from {
		wg.Go(func() {
			for n := 0; ; n++ {
				fillPattern(e.buf[:4096], n*writers+i)
				wr := qp.SendWR{Opcode: qp.OpWrite, Flags: qp.FlagSignaled, SGEs: []qp.SGE{e.mr.SGE(0, len(buf))},
					RemoteAddr: mr.Addr(), RKey: mr.RKey()}
				if err := e.qp.PostSend(&wr); err != nil {
					t.Error(err)
					return
				}
				if wc := e.wc(); wc.Status != qp.StatusSuccess {
					if wc.Status != qp.StatusRemAccessErr {
						t.Errorf("status %v", wc.Status)
					}
					return
				}
			}
		})
	}
	until(t, "writes arrive", func() bool { return db.Counters()["rc_messages_received"] > 4*writers })
	if err := mr.Close(); err != nil {
		t.Fatal(err)
	}
	after := bytes.Clone(buf)
	wg.Wait()
	if !bytes.Equal(buf, after) {
		t.Error("the region changed after it was closed")
	}
}

// TestRegMRAt: a region is where its owner says, for peers and for its own SGEs; the memory
// itself stays where it is.
func TestRegMRAt(t *testing.T) {
	const at = 1 << 40
	a, b := pair(t, "", 100)
	buf := make([]byte, 64)
	m := must(b.pd.(qp.Mapper).RegMRAt(buf, at, qp.AccessRemoteWrite))(t)
	if m.Addr() != at || m.SGE(5, 9) != (qp.SGE{Addr: at + 5, Length: 9, LKey: m.LKey()}) {
		t.Errorf("region at %#x, SGE %+v", m.Addr(), m.SGE(5, 9))
	}
	copy(a.buf, "written")
	b.recv(2)
	a.send(qp.SendWR{ID: 1, Opcode: qp.OpWriteImm, RemoteAddr: at + 50, RKey: m.RKey(), SGEs: []qp.SGE{a.mr.SGE(0, 7)}, Flags: qp.FlagSignaled})
	a.want(1, qp.StatusSuccess)
	if b.want(2, qp.StatusSuccess); string(buf[50:57]) != "written" {
		t.Errorf("%q", buf)
	}
	if mr := m.(*MR); !mr.overlaps(buf[63:]) || mr.overlaps(a.buf) {
		t.Error("the region is taken to lie where peers address it")
	}
	for _, va := range []uint64{^uint64(0) - 62, ^uint64(0)} {
		if _, err := b.pd.(qp.Mapper).RegMRAt(buf, va, 0); !errors.Is(err, qp.ErrAttr) {
			t.Errorf("a region of 64 bytes at %#x: %v", va, err)
		}
	}
	for options, want := range map[string]bool{"rx=udp": false, "rx=raw": true} {
		if want && os.Geteuid() != 0 {
			continue
		}
		if d := open(t, options); d.Attr().SeesIdentification != want {
			t.Errorf("%s: sees the identification: %t", options, !want)
		}
	}
}
