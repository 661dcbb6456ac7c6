package qp

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// verbsTable is IBTA 1.2.1 table 91 for RC, written out as the manual page of
// ibv_modify_qp does: from, to, what it needs, what it may have besides. It is
// kept apart from the map in attr.go on purpose.
const verbsTable = `
RESET INIT | State Access | -
INIT  INIT | State | Access
INIT  RTR  | State DestAddr DestQPN PathMTU RQPSN MinRNRTimer | Access DSCP MaxDestRdAtomic
RTR   RTS  | State SQPSN Timeout RetryCnt RNRRetry | Access MinRNRTimer DSCP MaxRdAtomic
RTS   RTS  | State | Access MinRNRTimer
RTS   SQD  | State | -
SQD   SQD  | State | Access MinRNRTimer Timeout RetryCnt RNRRetry DSCP
SQD   RTS  | State | Access MinRNRTimer
`

var stateNames = map[string]State{"RESET": StateReset, "INIT": StateInit, "RTR": StateRTR, "RTS": StateRTS,
	"SQD": StateSQD, "SQE": StateSQE, "ERR": StateError}

func parseMask(t *testing.T, fields string) AttrMask {
	t.Helper()
	var m AttrMask
	for _, f := range strings.Fields(fields) {
		if f == "-" {
			continue
		}
		i := strings.Index(","+strings.Join(maskNames[:], ",")+",", ","+f+",")
		if i < 0 {
			t.Fatalf("no attribute %q", f)
		}
		m |= 1 << strings.Count(strings.Join(maskNames[:], ",")[:i], ",")
	}
	return m
}

func parseTable(t *testing.T) map[[2]State]transition {
	t.Helper()
	table := map[[2]State]transition{}
	for line := range strings.Lines(strings.TrimSpace(verbsTable)) {
		cols := strings.Split(line, "|")
		from, to, _ := strings.Cut(cols[0], " ")
		key := [2]State{stateNames[from], stateNames[strings.TrimSpace(to)]}
		table[key] = transition{parseMask(t, cols[1]), parseMask(t, cols[2])}
	}
	if len(table) != 8 {
		t.Fatalf("read %d transitions of the table, want 8", len(table))
	}
	return table
}

// validAttr has a legal value for every attribute.
func validAttr(next State) Attr {
	return Attr{
		State: next, Access: AccessRemoteWrite, DestAddr: netip.MustParseAddr("10.0.0.2"), DestQPN: 17,
		PathMTU: 1024, SQPSN: 0xfffffe, RQPSN: 5, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, DSCP: 26, MaxRdAtomic: 4, MaxDestRdAtomic: 16,
	}
}

// Every pair of states with every one of the 16384 masks: legal exactly if the
// table says so, and otherwise refused with the right sentinel.
func TestCheckModifyExhaustive(t *testing.T) {
	table := parseTable(t)
	const all = AttrMask(1<<len(maskNames)) - 1
	accepted := 0
	for cur := StateReset; cur <= StateError; cur++ {
		for next := StateReset; next <= StateError; next++ {
			attr := validAttr(next)
			for mask := range all + 1 {
				to := next
				if mask&MaskState == 0 {
					if next != cur {
						continue // attr.State does not count then
					}
					to = cur
				}
				var want error
				tr, ok := table[[2]State{cur, to}]
				switch {
				case to == StateReset || to == StateError:
					if mask&^MaskState != 0 {
						want = ErrAttr
					}
				case !ok:
					want = ErrState
				case cur == to: // naming the state that it has is optional
					if mask&^(tr.required|tr.optional) != 0 {
						want = ErrAttr
					}
				case mask&tr.required != tr.required || mask&^(tr.required|tr.optional) != 0:
					want = ErrAttr
				}
				err := CheckModify(cur, &attr, mask)
				if want == nil && err != nil || !errors.Is(err, want) {
					t.Fatalf("%v → %v with %v: %v, want %v", cur, to, mask, err, want)
				}
				if err == nil {
					accepted++
				}
			}
		}
	}
	if accepted == 0 {
		t.Fatal("nothing was accepted")
	}
}

