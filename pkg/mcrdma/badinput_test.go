package mcrdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// wants checks an error.
func wants(t *testing.T, what string, err, want error, text string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v; expected %q and %q in it", what, err, want, text)
	}
}

// TestStarting: Dial waits for a daemon, and Create for receivers, that are still starting.
func TestStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ds := newWorld(t, 2)
		late := func(f func()) { time.AfterFunc(100*time.Millisecond, f) }
		ds[0].stop()
		late(ds[0].start)
		c, err := Dial(t.Context(), ds[0].options())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		receiver := ds[1].client()
		defer receiver.Close()
		group := GroupConfig{Service: "late", Receivers: []string{ds[1].address}}
		_, err = c.Create(t.Context(), group)
		wants(t, "without Wait", err, &Error{Reason: mcrdmav1.Reason_NO_SERVICE}, "")
		listening := make(chan error, 1)
		late(func() {
			_, err := receiver.Listen(t.Context(), ListenConfig{Service: "late", Accept: func(*Request) (*Grant, error) { return &Grant{}, nil }})
			listening <- err
		})
		group.Wait = 20 * time.Second
		g, err := c.Create(t.Context(), group)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-listening, g.Close(t.Context())); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		group.Service = "never"
		_, err = c.Create(ctx, group)
		wants(t, "until the context ends", err, context.DeadlineExceeded, "")
		wants(t, "until the context ends", err, &Error{Reason: mcrdmav1.Reason_NO_SERVICE}, "")
		if strings.Contains(err.Error(), "deadline") {
			t.Errorf("the text is also the context's: %v", err)
		}
	})
}

func TestDialErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ds := newWorld(t, 2)
		ctx := t.Context()
		_, err := Dial(ctx, Options{Socket: ds[0].socket + "x", Wait: -1})
		wants(t, "no daemon", err, ErrDaemon, ds[0].socket+"x")
		wants(t, "no daemon", err, ErrDaemon, "cmd-daemon run")
		begun := time.Now()
		_, err = Dial(ctx, Options{Socket: filepath.Join(t.TempDir(), "none", "daemon.sock")})
		wants(t, "no directory", err, ErrDaemon, "there is no directory")
		_, err = Dial(ctx, Options{Socket: "badinput_test.go"})
		wants(t, "a file", err, ErrInvalid, "it is not a socket")
		_, err = Dial(ctx, Options{Socket: "/" + strings.Repeat("x", 200)})
		wants(t, "a long name", err, ErrInvalid, "invalid argument")
		if took := time.Since(begun); took > defaultWait/2 {
			t.Errorf("it waited %v where no daemon can be expected", took)
		}
		ds[0].version = 2
		_, err = Dial(ctx, ds[0].options())
		wants(t, "version", err, ErrVersion, "version 2")
		ds[0].version = protocolVersion
		dev, err := qp.Open("memory:" + ds[1].address)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		o := ds[0].options()
		o.Device = dev
		_, err = Dial(ctx, o)
		wants(t, "another device", err, ErrInvalid, ds[1].address)
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		_, err = Dial(ctx, ds[0].options())
		wants(t, "context", err, context.Canceled, "")
		t.Setenv("MCRDMA_SOCKET", ds[0].socket)
		o.Socket, o.Device = "", nil
		c, err := Dial(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if c.Host() != "host-"+ds[0].address || c.Address() != ds[0].address || c.Device() == nil {
			t.Error(c.Host(), c.Address())
		}
		if err := errors.Join(c.Close(), c.Close()); err != nil {
			t.Error(err)
		}
		_, err = c.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{"x"}})
		wants(t, "create after Close", err, ErrClosed, "")
		_, err = c.Listen(t.Context(), ListenConfig{Service: "s", Accept: func(*Request) (*Grant, error) { return nil, nil }})
		wants(t, "listen after Close", err, ErrClosed, "")
		_, err = c.Alloc(1)
		wants(t, "memory after Close", err, ErrClosed, "")
	})
}

func TestCreateErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 3)
		src := ds[0].client()
		deny := ds[1].client()
		mem, err := deny.Alloc(100)
		if err != nil {
			t.Fatal(err)
		}
		var grant *Grant
		var refusal error
		if _, err = deny.Listen(t.Context(), ListenConfig{Service: "s", Accept: func(*Request) (*Grant, error) { return grant, refusal }}); err != nil {
			t.Fatal(err)
		}
		ds[2].receiver(100, 0)
		to := []string{ds[2].address, ds[1].address}
		good := GroupConfig{Service: "s", Receivers: to, Regions: []Region{{"r", 100}}}
		change := func(f func(*GroupConfig)) GroupConfig {
			c := good
			f(&c)
			return c
		}
		for name, c := range map[string]struct {
			cfg  GroupConfig
			want error
			text string
		}{
			"no service name":  {change(func(c *GroupConfig) { c.Service = "" }), ErrInvalid, "Service"},
			"no receivers":     {change(func(c *GroupConfig) { c.Receivers = nil }), ErrInvalid, "Receivers"},
			"mode":             {change(func(c *GroupConfig) { c.Mode = 3 }), ErrInvalid, "mode 3"},
			"min size":         {change(func(c *GroupConfig) { c.MinSize = -1 }), ErrInvalid, "MinSize"},
			"large min size":   {change(func(c *GroupConfig) { c.MinSize = 1<<32 + 1 }), ErrInvalid, "MinSize"},
			"DSCP":             {change(func(c *GroupConfig) { c.DSCP = 64 }), ErrInvalid, "DSCP"},
			"MTU":              {change(func(c *GroupConfig) { c.MTU = 1500 }), ErrInvalid, "MTU"},
			"depth":            {change(func(c *GroupConfig) { c.Depth = MaxDepth + 1 }), ErrInvalid, "Depth"},
			"negative depth":   {change(func(c *GroupConfig) { c.Depth = -1 }), ErrInvalid, "Depth"},
			"size":             {change(func(c *GroupConfig) { c.TypicalSize = -1 }), ErrInvalid, "TypicalSize"},
			"CNP gap":          {change(func(c *GroupConfig) { c.CNPGap = -1 }), ErrInvalid, "CNPGap"},
			"wait":             {change(func(c *GroupConfig) { c.Wait = -1 }), ErrInvalid, "Wait -1ns"},
			"transport":        {change(func(c *GroupConfig) { c.Transport = "carrier pigeon" }), ErrInvalid, "pigeon"},
			"algorithm":        {change(func(c *GroupConfig) { c.Algorithm = "none" }), ErrInvalid, "none"},
			"empty region":     {change(func(c *GroupConfig) { c.Regions = []Region{{"r", 0}} }), ErrInvalid, "empty"},
			"regions":          {change(func(c *GroupConfig) { c.Regions = make([]Region, 1<<16+1) }), ErrInvalid, "Regions"},
			"service's bytes":  {change(func(c *GroupConfig) { c.Service = "s\xff" }), ErrInvalid, `Service "s\xff" is not UTF-8`},
			"receiver's bytes": {change(func(c *GroupConfig) { c.Receivers = []string{"h\xc3"} }), ErrInvalid, `receiver "h\xc3" is not UTF-8`},
			"region's bytes":   {change(func(c *GroupConfig) { c.Regions = []Region{{"\x80", 1}} }), ErrInvalid, `region "\x80" is not UTF-8`},
			"no host":          {change(func(c *GroupConfig) { c.Receivers = []string{ds[2].address, "1.2.3.4"} }), &Error{Reason: mcrdmav1.Reason_NO_SUCH_HOST}, "1.2.3.4"},
			"no service":       {change(func(c *GroupConfig) { c.Service = "other" }), &Error{Reason: mcrdmav1.Reason_NO_SERVICE}, "other"},
		} {
			_, err := src.Create(t.Context(), c.cfg)
			wants(t, name, err, c.want, c.text)
		}
		for _, n := range []int{-1, 0, maxAlloc + 1, math.MaxInt} {
			_, err := src.Alloc(n)
			wants(t, "memory", err, ErrInvalid, fmt.Sprint(n))
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := src.Create(gone, good); !errors.Is(err, context.Canceled) || errors.Is(err, ErrDaemon) {
			t.Errorf("with a context that was canceled: %v", err)
		}
		refusal = errors.New("I don't like you")
		_, err = src.Create(t.Context(), good)
		wants(t, "policy", err, ErrDenied, "don't like")
		refusal = errors.New("I don't like \xff")
		_, err = src.Create(t.Context(), good)
		wants(t, "policy that is not UTF-8", err, ErrDenied, "I don't like \ufffd")
		refusal = nil
		_, bad := deny.Listen(t.Context(), ListenConfig{Service: "\xff", Accept: func(*Request) (*Grant, error) { return grant, refusal }})
		wants(t, "listen", bad, ErrInvalid, `Service "\xff" is not UTF-8`)
		for name, g := range map[string]*Grant{
			"no grant":     nil,
			"no region":    {},
			"many regions": {Regions: []Piece{mem.All(), mem.All()}},
			"short":        {Regions: []Piece{mem.Slice(0, 99)}},
			"zero":         {Regions: []Piece{{}}},
			"receives":     {Regions: []Piece{mem.All()}, Receives: make([]Piece, MaxReceives+1)},
		} {
			grant = g
			_, err := src.Create(t.Context(), good)
			wants(t, name, err, ErrInvalid, "")
		}
		var remote *Error
		if !errors.As(err, &remote) || remote.Reason != mcrdmav1.Reason_DENIED || remote.Host != "somewhere" {
			t.Errorf("%#v", remote)
		}
		// Nothing is left behind: not with the daemons, nor in the applications.
		w.mu.Lock()
		left := len(w.groups)
		w.mu.Unlock()
		if left > 0 {
			t.Errorf("%d groups", left)
		}
		eventually(t, "no memory is in use", func() bool { return mem.Close() == nil })
		eventually(t, "no members", func() bool {
			deny.mu.Lock()
			defer deny.mu.Unlock()
			return len(deny.members) == 0
		})
	})
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// TestMTU: a receiver whose device takes less says so.
func TestMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ds := newWorld(t, 2)
		src := ds[0].client()
		ds[1].receiver(100, 0)
		g := &fakeGroup{id: &mcrdmav1.GroupID{Source: ds[0].address, Number: 7}, source: ds[0], req: &mcrdmav1.CreateGroupRequest{Service: "s",
			Regions: []*mcrdmav1.RegionSpec{{Length: 100}}}, regions: []*mcrdmav1.RegionSpec{{Length: 100}}}
		mtu := src.Device().Attr().ActiveMTU
		_, err := w.prepare(t.Context(), g, ds[1], &mcrdmav1.Connection{Address: ds[0].address, Qpn: 0x800000, Psn: 1, Mtu: uint32(2 * mtu)}, 1)
		wants(t, "MTU", fromStatus(err), &Error{Reason: mcrdmav1.Reason_MTU}, "host-"+ds[1].address)
	})
}

