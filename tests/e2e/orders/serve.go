package orders

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"
)

// Serve reads orders from in, has do carry them out in parallel, and writes its answers to out. It
// returns when there are no more orders and all have been carried out. is, if not nil, returns the
// names of the sentinel errors that an error wraps.
func Serve(log *slog.Logger, in io.Reader, out io.Writer, do func(*Order) (any, error), is func(error) []string) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	answers := json.NewEncoder(out)
	for dec := json.NewDecoder(bufio.NewReader(in)); ; {
		var o Order
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		wg.Go(func() {
			start := time.Now()
			result, err := do(&o)
			if took := time.Since(start); err != nil || took > time.Second {
				log.Info("order", "id", o.ID, "do", o.Do, "args", string(o.Args), "took", took, "error", err)
			}
			ans := Answer{ID: o.ID}
			if err == nil {
				ans.Result, err = json.Marshal(result)
			}
			if err != nil {
				ans.Error = err.Error()
				if is != nil {
					ans.Is = is(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if err := answers.Encode(ans); err != nil {
				log.Error("answer", "error", err)
			}
		})
	}
}

// With calls f with its arguments.
func With[A, R any](raw json.RawMessage, f func(A) (R, error)) (any, error) {
	var args A
	if err := json.Unmarshal(raw, &args); err != nil {
		return nil, err
	}
	return f(args)
}
