// Command write moves bytes from one RDMA device to another through a pair of
// connected RC queue pairs, the way every verbs program does: RDMA WRITEs for
// the data, a SEND to say that it is all there, completions for flow control.
// The receiver checks the SHA-256 that came with the SEND.
//
// Both devices are in this one process, so what a pair of hosts would tell each
// other over TCP (queue pair numbers, PSNs, rkeys) is handed over directly.
//
//	go run ./examples/write                      # 64 MiB of random bytes over loopback
//	go run ./examples/write --size 8M            # fewer
//	go run ./examples/write --file some.iso      # a file
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/pflag"

	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

const (
	chunk   = 1 << 20 // bytes per WRITE
	window  = 16      // WRITEs outstanding
	maxSize = 1 << 30 // bytes: they are held in memory twice
)

const usage = `write [flags]

Moves bytes from one RDMA device to another, both in this process, and compares their
SHA-256.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(cmdline.Exit("write", command(ctx, os.Args[1:]), os.Stderr))
}

func command(ctx context.Context, args []string) error {
	f := pflag.NewFlagSet("write", pflag.ContinueOnError)
	from := f.String("from", "softroce:127.0.0.1", "the sending `device`")
	to := f.String("to", "softroce:127.0.0.2", "the receiving `device`")
	size := cmdline.Size(64 << 20)
	f.Var(&size, "size", "`bytes` to send, such as 4096, 64K or 8M")
	file := f.String("file", "", "the `file` to send, instead of random bytes")
	if err := cmdline.Parse(f, usage, args, os.Stdout); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cmdline.Usagef("%q: the file is given as --file %[1]s", f.Arg(0))
	}
	if size > maxSize {
		return cmdline.Usagef("--size %d: it is at most %d", size, maxSize)
	}
	return run(ctx, *from, *to, *file, int(size))
}

func run(ctx context.Context, from, to, file string, size int) error {
	data, err := content(file, size)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(data)

	// Each region has the digest behind the data: the sender SENDs it from
	// there, the receiver receives it to there.
	tx, err := newEndpoint(from, append(data, digest[:]...), qp.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer tx.dev.Close()
	rx, err := newEndpoint(to, make([]byte, len(data)+len(digest)), qp.AccessRemoteWrite|qp.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer rx.dev.Close()

	mtu := min(tx.dev.Attr().ActiveMTU, rx.dev.Attr().ActiveMTU)
	if err := tx.connect(rx, mtu); err != nil {
		return err
	}
	if err := rx.connect(tx, mtu); err != nil {
		return err
	}
	fmt.Printf("%s QPN 0x%06x → %s QPN 0x%06x, path MTU %d\n", from, tx.qp.QPN(), to, rx.qp.QPN(), mtu)

	recv := qp.RecvWR{SGEs: []qp.SGE{rx.mr.SGE(len(data), len(digest))}}
	if err := rx.qp.PostRecv(&recv); err != nil {
		return err
	}
	start := time.Now()
	if err := writeAll(ctx, tx, rx, len(data)); err != nil {
		return err
	}
	// SENDs and WRITEs of one queue pair arrive in order, so when the digest
	// is there, so is all the data.
	send := qp.SendWR{Opcode: qp.OpSend, Flags: qp.FlagSignaled, SGEs: []qp.SGE{tx.mr.SGE(len(data), len(digest))}}
	if err := tx.qp.PostSend(&send); err != nil {
		return err
	}
	if _, err := tx.completions(ctx); err != nil {
		return fmt.Errorf("send the digest: %w", err)
	}
	if _, err := rx.completions(ctx); err != nil {
		return fmt.Errorf("receive the digest: %w", err)
	}
	took := time.Since(start)

	got := rx.mr.Bytes()
	sum := sha256.Sum256(got[:len(data)])
	if !bytes.Equal(sum[:], got[len(data):]) {
		return fmt.Errorf("received bytes have SHA-256 %x, the sender's have %x", sum, got[len(data):])
	}
	fmt.Printf("%d bytes in %v, %.2f Gb/s; SHA-256 equal on both sides: %x\n",
		len(data), took.Round(time.Millisecond), float64(len(data))*8/took.Seconds()/1e9, sum)
	return nil
}

func content(file string, size int) ([]byte, error) {
	if file != "" {
		info, err := os.Stat(file)
		if err == nil && !info.Mode().IsRegular() { // others may have no end, or wait for a writer
			err = fmt.Errorf("%s is not a regular file", file)
		}
		if err != nil {
			return nil, err
		}
		return os.ReadFile(file)
	}
	if size < 0 {
		return nil, fmt.Errorf("size %d is negative", size)
	}
	data := make([]byte, size, size+sha256.Size)
	rand.Read(data)
	return data, nil
}

// writeAll WRITEs the first n bytes of tx's region to the same place in rx's,
// with up to window requests outstanding, and waits for all completions.
func writeAll(ctx context.Context, tx, rx *endpoint, n int) error {
	posted, done, shown := 0, 0, 0
	total := (n + chunk - 1) / chunk
	for done < total {
		for posted < total && posted-done < window {
			off := posted * chunk
			wr := qp.SendWR{ID: uint64(posted), Opcode: qp.OpWrite, Flags: qp.FlagSignaled,
				SGEs:       []qp.SGE{tx.mr.SGE(off, min(chunk, n-off))},
				RemoteAddr: rx.mr.Addr() + uint64(off), RKey: rx.mr.RKey()}
			if err := tx.qp.PostSend(&wr); err != nil {
				return fmt.Errorf("post WRITE %d of %d: %w", posted+1, total, err)
			}
			posted++
		}
		k, err := tx.completions(ctx)
		if err != nil {
			return fmt.Errorf("after %d of %d WRITEs: %w", done, total, err)
		}
		done += k
		if percent := done * 100 / total; percent >= shown+10 {
			shown = percent / 10 * 10
			fmt.Printf("  %3d%%  %d of %d WRITEs acknowledged\n", shown, done, total)
		}
	}
	return nil
}

// An endpoint is one side: a device with one queue pair and one region.
type endpoint struct {
	dev qp.Device
	cq  qp.CQ
	mr  qp.MR
	qp  qp.QP
	psn rocev2.PSN // of the first packet that this side sends
}

func newEndpoint(device string, buf []byte, access qp.Access) (*endpoint, error) {
	dev, err := qp.Open(device)
	if err != nil {
		return nil, err
	}
	e := &endpoint{dev: dev, psn: randomPSN()}
	if err := e.create(buf, access); err != nil {
		dev.Close()
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	return e, nil
}

func (e *endpoint) create(buf []byte, access qp.Access) error {
	pd, err := e.dev.AllocPD()
	if err != nil {
		return err
	}
	if e.cq, err = e.dev.CreateCQ(2 * window); err != nil {
		return err
	}
	if e.mr, err = pd.RegMR(buf, access); err != nil {
		return err
	}
	if e.qp, err = pd.CreateQP(qp.Init{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: window, MaxRecvWR: 1, MaxSGE: 1}); err != nil {
		return err
	}
	return e.qp.Modify(&qp.Attr{State: qp.StateInit, Access: access}, qp.MaskInit)
}

// connect takes the queue pair up to RTS, connected to peer's.
func (e *endpoint) connect(peer *endpoint, mtu int) error {
	attr := qp.Attr{
		State: qp.StateRTR, DestAddr: peer.dev.Attr().Addr, DestQPN: peer.qp.QPN(), PathMTU: mtu,
		RQPSN: peer.psn, MinRNRTimer: 12, // 0.64 ms
	}
	if err := e.qp.Modify(&attr, qp.MaskRTR); err != nil {
		return err
	}
	attr = qp.Attr{State: qp.StateRTS, SQPSN: e.psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7} // 67 ms, 7 = forever
	return e.qp.Modify(&attr, qp.MaskRTS)
}

// completions waits for at least one completion and returns how many there
// were; a failed one is an error.
func (e *endpoint) completions(ctx context.Context) (int, error) {
	var wcs [2 * window]qp.WC
	for {
		n, err := e.cq.Poll(wcs[:])
		if err != nil {
			return 0, err
		}
		for i := range n {
			if err := wcs[i].Status.Err(); err != nil {
				return 0, fmt.Errorf("%v: %w", wcs[i].Opcode, err)
			}
		}
		if n > 0 {
			return n, nil
		}
		if err := e.cq.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

func randomPSN() rocev2.PSN {
	var b [3]byte
	rand.Read(b[:])
	return rocev2.PSN(b[0])<<16 | rocev2.PSN(b[1])<<8 | rocev2.PSN(b[2])
}