// The masks offered for the usual way up do lead up, and each of their
// attributes is needed.
func TestCheckModifyWayUp(t *testing.T) {
	for _, c := range []struct {
		cur, next State
		mask      AttrMask
	}{{StateReset, StateInit, MaskInit}, {StateInit, StateRTR, MaskRTR}, {StateRTR, StateRTS, MaskRTS}} {
		attr := validAttr(c.next)
		if err := CheckModify(c.cur, &attr, c.mask); err != nil {
			t.Errorf("%v → %v with %v: %v", c.cur, c.next, c.mask, err)
		}
		for bit := MaskAccess; bit <= MaskMaxDestRdAtomic; bit <<= 1 {
			if c.mask&bit == 0 {
				continue
			}
			err := CheckModify(c.cur, &attr, c.mask&^bit)
			if !errors.Is(err, ErrAttr) || !strings.Contains(err.Error(), "needs "+bit.String()) {
				t.Errorf("%v → %v without %v: %v", c.cur, c.next, bit, err)
			}
		}
	}
}

func TestCheckModifyNamesTheFault(t *testing.T) {
	attr := validAttr(StateRTS)
	for _, c := range []struct {
		cur  State
		mask AttrMask
		is   error
		says string
	}{
		{StateReset, MaskState, ErrState, "no transition RESET → RTS"},
		{StateSQE, MaskState, ErrState, "no transition SQE → RTS"},
		{StateRTS, MaskDestQPN | MaskPathMTU, ErrAttr, "does not allow DestQPN,PathMTU"},
		{StateRTR, MaskRTS | MaskDestQPN, ErrAttr, "does not allow DestQPN"},
		{StateRTS, 1 << 14, ErrAttr, "0x4000"},
		{State(99), MaskAccess, ErrState, "UNKNOWN"},
	} {
		err := CheckModify(c.cur, &attr, c.mask)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v with %v: %v, want %q", c.cur, c.mask, err, c.says)
		}
	}
}

func TestCheckModifyRanges(t *testing.T) {
	type set func(*Attr)
	addr := func(s string) set { return func(a *Attr) { a.DestAddr, _ = netip.ParseAddr(s) } }
	for _, c := range []struct {
		name      string
		cur, next State
		mask      AttrMask
		good, bad []set
	}{
		{"Access", StateReset, StateInit, MaskInit,
			[]set{func(a *Attr) { a.Access = 0 }, func(a *Attr) { a.Access = 15 }},
			[]set{func(a *Attr) { a.Access = 16 }, func(a *Attr) { a.Access = 255 }}},
		{"DestAddr", StateInit, StateRTR, MaskRTR,
			[]set{addr("10.0.0.1"), addr("255.0.0.1"), addr("127.0.0.1")},
			[]set{addr(""), addr("0.0.0.0"), addr("224.0.0.1"), addr("::1"), addr("::ffff:10.0.0.1")}},
		{"DestQPN", StateInit, StateRTR, MaskRTR,
			[]set{func(a *Attr) { a.DestQPN = 2 }, func(a *Attr) { a.DestQPN = 0xffffff }},
			[]set{func(a *Attr) { a.DestQPN = 0 }, func(a *Attr) { a.DestQPN = 1 }, func(a *Attr) { a.DestQPN = 1 << 24 }}},
		{"PathMTU", StateInit, StateRTR, MaskRTR,
			[]set{func(a *Attr) { a.PathMTU = 256 }, func(a *Attr) { a.PathMTU = 512 }, func(a *Attr) { a.PathMTU = 2048 },
				func(a *Attr) { a.PathMTU = 4096 }},
			[]set{func(a *Attr) { a.PathMTU = 0 }, func(a *Attr) { a.PathMTU = -256 }, func(a *Attr) { a.PathMTU = 1500 },
				func(a *Attr) { a.PathMTU = 8192 }}},
		{"RQPSN", StateInit, StateRTR, MaskRTR,
			[]set{func(a *Attr) { a.RQPSN = 0 }, func(a *Attr) { a.RQPSN = 0xffffff }},
			[]set{func(a *Attr) { a.RQPSN = 1 << 24 }}},
		{"MinRNRTimer", StateInit, StateRTR, MaskRTR,
			[]set{func(a *Attr) { a.MinRNRTimer = 0 }, func(a *Attr) { a.MinRNRTimer = 31 }},
			[]set{func(a *Attr) { a.MinRNRTimer = 32 }}},
		{"DSCP", StateInit, StateRTR, MaskRTR | MaskDSCP,
			[]set{func(a *Attr) { a.DSCP = 63 }}, []set{func(a *Attr) { a.DSCP = 64 }}},
		{"MaxDestRdAtomic", StateInit, StateRTR, MaskRTR | MaskMaxDestRdAtomic,
			[]set{func(a *Attr) { a.MaxDestRdAtomic = 0 }, func(a *Attr) { a.MaxDestRdAtomic = 16 }},
			[]set{func(a *Attr) { a.MaxDestRdAtomic = 17 }}},
		{"MaxRdAtomic", StateRTR, StateRTS, MaskRTS | MaskMaxRdAtomic,
			[]set{func(a *Attr) { a.MaxRdAtomic = 0 }, func(a *Attr) { a.MaxRdAtomic = 16 }},
			[]set{func(a *Attr) { a.MaxRdAtomic = 17 }}},
		{"SQPSN", StateRTR, StateRTS, MaskRTS,
			[]set{func(a *Attr) { a.SQPSN = 0 }, func(a *Attr) { a.SQPSN = 0xffffff }},
			[]set{func(a *Attr) { a.SQPSN = 1 << 24 }}},
		{"Timeout", StateRTR, StateRTS, MaskRTS,
			[]set{func(a *Attr) { a.Timeout = 0 }, func(a *Attr) { a.Timeout = 31 }}, []set{func(a *Attr) { a.Timeout = 32 }}},
		{"RetryCnt", StateRTR, StateRTS, MaskRTS,
			[]set{func(a *Attr) { a.RetryCnt = 0 }}, []set{func(a *Attr) { a.RetryCnt = 8 }}},
		{"RNRRetry", StateRTR, StateRTS, MaskRTS,
			[]set{func(a *Attr) { a.RNRRetry = 0 }}, []set{func(a *Attr) { a.RNRRetry = 8 }}},
	} {
		for i, f := range c.good {
			attr := validAttr(c.next)
			f(&attr)
			if err := CheckModify(c.cur, &attr, c.mask); err != nil {
				t.Errorf("%s, good value %d: %v", c.name, i, err)
			}
		}
		for i, f := range c.bad {
			attr := validAttr(c.next)
			f(&attr)
			err := CheckModify(c.cur, &attr, c.mask)
			if !errors.Is(err, ErrAttr) || !strings.Contains(err.Error(), c.name+": ") {
				t.Errorf("%s, bad value %d: %v", c.name, i, err)
			}
			// A value that the mask does not name is not looked at.
			attr.State = StateError
			if err := CheckModify(c.cur, &attr, MaskState); err != nil {
				t.Errorf("%s, bad value %d that the mask does not name: %v", c.name, i, err)
			}
		}
	}
}

