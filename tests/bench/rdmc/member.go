package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
)

// A job is the task of a child process.
type job struct {
	Role      string // "group", "plain" or "write"
	Members   []string
	Devices   []string // the members' RDMA devices; none for TCP
	Self      int
	Size      int
	Algorithm schedule.Algorithm
	BlockSize int
}

// A said is a child's report when it is ready, and for each complete message: when it began to send
// the message, when it had it, and the SHA-256 of the first.
type said struct {
	Begin, End int64
	Sum        string
}

// now reads a clock that all processes of the machine share, in nanoseconds.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return t.Nano()
}

type member struct {
	job
	in    *json.Decoder
	out   *json.Encoder
	msg   []byte
	count int // number of complete messages
}

func (m *member) report(begin, end int64) error {
	r := said{Begin: begin, End: end}
	if m.count == 0 {
		sum := sha256.Sum256(m.msg)
		r.Sum = hex.EncodeToString(sum[:])
	}
	m.count++
	return m.out.Encode(r)
}

// each calls send for each line of stdin.
func (m *member) each(send func() error) error {
	for {
		var round int
		if err := m.in.Decode(&round); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := send(); err != nil {
			return err
		}
	}
}

// dial calls the root, which may not listen yet.
func dial(addr string) (c net.Conn, err error) {
	for range 200 {
		if c, err = net.Dial("tcp", addr); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return c, err
}