func TestSubmitErrors(t *testing.T) {
	onPaths(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		m := r.mem
		wants(t, "behind the end", r.g.Write(ctx, At{0, regionSize - 9}, m.Slice(0, 10)), ErrInvalid, "region of 1048576")
		wants(t, "overflow", r.g.Write(ctx, At{0, math.MaxUint64}, m.Slice(0, 10)), ErrInvalid, "")
		wants(t, "region", r.g.WriteImm(ctx, At{1, 0}, 0, m.Slice(0, 10)), ErrInvalid, "region 1")
		wants(t, "negative region", r.g.Write(ctx, At{-1, 0}, m.Slice(0, 10)), ErrInvalid, "region -1")
		wants(t, "pieces", r.g.Send(ctx, make([]Piece, MaxPieces+1)...), ErrInvalid, "17")
		wants(t, "submitted pieces", r.g.Submit(ctx, &Op{Kind: OpSend, Pieces: make([]Piece, MaxPieces+1), Done: func(*Op) {}}), ErrInvalid, "17")
		wants(t, "another client's memory", r.g.Write(ctx, At{}, r.rs[0].mem.Slice(0, 1)), ErrInvalid, "another Client")
		wants(t, "kind", r.g.Submit(ctx, &Op{Kind: 5, Done: func(*Op) {}}), ErrInvalid, "kind 5")
		wants(t, "no Done", r.g.Submit(ctx, &Op{}), ErrInvalid, "Done")
		closed, err := r.c.Alloc(10)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(closed.Close(), closed.Close()); err != nil {
			t.Fatal(err)
		}
		wants(t, "closed memory", r.g.Write(ctx, At{}, m.Slice(0, 1), closed.All()), ErrClosed, "memory")
		gone, cancel := context.WithCancel(ctx)
		cancel()
		wants(t, "context", r.g.Write(gone, At{}, m.Slice(0, 1)), context.Canceled, "")
		wants(t, "region's memory", r.rs[0].mem.Close(), ErrBusy, "")
		// All that goes on all the same, and holds no memory.
		if err := r.g.Write(ctx, At{0, regionSize - 10}, m.Slice(regionSize-10, 10)); err != nil {
			t.Fatal(err)
		}
		r.same(regionSize-10, 10)
		if m.users != 0 {
			t.Errorf("the memory has %d users", m.users)
		}
		if got := r.g.Info().Stats.Operations; got != 1 {
			t.Errorf("%d operations", got)
		}
		for range MaxReceives {
			if err := r.rs[0].m.PostRecv(Piece{}); err != nil {
				t.Fatal(err)
			}
		}
		wants(t, "receives", r.rs[0].m.PostRecv(Piece{}), ErrLimit, "1024")
		wants(t, "another client's receive", r.rs[0].m.PostRecv(m.Slice(0, 1)), ErrInvalid, "another Client")
	})
}