// FuzzCheckModify: whatever comes in, an error is one of the two sentinels and
// what passes is in range.
func FuzzCheckModify(f *testing.F) {
	f.Add(uint8(StateReset), uint16(MaskInit), uint8(StateInit), uint8(2), []byte{10, 0, 0, 1}, uint32(17), 1024, uint32(1), uint32(2), uint64(0))
	f.Add(uint8(StateInit), uint16(MaskRTR), uint8(StateRTR), uint8(2), []byte{10, 0, 0, 1}, uint32(17), 1024, uint32(1), uint32(2), uint64(0x0c_00_00_00_00))
	f.Add(uint8(StateRTR), uint16(MaskRTS), uint8(StateRTS), uint8(0), []byte{}, uint32(0), 0, uint32(1<<24), uint32(0), uint64(0x07_07_0e))
	f.Fuzz(func(t *testing.T, cur uint8, mask uint16, next, access uint8, addr []byte, qpn uint32, mtu int, sq, rq uint32, small uint64) {
		a := Attr{State: State(next), Access: Access(access), DestQPN: rocev2.QPN(qpn), PathMTU: mtu,
			SQPSN: rocev2.PSN(sq), RQPSN: rocev2.PSN(rq), Timeout: uint8(small), RetryCnt: uint8(small >> 8),
			RNRRetry: uint8(small >> 16), MinRNRTimer: uint8(small >> 32), DSCP: uint8(small >> 40),
			MaxRdAtomic: uint8(small >> 48), MaxDestRdAtomic: uint8(small >> 56)}
		a.DestAddr, _ = netip.AddrFromSlice(addr)
		m := AttrMask(mask)
		err := CheckModify(State(cur), &a, m)
		if err != nil {
			if !errors.Is(err, ErrState) && !errors.Is(err, ErrAttr) {
				t.Fatalf("%v wraps neither ErrState nor ErrAttr", err)
			}
			return
		}
		to := State(cur)
		if m&MaskState != 0 {
			to = a.State
		}
		if to == StateSQE && cur != uint8(StateSQE) || to > StateError && m != 0 {
			t.Fatalf("%v → %v accepted", State(cur), to)
		}
		for _, c := range []struct {
			bit AttrMask
			ok  bool
		}{
			{MaskAccess, a.Access < 16}, {MaskDestAddr, a.DestAddr.Is4()}, {MaskDestQPN, qpn >= 2 && qpn < 1<<24},
			{MaskPathMTU, mtu >= 256 && mtu <= 4096 && mtu&(mtu-1) == 0}, {MaskSQPSN, sq < 1<<24}, {MaskRQPSN, rq < 1<<24},
			{MaskTimeout, a.Timeout < 32}, {MaskRetryCnt, a.RetryCnt < 8}, {MaskRNRRetry, a.RNRRetry < 8},
			{MaskMinRNRTimer, a.MinRNRTimer < 32}, {MaskDSCP, a.DSCP < 64},
			{MaskMaxRdAtomic, a.MaxRdAtomic <= 16}, {MaskMaxDestRdAtomic, a.MaxDestRdAtomic <= 16},
		} {
			if m&c.bit != 0 && !c.ok {
				t.Fatalf("%v → %v: %v accepted out of range: %+v", State(cur), to, c.bit, a)
			}
		}
	})
}

