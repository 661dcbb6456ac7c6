// Command member is an application on pkg/mcrdma that carries out orders: it sends in groups,
// receives in groups, and has ordinary connections, all with one device. Orders come on standard
// input; see package orders. It ends with its input.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/internal/hostload"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

func main() {
	hostload.Batch()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	a := &app{log: log, groups: map[string]*group{}, replicas: map[string]*replica{},
		listeners: map[string]*mcrdma.Listener{}, flows: map[string]*flow{}}
	err := orders.Serve(log, os.Stdin, os.Stdout, a.do, sentinels)
	if a.client != nil {
		err = errors.Join(err, a.client.Close())
	}
	if a.dev != nil {
		err = errors.Join(err, a.dev.Close())
	}
	if err != nil {
		log.Error("the end", "error", err)
		os.Exit(1)
	}
}

type app struct {
	log *slog.Logger

	mu        sync.Mutex
	dev       qp.Device
	client    *mcrdma.Client
	groups    map[string]*group
	replicas  map[string]*replica // by the group's ID
	listeners map[string]*mcrdma.Listener
	flows     map[string]*flow
}

// handlers are the handlers of the orders.
var handlers = map[string]func(a *app, raw json.RawMessage) (any, error){
	orders.OpenDevice: with((*app).openDevice),
	orders.Dial:       with((*app).dial),
	orders.Listen:     with((*app).listen),
	orders.Unlisten:   with((*app).unlisten),
	orders.Create:     with((*app).create),
	orders.Info:       with((*app).info),
	orders.Work:       with((*app).work),
	orders.Beyond:     with((*app).beyond),
	orders.Events:     with((*app).events),
	orders.Close:      with((*app).close),
	orders.Replica:    with((*app).replica),
	orders.Leave:      with((*app).leave),
	orders.Counters:   with((*app).counters),
	orders.FlowEnd:    with((*app).flowEnd),
	orders.FlowJoin:   with((*app).flowJoin),
	orders.FlowRun:    with((*app).flowRun),
	orders.FlowSum:    with((*app).flowSum),
}

// with makes a handler of a method.
func with[A, R any](f func(*app, A) (R, error)) func(*app, json.RawMessage) (any, error) {
	return func(a *app, raw json.RawMessage) (any, error) {
		return orders.With(raw, func(args A) (R, error) { return f(a, args) })
	}
}

func (a *app) do(o *orders.Order) (any, error) {
	h := handlers[o.Do]
	if h == nil {
		return nil, fmt.Errorf("there is no order %q", o.Do)
	}
	return h(a, o.Args)
}

// sentinels returns the names of the sentinel errors of pkg/mcrdma that err wraps, and its reason.
func sentinels(err error) (list []string) {
	for _, s := range []struct {
		name string
		err  error
	}{
		{"ErrClosed", mcrdma.ErrClosed}, {"ErrDaemon", mcrdma.ErrDaemon}, {"ErrInvalid", mcrdma.ErrInvalid},
		{"ErrDenied", mcrdma.ErrDenied}, {"ErrUnreachable", mcrdma.ErrUnreachable}, {"ErrVersion", mcrdma.ErrVersion},
		{"ErrLimit", mcrdma.ErrLimit}, {"ErrNoSwitch", mcrdma.ErrNoSwitch}, {"ErrMinSize", mcrdma.ErrMinSize},
		{"ErrTimeout", mcrdma.ErrTimeout}, {"ErrRemoved", mcrdma.ErrRemoved}, {"ErrSenderLost", mcrdma.ErrSenderLost},
		{"ErrFailed", mcrdma.ErrFailed}, {"Canceled", context.Canceled}, {"DeadlineExceeded", context.DeadlineExceeded},
	} {
		if errors.Is(err, s.err) {
			list = append(list, s.name)
		}
	}
	if e, ok := errors.AsType[*mcrdma.Error](err); ok {
		list = append(list, e.Reason.String())
	}
	return list
}

func (a *app) openDevice(args orders.DeviceArgs) (orders.DeviceInfo, error) {
	dev, err := qp.Open(args.Device)
	if err != nil {
		return orders.DeviceInfo{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dev = dev
	return orders.DeviceInfo{MTU: dev.Attr().ActiveMTU}, nil
}

func (a *app) counters(struct{}) (map[string]uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dev == nil {
		return nil, errors.New("no device has been opened")
	}
	n := a.dev.Counters()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return nil, err
	}
	n[orders.ProcessorTime] = uint64(u.Utime.Nano() + u.Stime.Nano()) //nolint:gosec // never negative
	return n, nil
}
