package softroce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// peerVar makes the test binary a peer instead: its value is the device's name.
const peerVar = "SOFTROCE_TEST_PEER"

func init() {
	runtime.LockOSThread() // the main thread cannot be thrown away: nothing but main is on it
	runAsPeer = func() bool {
		device := os.Getenv(peerVar)
		if device == "" {
			return false
		}
		number, err := strconv.Atoi(os.Args[2])
		if err == nil {
			err = runPeer(device, os.Args[1], number, os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return true
	}
}

// What peers do with each other.
const (
	peerMessages = 64
	peerMessage  = 40000
	peerHalf     = peerMessages * peerMessage
)

// A peerAddress is what a peer says to the other over standard output and
// input.
type peerAddress struct {
	QPN  rocev2.QPN
	MTU  int
	Addr uint64
	RKey uint32
}

// TestVeth runs two devices in namespaces of their own, each in a process,
// joined by a veth pair: both send SENDs and WRITEs to each other and compare
// what arrives.
func TestVeth(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Skip(t, "network namespaces take root")
	}
	for _, c := range []struct {
		mtu  int
		rx   string
		loss float32 // percent, each way
	}{{9000, "raw", 0}, {1500, "udp", 0}, {1500, "raw", 0}, {4200, "auto", 2}} {
		t.Run(fmt.Sprintf("mtu=%d rx=%s loss=%v", c.mtu, c.rx, c.loss), func(t *testing.T) {
			t.Parallel()
			ns := vethPair(t, c.mtu, c.loss)
			var peers [2]*peerProcess
			for i := range peers {
				peers[i] = startPeer(t, ns[i], fmt.Sprintf("softroce:10.9.2.%d?rx=%s", i+1, c.rx), fmt.Sprintf("10.9.2.%d", 2-i), i)
			}
			var said [2]peerAddress
			for i, p := range peers {
				if err := p.out.Decode(&said[i]); err != nil {
					t.Fatalf("peer %d: %v; %s", i, err, p.stderr.Bytes())
				}
			}
			for i, p := range peers {
				if err := p.in.Encode(said[1-i]); err != nil {
					t.Fatalf("peer %d: %v", i, err)
				}
			}
			for i, p := range peers {
				var counters map[string]uint64
				if err := p.out.Decode(&counters); err != nil {
					t.Fatalf("peer %d: %v; %s", i, err, p.stderr.Bytes())
				}
				if c.loss > 0 && counters["tx_retransmits"] == 0 {
					t.Errorf("peer %d sent nothing twice: %v", i, counters)
				}
			}
		})
	}
}

// vethPair makes two namespaces with the addresses 10.9.2.1 and 10.9.2.2.
func vethPair(t *testing.T, mtu int, loss float32) (ns [2]netns.NsHandle) {
	t.Helper()
	var at [2]*netlink.Handle
	for i := range ns {
		made := make(chan error)
		go func() { // on a thread that is thrown away with the goroutine
			runtime.LockOSThread()
			var err error
			ns[i], err = netns.New()
			made <- err
		}()
		if err := <-made; err != nil {
			testenv.Skip(t, "network namespace: %v", err)
		}
		t.Cleanup(func() { ns[i].Close() })
		at[i] = must(netlink.NewHandleAt(ns[i]))(t)
		t.Cleanup(at[i].Close)
	}
	la := netlink.NewLinkAttrs()
	la.Name, la.MTU = "veth0", mtu
	veth := &netlink.Veth{LinkAttrs: la, PeerName: "veth0", PeerNamespace: netlink.NsFd(ns[1]), PeerMTU: uint32(mtu)}
	if err := at[0].LinkAdd(veth); err != nil {
		testenv.Skip(t, "veth pair: %v", err)
	}
	for i, h := range at {
		l := must(h.LinkByName("veth0"))(t)
		if err := h.AddrAdd(l, must(netlink.ParseAddr(fmt.Sprintf("10.9.2.%d/24", i+1)))(t)); err != nil {
			t.Fatal(err)
		}
		if err := h.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		if loss == 0 {
			continue
		}
		q := netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT},
			netlink.NetemQdiscAttrs{Loss: loss})
		if err := h.QdiscAdd(q); errors.Is(err, os.ErrNotExist) {
			t.Skipf("optional: this kernel has no netem: %v", err)
		} else if err != nil {
			t.Fatalf("netem: %v", err)
		}
	}
	return ns
}

type peerProcess struct {
	in     *json.Encoder
	out    *json.Decoder
	stderr *bytes.Buffer
}

