package p4rt

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
)

// A dripping switch sends an answer each second, without end.
type dripping struct {
	p4.P4RuntimeClient
	grpc.ClientStream
	ctx    context.Context
	answer *p4.ReadResponse
}

func (d dripping) Read(ctx context.Context, _ *p4.ReadRequest, _ ...grpc.CallOption) (p4.P4Runtime_ReadClient, error) {
	d.ctx = ctx
	return d, nil
}

func (d dripping) Recv() (*p4.ReadResponse, error) {
	select {
	case <-time.After(time.Second):
		return d.answer, nil
	case <-d.ctx.Done():
		return nil, d.ctx.Err()
	}
}

// TestEndless: a Read ends, also if the switch's answer does not.
func TestEndless(t *testing.T) {
	for name, answer := range map[string]*p4.ReadResponse{"empty": {}, "an entity": {Entities: []*p4.Entity{{}}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				begun := time.Now()
				err := (&Client{rpc: dripping{answer: answer}}).read(ctx, nil, func(*p4.Entity) error { return nil })
				if took := time.Since(begun); !errors.Is(err, ErrSilent) || took > readTime {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}
