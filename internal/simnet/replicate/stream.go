package replicate

import (
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/simnet"
)

// Stream writes so many messages of a size, depth of them under way at a time, and returns how long each took, in
// microseconds. It ends as the last is complete. Errors are the set's, or say that the simulation came to an end before.
func Stream(s *simnet.Sim, set Set, size, depth, writes int) ([]float64, error) {
	took := make([]float64, 0, writes)
	var failed error
	posted := 0
	var post func()
	post = func() {
		if posted == writes {
			return
		}
		posted++
		begin := s.Now()
		err := set.Write(size, func() {
			took = append(took, float64((s.Now()-begin).Nanoseconds())/1000)
			if len(took) == writes {
				s.Stop()
			}
			post()
		})
		if err != nil && failed == nil {
			failed = err
			s.Stop()
		}
	}
	for range depth {
		post()
	}
	if failed == nil {
		s.Run(s.Now() + time.Hour)
	}
	switch err := set.Failed(); {
	case failed != nil:
		return nil, failed
	case err != nil:
		return nil, err
	case len(took) < writes:
		return nil, fmt.Errorf("%d of %d writes are complete", len(took), writes)
	}
	return took, nil
}
