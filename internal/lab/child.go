package lab

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// parting is for a process to end on request.
const parting = 5 * time.Second

// A Child is an application of a lab: this program again, as a process of its own. Its
// standard input ends when this process does, however that happens, and so should it.
type Child struct {
	*exec.Cmd
	Done  chan struct{}  // closed when the process is gone
	Err   error          // of the process, once Done is closed
	Input io.WriteCloser // its standard input
}

// NewChild makes a Child that runs with these arguments, to be started after its Cmd has
// been completed.
func NewChild(args ...string) (*Child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Child{Cmd: exec.Command(exe, args...), Done: make(chan struct{})}
	c.Env = os.Environ()
	c.Input, err = c.StdinPipe()
	return c, err
}

// Start starts the process. What it prints is read by follow, unless that is nil.
func (c *Child) Start(follow func(io.Reader)) (err error) {
	var out io.Reader
	if follow != nil {
		if out, err = c.StdoutPipe(); err != nil {
			return err
		}
	}
	if err := c.Cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(c.Done)
		if follow != nil {
			follow(out)
		}
		c.Err = c.Wait()
	}()
	return nil
}

// Kill ends the process as SIGKILL does, and returns when it is gone.
func (c *Child) Kill() {
	_ = c.Process.Kill() // it may be gone already
	<-c.Done
}

// End ends the process: cleanly if it does so in time.
func (c *Child) End() error {
	_ = c.Input.Close()
	select {
	case <-c.Done:
		return c.Err
	case <-time.After(parting):
		c.Kill()
		return fmt.Errorf("process %d did not end within %v, and was killed", c.Process.Pid, parting)
	}
}
