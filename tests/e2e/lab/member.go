package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mcrdma/mcrdma/tests/e2e/orders"
)

// A Member is an application that carries out orders. See package orders.
type Member struct {
	*Process

	mu      sync.Mutex
	last    int
	waiting map[int]chan orders.Answer // nil: it has ended
}

// A Refusal is an application's error.
type Refusal struct {
	Text string
	Is   []string // sentinel errors of pkg/mcrdma that it wraps
}

func (e *Refusal) Error() string { return e.Text }

// Refused reports whether err is a Refusal that wraps that sentinel error.
func Refused(err error, sentinel string) bool {
	var r *Refusal
	return errors.As(err, &r) && slices.Contains(r.Is, sentinel)
}

// ErrEnded says that the application has ended.
var ErrEnded = errors.New("the application has ended")

func newMember(p *Process) *Member { return &Member{Process: p} }

// Start starts the application.
func (m *Member) Start(ctx context.Context) error {
	if err := m.Process.Start(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	m.waiting = map[int]chan orders.Answer{}
	m.mu.Unlock()
	go m.read()
	return nil
}

func (m *Member) read() {
	for dec := json.NewDecoder(m.Out); ; {
		var a orders.Answer
		if err := dec.Decode(&a); err != nil {
			break
		}
		m.mu.Lock()
		c := m.waiting[a.ID]
		delete(m.waiting, a.ID)
		m.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
	m.mu.Lock()
	waiting := m.waiting
	m.waiting = nil
	m.mu.Unlock()
	for _, c := range waiting {
		close(c)
	}
}

// Do gives an order and waits for its result, which it stores in the value that result points to,
// unless result is nil. Errors are a *Refusal, ErrEnded, or ctx's.
func (m *Member) Do(ctx context.Context, order string, args, result any) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	c := make(chan orders.Answer, 1)
	m.mu.Lock()
	if m.waiting == nil {
		m.mu.Unlock()
		return fmt.Errorf("%s: %s: %w", m.Name, order, ErrEnded)
	}
	m.last++
	id := m.last
	m.waiting[id] = c
	line, err := json.Marshal(orders.Order{ID: id, Do: order, Args: raw})
	if err == nil {
		_, err = m.In.Write(append(line, '\n'))
	}
	if err != nil {
		delete(m.waiting, id)
	}
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %s: %w: %w", m.Name, order, ErrEnded, err)
	}
	select {
	case a, ok := <-c:
		switch {
		case !ok:
			return fmt.Errorf("%s: %s: %w\n%s", m.Name, order, ErrEnded, tail(m.Log()))
		case a.Error != "":
			return fmt.Errorf("%s: %s: %w", m.Name, order, &Refusal{a.Error, a.Is})
		case result == nil:
			return nil
		}
		return json.Unmarshal(a.Result, result)
	case <-ctx.Done():
		return fmt.Errorf("%s: %s: no answer: %w", m.Name, order, context.Cause(ctx))
	}
}

// Ask is Do with a typed result.
func Ask[T any](ctx context.Context, m *Member, order string, args any) (T, error) {
	var result T
	err := m.Do(ctx, order, args, &result)
	return result, err
}

// tail returns the end of a log.
func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
