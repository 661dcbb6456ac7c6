package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/rdma"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// deviceOptions are the options of all softroce devices. The window keeps the queue before a slow
// link short; see package rdma.
const deviceOptions = "?window=48"

// softroce is a placeholder for devices in a job, which perform fills in.
var softroce = []string{}

// device returns the name of a host's softroce device. On loopback, each has its own address.
func (p *path) device(host int) string {
	if p.hosts != nil {
		return "softroce:" + p.hosts[host].addr + deviceOptions
	}
	return fmt.Sprintf("softroce:127.77.%d.%d%s", os.Getpid()%250+1, host+1, deviceOptions)
}

// connect makes the transport of a member: over its device if it has one, or over TCP.
func (m *member) connect(ctx context.Context) (t rdmcfallback.Transport, done func(), err error) {
	o := tcp.Options{Members: m.Members, Self: m.Self}
	if len(m.Devices) == 0 {
		t, err = tcp.Connect(ctx, o)
		return t, func() {}, err
	}
	dev, err := qp.Open(m.Devices[m.Self])
	if err != nil {
		return nil, nil, err
	}
	done = func() { _ = dev.Close() }
	if t, err = rdma.Connect(ctx, rdma.Options{Options: o, Device: dev}); err != nil {
		done()
		return nil, nil, err
	}
	return t, done, nil
}

// An end is the data that the two ends of a queue pair exchange.
type end struct {
	Addr netip.Addr
	QPN  rocev2.QPN
	VA   uint64
	RKey uint32
}

const (
	chunk  = 1 << 20 // bytes of a WRITE
	writes = 256     // in flight
)

// write sends messages by RDMA WRITEs from one device to another. The last WRITE of each message
// has an immediate value, to notify the receiver.
func (m *member) write() error {
	dev, err := qp.Open(m.Devices[m.Self])
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(2 * writes)
	if err != nil {
		return err
	}
	mr, err := pd.RegMR(m.msg, qp.AccessLocalWrite|qp.AccessRemoteWrite)
	if err != nil {
		return err
	}
	q, err := pd.CreateQP(qp.Init{SendCQ: cq, RecvCQ: cq, MaxSendWR: writes, MaxRecvWR: writes, MaxSGE: 1, SignalAll: true})
	if err != nil {
		return err
	}
	if err := q.Modify(&qp.Attr{State: qp.StateInit, Access: qp.AccessRemoteWrite}, qp.MaskInit); err != nil {
		return err
	}
	attr := dev.Attr()
	there, bye, err := m.introduce(end{attr.Addr, q.QPN(), mr.Addr(), mr.RKey()})
	if err != nil {
		return err
	}
	defer bye.Close()
	// Each end sends from PSN 1 on.
	err = q.Modify(&qp.Attr{State: qp.StateRTR, DestAddr: there.Addr, DestQPN: there.QPN, PathMTU: attr.ActiveMTU, RQPSN: 1, MinRNRTimer: 20}, qp.MaskRTR)
	if err == nil {
		err = q.Modify(&qp.Attr{State: qp.StateRTS, SQPSN: 1, Timeout: 15, RetryCnt: 7, RNRRetry: 6}, qp.MaskRTS)
	}
	if err != nil {
		return err
	}
	if m.Self == 0 {
		if err := m.out.Encode(said{}); err != nil {
			return err
		}
		return m.each(func() error { return m.writeAll(q, cq, mr, &there) })
	}
	for range writes { // one per message; there are fewer
		if err := q.PostRecv(&qp.RecvWR{}); err != nil {
			return err
		}
	}
	if err := m.out.Encode(said{}); err != nil {
		return err
	}
	go func() { // the root is done
		_, _ = bye.Read(make([]byte, 1))
		_ = dev.Close()
	}()
	for {
		if err := await(cq, 1); errors.Is(err, qp.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		if err := m.report(0, now()); err != nil {
			return err
		}
	}
}

// writeAll writes one message and waits until it has arrived.
func (m *member) writeAll(q qp.QP, cq qp.CQ, mr qp.MR, there *end) error {
	begin, posted := now(), 0
	for off := 0; off < len(m.msg); off += chunk {
		if posted == writes {
			if err := await(cq, 1); err != nil {
				return err
			}
			posted--
		}
		wr := qp.SendWR{Opcode: qp.OpWrite, SGEs: []qp.SGE{mr.SGE(off, min(chunk, len(m.msg)-off))}, RemoteAddr: there.VA + uint64(off), RKey: there.RKey}
		if off+chunk >= len(m.msg) {
			wr.Opcode = qp.OpWriteImm
		}
		if err := q.PostSend(&wr); err != nil {
			return err
		}
		posted++
	}
	if err := await(cq, posted); err != nil {
		return err
	}
	return m.report(begin, now())
}

// await waits for that many requests.
func await(cq qp.CQ, n int) error {
	var wcs [1]qp.WC
	for n > 0 {
		if err := cq.Wait(context.Background()); err != nil {
			return err
		}
		k, err := cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		if k > 0 {
			n--
			if err := wcs[0].Status.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// introduce exchanges the ends' data, and returns a connection that ends with the other process.
func (m *member) introduce(mine end) (there end, c net.Conn, err error) {
	if m.Self == 0 {
		l, err := net.Listen("tcp", m.Members[0])
		if err != nil {
			return there, nil, err
		}
		defer l.Close()
		if c, err = l.Accept(); err != nil {
			return there, nil, err
		}
	} else if c, err = dial(m.Members[0]); err != nil {
		return there, nil, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if err = json.NewEncoder(c).Encode(mine); err == nil {
		err = json.NewDecoder(c).Decode(&there)
	}
	return there, c, errors.Join(err, c.SetDeadline(time.Time{}))
}