// startPeer runs this binary as a peer in ns. It ends with the test.
func startPeer(t *testing.T, ns netns.NsHandle, device, other string, number int) *peerProcess {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second) // the test's own ends before its cleanup
	cmd := exec.CommandContext(ctx, os.Args[0], other, fmt.Sprint(number))
	cmd.Env = append(os.Environ(), peerVar+"="+device)
	p := &peerProcess{stderr: new(bytes.Buffer)}
	cmd.Stderr = p.stderr
	in := must(cmd.StdinPipe())(t)
	out := must(cmd.StdoutPipe())(t)
	p.in, p.out = json.NewEncoder(in), json.NewDecoder(out)
	started := make(chan error)
	go func() { // the child inherits the namespace of the thread, which is thrown away
		runtime.LockOSThread()
		err := netns.Set(ns)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		in.Close() // the peer exits
		if err := cmd.Wait(); err != nil && !t.Failed() {
			t.Errorf("peer %d: %v; %s", number, err, p.stderr.Bytes())
		}
	})
	return p
}

// runPeer is the peer's main program.
func runPeer(device, other string, number int, in io.Reader, out io.Writer) error {
	dev, err := qp.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err1 := dev.AllocPD()
	cq, err2 := dev.CreateCQ(4 * peerMessages)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	sent, got := make([]byte, 2*peerHalf), make([]byte, 2*peerHalf)
	fillPattern(sent, number)
	src, err1 := pd.RegMR(sent, 0)
	dst, err2 := pd.RegMR(got, qp.AccessRemoteWrite)
	q, err3 := pd.CreateQP(qp.Init{SendCQ: cq, RecvCQ: cq, MaxSendWR: 2 * peerMessages})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	var peer peerAddress
	if err := enc.Encode(peerAddress{q.QPN(), dev.Attr().ActiveMTU, dst.Addr(), dst.RKey()}); err != nil {
		return err
	}
	if err := dec.Decode(&peer); err != nil {
		return err
	}
	attr := qp.Attr{Access: qp.AccessRemoteWrite, DestQPN: peer.QPN, PathMTU: peer.MTU, Timeout: 15, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12}
	if err := attr.DestAddr.UnmarshalText([]byte(other)); err != nil {
		return err
	}
	for _, s := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{{qp.StateInit, qp.MaskInit}, {qp.StateRTR, qp.MaskRTR}, {qp.StateRTS, qp.MaskRTS}} {
		attr.State = s.state
		if err := q.Modify(&attr, s.mask); err != nil {
			return err
		}
	}
	if err := peerExchange(q, cq, src, dst, peer); err != nil {
		return fmt.Errorf("%w; counters %v", err, dev.Counters())
	}
	fillPattern(sent, 1-number) // what the other has sent
	if !bytes.Equal(sent, got) {
		return errors.New("data differ")
	}
	if err := enc.Encode(dev.Counters()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in) // the other may need acknowledgements still
	return err
}

// peerExchange sends the first half of src by WRITEs and the second by SENDs,
// and receives as much, until all is complete.
func peerExchange(q qp.QP, cq qp.CQ, src, dst qp.MR, peer peerAddress) error {
	for i := range peerMessages {
		at := i * peerMessage
		if err := q.PostRecv(&qp.RecvWR{SGEs: []qp.SGE{dst.SGE(peerHalf+at, peerMessage)}}); err != nil {
			return err
		}
	}
	for i := range peerMessages {
		at := i * peerMessage
		write := qp.SendWR{Opcode: qp.OpWrite, SGEs: []qp.SGE{src.SGE(at, peerMessage)}, RemoteAddr: peer.Addr + uint64(at), RKey: peer.RKey}
		send := qp.SendWR{Opcode: qp.OpSend, Flags: qp.FlagSignaled, SGEs: []qp.SGE{src.SGE(peerHalf+at, peerMessage)}}
		if err := errors.Join(q.PostSend(&write), q.PostSend(&send)); err != nil {
			return err
		}
	}
	var wc [16]qp.WC
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for left := 2 * peerMessages; left > 0; {
		if err := cq.Wait(ctx); err != nil {
			return fmt.Errorf("%d completions are missing: %w", left, err)
		}
		n, err := cq.Poll(wc[:])
		if err != nil {
			return err
		}
		for _, c := range wc[:n] {
			if err := c.Status.Err(); err != nil {
				return err
			}
		}
		left -= n
	}
	return nil
}
