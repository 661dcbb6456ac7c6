package qp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeDevice is a Device of which only the name is ever asked.
type fakeDevice struct {
	Device
	name string
}

func (d fakeDevice) Name() string { return d.name }

// register adds drivers for the time of one test.
func register(t *testing.T, driver string, open OpenFunc) {
	t.Helper()
	Register(driver, open, nil)
	t.Cleanup(func() {
		driversMu.Lock()
		defer driversMu.Unlock()
		delete(drivers, driver)
	})
}

func TestOpen(t *testing.T) {
	broken := errors.New("cable unplugged")
	register(t, "good", func(arg string) (Device, error) { return fakeDevice{name: arg}, nil })
	register(t, "bad", func(string) (Device, error) { return nil, broken })

	// Everything after the first colon is the driver's.
	for name, arg := range map[string]string{"good:10.0.0.1": "10.0.0.1", "good": "", "good:": "", "good:a:b": "a:b"} {
		dev, err := Open(name)
		if err != nil || dev.Name() != arg {
			t.Errorf("Open(%q): device %v, error %v; want the driver to get %q", name, dev, err, arg)
		}
	}
	dev, err := Open("bad:x")
	if dev != nil || !errors.Is(err, broken) || !strings.Contains(err.Error(), "bad:x") {
		t.Errorf("Open(bad:x) = %v, %v", dev, err)
	}
	for _, name := range []string{"", ":", "none:x", "GOOD:x"} {
		dev, err := Open(name)
		if dev != nil || !errors.Is(err, ErrDevice) || !strings.Contains(err.Error(), "[bad good]") {
			t.Errorf("Open(%q) = %v, %v; want ErrDevice and the drivers that there are", name, dev, err)
		}
	}
	if got := Drivers(); !slices.Equal(got, []string{"bad", "good"}) {
		t.Errorf("Drivers() = %v", got)
	}
}

func TestRegisterTwicePanics(t *testing.T) {
	register(t, "once", func(string) (Device, error) { return nil, nil })
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "once") {
			t.Errorf("second registration: %v, want a panic that names the driver", r)
		}
	}()
	Register("once", nil, nil)
}

// Drivers may be registered while devices are opened (the race detector looks
// on).
func TestRegistryConcurrency(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprintf("c%d", i)
		wg.Go(func() {
			register(t, name, func(arg string) (Device, error) { return fakeDevice{name: arg}, nil })
			if dev, err := Open(name + ":x"); err != nil || dev.Name() != "x" {
				t.Errorf("Open(%s:x) = %v, %v", name, dev, err)
			}
			Drivers()
		})
	}
	wg.Wait()
	if got := len(Drivers()); got != 8 {
		t.Errorf("%d drivers, want 8", got)
	}
}

func TestCheckOpcode(t *testing.T) {
	for _, op := range []Opcode{OpWrite, OpWriteImm, OpSend, OpSendImm} {
		for _, multicast := range []bool{false, true} {
			if err := CheckOpcode(op, multicast); err != nil {
				t.Errorf("%v, multicast %v: %v", op, multicast, err)
			}
		}
	}
	if err := CheckOpcode(OpRead, false); err != nil {
		t.Error(err)
	}
	for _, op := range []Opcode{OpRead, OpCmpSwap, OpFetchAdd} {
		for multicast, says := range map[bool]string{true: "multicast", false: "READ only"} {
			if op == OpRead && !multicast {
				continue
			}
			err := CheckOpcode(op, multicast)
			if !errors.Is(err, ErrOpcode) || !strings.Contains(err.Error(), op.String()) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, multicast %v: %v; want ErrOpcode, the name and %q", op, multicast, err, says)
			}
		}
	}
	for op := OpFetchAdd + 1; op != 0; op++ {
		if err := CheckOpcode(op, op%2 == 0); !errors.Is(err, ErrOpcode) || !strings.Contains(err.Error(), "unknown") {
			t.Errorf("opcode %d: %v", op, err)
		}
	}
}

// The numbers and texts are those of infiniband/verbs.h and ibv_wc_status_str,
// so that what a user reads here can be looked up there.
func TestStatus(t *testing.T) {
	for s, text := range map[Status]string{
		0: "success", 1: "local length error", 4: "local protection error", 5: "Work Request Flushed Error",
		8: "local access error", 9: "remote invalid request error", 10: "remote access error", 11: "remote operation error",
		12: "transport retry counter exceeded", 13: "RNR retry counter exceeded", 21: "general error", 22: "unknown", 255: "unknown",
	} {
		if s.String() != text {
			t.Errorf("Status(%d) is %q, want %q", s, s, text)
		}
	}
	for name, c := range map[string]struct{ got, want Status }{
		"WRFlushErr": {StatusWRFlushErr, 5}, "RemInvReqErr": {StatusRemInvReqErr, 9}, "RemAccessErr": {StatusRemAccessErr, 10},
		"RemOpErr": {StatusRemOpErr, 11}, "RetryExcErr": {StatusRetryExcErr, 12}, "RNRRetryExcErr": {StatusRNRRetryExcErr, 13},
		"FatalErr": {StatusFatalErr, 19}, "GeneralErr": {StatusGeneralErr, 21},
	} {
		if c.got != c.want {
			t.Errorf("%s is %d, in verbs.h %d", name, c.got, c.want)
		}
	}
	if err := StatusSuccess.Err(); err != nil {
		t.Errorf("Success.Err() = %v", err)
	}
	err := fmt.Errorf("post: %w", StatusRetryExcErr.Err())
	var se StatusError
	if !errors.As(err, &se) || se.Status != StatusRetryExcErr || !strings.Contains(err.Error(), StatusRetryExcErr.String()) {
		t.Errorf("%v does not carry its status", err)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{OpWrite.String(), "RDMA_WRITE"}, {OpWriteImm.String(), "RDMA_WRITE_WITH_IMM"}, {OpSend.String(), "SEND"},
		{OpSendImm.String(), "SEND_WITH_IMM"}, {OpRead.String(), "RDMA_READ"}, {OpFetchAdd.String(), "ATOMIC_FETCH_AND_ADD"},
		{Opcode(7).String(), "OPCODE_UNKNOWN"},
		{WCSend.String(), "SEND"}, {WCWrite.String(), "RDMA_WRITE"}, {WCRecv.String(), "RECV"},
		{WCRecvWriteImm.String(), "RECV_RDMA_WITH_IMM"}, {WCRead.String(), "RDMA_READ"}, {WCOpcode(5).String(), "OPCODE_UNKNOWN"},
		{EventQPFatal.String(), "QP_FATAL"}, {EventQPRequestErr.String(), "QP_REQ_ERR"},
		{EventQPAccessErr.String(), "QP_ACCESS_ERR"}, {EventCommEst.String(), "COMM_EST"},
		{EventCQError.String(), "CQ_ERR"}, {EventDeviceFatal.String(), "DEVICE_FATAL"}, {EventType(0).String(), "EVENT_UNKNOWN"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	for op, want := range map[Opcode][2]bool{OpWrite: {true, false}, OpWriteImm: {true, true},
		OpSend: {false, false}, OpSendImm: {false, true}, OpRead: {false, false}} {
		if got := [2]bool{op.IsWrite(), op.HasImm()}; got != want {
			t.Errorf("%v: IsWrite, HasImm = %v, want %v", op, got, want)
		}
	}
}