func TestAckTimeout(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: 0, 1: 8192 * time.Nanosecond, 14: 67108864 * time.Nanosecond, 31: 8796093022208 * time.Nanosecond,
	} {
		if got := AckTimeout(code); got != want {
			t.Errorf("AckTimeout(%d) = %v, want %v", code, got, want)
		}
	}
}

// A full packet of the MTU found has to fit, and one of the next larger not.
func TestMTUFor(t *testing.T) {
	for netdev, want := range map[int]int{
		-1: 0, 0: 0, 64: 0, 319: 0, 320: 256, 576: 512, 1280: 1024, 1500: 1024, 2111: 1024, 2112: 2048, 4096: 2048,
		4159: 2048, 4160: 4096, 4200: 4096, 9000: 4096, 65535: 4096,
	} {
		got := MTUFor(netdev)
		if got != want {
			t.Errorf("MTUFor(%d) = %d, want %d", netdev, got, want)
		}
		if got != 0 && !ValidMTU(got) {
			t.Errorf("MTUFor(%d) = %d is not a path MTU", netdev, got)
		}
	}
	for n := -1; n < 10000; n++ {
		if want := n == 256 || n == 512 || n == 1024 || n == 2048 || n == 4096; ValidMTU(n) != want {
			t.Errorf("ValidMTU(%d) = %v", n, !want)
		}
	}
}

func TestStateAndMaskNames(t *testing.T) {
	for name, s := range stateNames {
		if s.String() != name {
			t.Errorf("State %d is %q, want %q", s, s, name)
		}
	}
	if got := State(7).String(); got != "UNKNOWN" {
		t.Errorf("State(7) is %q", got)
	}
	for m, want := range map[AttrMask]string{
		0: "", MaskState: "State", MaskDSCP: "DSCP", MaskInit: "State,Access",
		MaskRTS: "State,SQPSN,Timeout,RetryCnt,RNRRetry", MaskState | 0xc000: "State,0xc000",
	} {
		if got := m.String(); got != want {
			t.Errorf("mask %#x is %q, want %q", uint16(m), got, want)
		}
	}
}

func TestMergeCopiesWhatTheMaskNames(t *testing.T) {
	from := Attr{State: 3, Access: 1, DestAddr: netip.MustParseAddr("10.0.0.1"), DestQPN: 2, PathMTU: 256,
		SQPSN: 3, RQPSN: 4, Timeout: 5, RetryCnt: 6, RNRRetry: 7, MinRNRTimer: 8, DSCP: 9, MaxRdAtomic: 10, MaxDestRdAtomic: 11}
	var all Attr
	for bit := MaskState; bit <= MaskMaxDestRdAtomic; bit <<= 1 {
		var one Attr
		one.Merge(&from, bit)
		if one == (Attr{}) {
			t.Errorf("%v was not copied", bit)
		}
		all.Merge(&from, bit)
		if bit < MaskMaxDestRdAtomic && all == from {
			t.Errorf("everything is there after %v", bit)
		}
	}
	if all != from {
		t.Errorf("got %+v, want %+v", all, from)
	}
}
