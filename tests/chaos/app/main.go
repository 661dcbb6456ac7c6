// Command app is the application of the fault matrix: it sends and receives in groups, and records
// everything in journals, which survive it, as does the memory that its groups write to. Orders are
// lines of JSON on its standard input; see package tests/chaos/orders. It ends with its input.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/tests/chaos/orders"
	"github.com/mcrdma/mcrdma/tests/chaos/watch"
	e2e "github.com/mcrdma/mcrdma/tests/e2e/orders"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if len(os.Args) > 3 && os.Args[1] == orders.Watched {
		log.Error(orders.Watched, "error", watch.Exec(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	a := &app{log: log, senders: map[string]*sender{}, members: map[string]*member{}}
	err := e2e.Serve(log, os.Stdin, os.Stdout, a.do, nil)
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

	mu      sync.Mutex
	args    orders.OpenArgs
	dev     qp.Device
	client  *mcrdma.Client
	senders map[string]*sender // by the group's name
	members map[string]*member
}

func (a *app) do(o *e2e.Order) (any, error) {
	switch o.Do {
	case orders.Open:
		return e2e.With(o.Args, a.open)
	case orders.Listen:
		return e2e.With(o.Args, a.listen)
	case orders.Create:
		return e2e.With(o.Args, a.create)
	case orders.Work:
		return e2e.With(o.Args, a.work)
	case orders.Finish:
		return e2e.With(o.Args, a.finish)
	case orders.Settle:
		return e2e.With(o.Args, a.settle)
	case orders.Left:
		return a.left()
	}
	return nil, fmt.Errorf("there is no order %q", o.Do)
}

func (a *app) open(args orders.OpenArgs) (any, error) {
	dev, err := qp.Open(args.Device)
	if err != nil {
		return nil, err
	}
	ctx, cancel := wait(10_000)
	defer cancel()
	c, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: args.Socket, Program: "chaos", Device: dev, Logger: a.log})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.args, a.dev, a.client = args, dev, c
	return nil, err
}

func (a *app) left() (orders.LeftResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dev == nil {
		return orders.LeftResult{}, nil
	}
	return orders.LeftResult{QPs: a.dev.Counters()["qps"]}, nil
}
