package ports

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// room returns n buffers for frames of size bytes.
func room(n, size int) [][]byte {
	b := make([][]byte, n)
	for i := range b {
		b[i] = make([]byte, 0, size)
	}
	return b
}

// frame returns a frame of n bytes, of an EtherType that no host answers, with
// the number k in it if it is long enough.
func frame(n, k int) []byte {
	f := bytes.Repeat([]byte{byte(k)}, n)
	copy(f, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5})
	return f
}

// A collector keeps copies of all that a port receives, until it fails.
type collector struct {
	mu     sync.Mutex
	frames [][]byte
	more   chan struct{}
	err    error
	done   chan struct{}
}

// collect receives from p in the background; the test closes p.
func collect(t testing.TB, p Port, size int) *collector {
	c := &collector{more: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		bufs := room(MaxBatch, size)
		for {
			n, err := p.Recv(bufs)
			c.mu.Lock()
			for _, b := range bufs[:n] {
				c.frames = append(c.frames, bytes.Clone(b))
			}
			c.err = err
			c.mu.Unlock()
			select {
			case c.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		p.Close()
		<-c.done
	})
	return c
}

// wait waits for n frames and returns all there are; it reports an error if n
// do not come.
func (c *collector) wait(n int) ([][]byte, error) {
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		frames, err := c.frames, c.err
		c.mu.Unlock()
		if len(frames) >= n {
			return frames, nil
		}
		if err != nil {
			return frames, fmt.Errorf("%d of %d frames, then %w", len(frames), n, err)
		}
		select {
		case <-c.more:
		case <-deadline:
			return frames, fmt.Errorf("%d of %d frames in %v", len(frames), n, patience)
		}
	}
}

// equal compares frames with the wanted ones.
func equal(got, want [][]byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d frames, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			return fmt.Errorf("frame %d is\n%x, want\n%x", i, got[i], want[i])
		}
	}
	return nil
}

// eventually polls until cond is true.
func eventually(cond func() bool) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if cond() {
			return true
		}
	}
	return cond()
}

// closes checks that Close ends a waiting Recv, and the results of later calls.
func closes(t testing.TB, p Port) {
	t.Helper()
	errc := make(chan error)
	go func() {
		_, err := p.Recv(room(1, 2000))
		errc <- err
	}()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-errc:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv: %v, want net.ErrClosed", err)
		}
	case <-time.After(patience):
		t.Error("Recv still waits after Close")
	}
	if _, err := p.Recv(room(1, 2000)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv after Close: %v, want net.ErrClosed", err)
	}
	before := p.Stats().Drops[TxDown.String()]
	if n := p.Send([][]byte{frame(60, 1), frame(60, 2)}); n != 0 || p.Stats().Drops[TxDown.String()] != before+2 {
		t.Errorf("Send after Close = %d, %v", n, p.Stats())
	}
	if p.Up() {
		t.Error("up after Close")
	}
	_ = p.Close() // once more does no harm
}
