package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestAsk: a member that is silent costs little time, and once; one that fails, none; and all that fail say so.
func TestAsk(t *testing.T) {
	errDown := errors.New("down")
	for _, x := range []struct {
		name       string
		does       [3]string // of each member
		want       int       // which one answers; -1: none
		took, then time.Duration
	}{
		{"all answer", [3]string{"answers", "answers", "answers"}, 0, 0, 0},
		{"one is silent", [3]string{"silent", "answers", "answers"}, 1, hedge, 0},
		{"two are silent", [3]string{"silent", "silent", "answers"}, 2, 2 * hedge, 0},
		{"one fails", [3]string{"fails", "answers", "silent"}, 1, 0, 0},
		{"all fail", [3]string{"fails", "fails", "fails"}, -1, 0, 0},
		{"all are silent", [3]string{"silent", "silent", "silent"}, -1, time.Second, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := &members{}
			index := map[*clientv3.Client]int{}
			for i := range 3 {
				m.each = append(m.each, &clientv3.Client{})
				index[m.each[i]] = i
			}
			for round, took := range []time.Duration{x.took, x.then} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				begun := time.Now()
				got, err := ask(ctx, m, func(ctx context.Context, c *clientv3.Client) (int, error) {
					switch x.does[index[c]] {
					case "fails":
						return -1, errDown
					case "silent":
						<-ctx.Done()
						return -1, ctx.Err()
					}
					return index[c], nil
				})
				if d := time.Since(begun); got != x.want || (err != nil) != (x.want < 0) || d != took {
					t.Errorf("%s, call %d: %d, %v after %v; want %d after %v", x.name, round+1, got, err, d, x.want, took)
				}
				cancel()
			}
		})
	}
}