func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ds := newWorld(t, 1)
		c := ds[0].client()
		_, err := c.Register(nil)
		wants(t, "nothing", err, ErrInvalid, "empty")
		_, err = c.Alloc(0)
		wants(t, "nothing", err, ErrInvalid, "0 bytes")
		m, err := c.Register(make([]byte, 100, 200)) // what lies behind is not registered
		if err != nil {
			t.Fatal(err)
		}
		p := m.Slice(10, 50).Slice(5, 20)
		if p.Len() != 20 || &p.Bytes()[0] != &m.Bytes()[15] || cap(p.Bytes()) != 20 || m.All().Len() != 100 || (Piece{}).Bytes() != nil {
			t.Error(p)
		}
		for name, f := range map[string]func(){
			"behind":   func() { m.Slice(90, 11) },
			"before":   func() { m.Slice(-1, 5) },
			"negative": func() { m.Slice(5, -1) },
			"piece":    func() { p.Slice(10, 11) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: no panic", name)
					}
				}()
				f()
			}()
		}
	})
}

func TestModes(t *testing.T) {
	for m := range Mode(3) {
		text, err := m.MarshalText()
		var back Mode
		if err != nil || back.UnmarshalText(text) != nil || back != m || m.String() != string(text) {
			t.Errorf("%v: %q, %v", m, text, err)
		}
	}
	if _, err := Mode(3).MarshalText(); !errors.Is(err, ErrInvalid) || Mode(3).String() != "mode 3" {
		t.Error(err)
	}
	if err := new(Mode).UnmarshalText([]byte("maybe")); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	e := Event{Type: EventReformed, Before: PathSwitch, After: PathRelay, Text: "why"}
	if s := e.String(); s != "reformed switch → relay: why" {
		t.Error(s)
	}
	e = Event{Type: EventRemoved, Address: "a", Host: "h"}
	if s := e.String(); s != "removed a (h)" || EventType(0).String() != "event 0" || EventType(99).String() != "event 99" || Path(0).String() != "none" {
		t.Error(s)
	}
}

// TestGrantLarger: of a larger grant, the sender gets only what it asked for.
func TestGrantLarger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ds := newWorld(t, 2)
		src := ds[0].client()
		r := ds[1].receiver(200, 0)
		g, err := src.Create(t.Context(), GroupConfig{Service: "s", Receivers: []string{ds[1].address}, Regions: []Region{{"r", 100}}})
		if err != nil {
			t.Fatal(err)
		}
		m := r.accept()
		if n := len(m.Region(0)); n != 100 {
			t.Errorf("the region has %d bytes", n)
		}
		m.mu.Lock()
		registered := len(m.regions[0].mr.Bytes())
		m.mu.Unlock()
		if registered != 100 {
			t.Errorf("%d bytes can be written from outside", registered)
		}
		mem, err := src.Alloc(200)
		if err != nil {
			t.Fatal(err)
		}
		wants(t, "behind the region", g.Write(t.Context(), At{0, 1}, mem.Slice(0, 100)), ErrInvalid, "")
	})
}

// TestCounters: the daemon is told what the device has counted, and that there is none.
func TestCounters(t *testing.T) {
	for _, none := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, ds := newWorld(t, 1)
			w.noDevice = none
			c, err := Dial(t.Context(), ds[0].options())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ds[0].push(&mcrdmav1.OpenResponse{Event: &mcrdmav1.OpenResponse_CountersRequested{CountersRequested: &mcrdmav1.CountersRequested{Call: 7}}})
			a := <-ds[0].counters
			d := a.GetDevice()
			if a.GetCall() != 7 || a.GetToken() != c.token() || d.GetAddress() != ds[0].address || none != (d.GetDriver() == "") || none != (len(d.GetCounters()) == 0) {
				t.Errorf("%v", a)
			}
			if !none && (d.GetMtu() == 0 || !slices.ContainsFunc(d.GetCounters(), func(x *mcrdmav1.DeviceCounter) bool { return x.GetName() == "qps" })) {
				t.Errorf("%v", d)
			}
		})
	}
}

// TestNoBootstrap: a host whose bootstrap address is not its own says so, and which setting that is.
func TestNoBootstrap(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{syscall.EADDRNOTAVAIL: ErrInvalid, syscall.EMFILE: ErrLimit} {
		c := &Client{hello: &mcrdmav1.Hello{Host: "h1", Bootstrap: "192.0.2.1"}}
		c.opt.Listen = func(string, string) (net.Listener, error) { return nil, &net.OpError{Op: "listen", Err: errno} }
		err := new(endpoint).listen(c)
		if _, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, want) || !errors.Is(err, errno) || !strings.Contains(err.Error(), "host h1 cannot listen for relaying (see bootstrap") {
			t.Errorf("%v", err)
		}
	}
}
