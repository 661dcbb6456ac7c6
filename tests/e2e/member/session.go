package main

import (
	"context"
	"errors"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

func (a *app) dial(args orders.DialArgs) (orders.HostInfo, error) {
	ctx, cancel := within(0, 10*time.Second)
	defer cancel()
	a.mu.Lock()
	dev := a.dev
	a.mu.Unlock()
	c, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: args.Socket, Program: args.Program, Device: dev, Logger: a.log})
	if err != nil {
		return orders.HostInfo{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.client = c
	return orders.HostInfo{Host: c.Host(), Address: c.Address()}, nil
}

func (a *app) session() (*mcrdma.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client == nil {
		return nil, errors.New("no daemon has been dialed")
	}
	return a.client, nil
}

// within returns a context that ends after some milliseconds, or the default.
func within(millis int, def time.Duration) (context.Context, context.CancelFunc) {
	d := time.Duration(millis) * time.Millisecond
	if d == 0 {
		d = def
	}
	return context.WithTimeout(context.Background(), d)
}
