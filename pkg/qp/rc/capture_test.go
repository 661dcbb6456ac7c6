package rc_test

import (
	"bytes"
	"testing"

	"github.com/mcrdma/mcrdma/internal/pcapfile"
	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// A captured is a frame of a capture.
type captured struct {
	data []byte
	ip   rocev2.IPv4
	udp  rocev2.UDP
	in   rc.In
}

func parseCaptured(t *testing.T, data []byte) *captured {
	c := &captured{data: data}
	var eth rocev2.Ethernet
	ip, err := eth.Parse(data)
	var body []byte
	if err == nil {
		body, err = rocev2.ParseIPv4UDP(ip, &c.ip, &c.udp)
	}
	if err == nil {
		c.in.Payload, err = c.in.Headers.Parse(body[:len(body)-rocev2.ICRCLen])
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// is holds out, sent in c's place with its Ethernet and IP headers, against c, byte for byte with
// the ICRC. But for one bit: MigReq is 1 in the state that IBTA 1.2.1 calls Migrated, and the kernel
// sends 0.
func (c *captured) is(t *testing.T, out *rc.Out) {
	t.Helper()
	out.MigReq = c.in.MigReq
	b := c.udp.AppendTo(c.ip.AppendTo(bytes.Clone(c.data[:rocev2.EthernetLen])))
	b = out.AppendTo(b)
	for _, p := range out.Payload {
		b = append(b, p...)
	}
	b = append(b, make([]byte, int(out.Pad)+rocev2.ICRCLen)...)
	rocev2.PutICRC(b[rocev2.EthernetLen:])
	if !bytes.Equal(b, c.data) {
		t.Errorf("sends  %x\nkernel %x", b, c.data)
	}
}

// aRegion is memory at an address, with a key.
type aRegion struct {
	rkey uint32
	va   uint64
	b    []byte
}

func (r *aRegion) Remote(rkey uint32, va uint64, n int, need qp.Access) ([]byte, bool) {
	if rkey != r.rkey || need != qp.AccessRemoteRead || va < r.va || va-r.va > uint64(len(r.b)) || n > len(r.b)-int(va-r.va) {
		return nil, false
	}
	return r.b[va-r.va:][:n], true
}

// The kernel's READs: a requester sends its requests and takes its responses, a responder takes its
// requests and sends its responses.
func TestCapturedReads(t *testing.T) {
	frames, err := (&pcapfile.Tail{Name: "../../rocev2/testdata/rc_read.pcap"}).Read()
	if err != nil {
		t.Fatal(err)
	}
	var requests, responses []*captured
	var data []byte
	for _, f := range frames {
		c := parseCaptured(t, f.Data)
		if c.in.Opcode == rocev2.ReadRequest {
			requests = append(requests, c)
		} else {
			responses = append(responses, c)
			data = append(data, c.in.Payload...)
		}
	}
	if len(requests) != 5 || len(responses) != 15 {
		t.Fatalf("%d requests, %d responses", len(requests), len(responses))
	}
	reth, size := requests[0].in.RETH, int(requests[0].in.RETH.Length)
	cfg := rc.Config{PathMTU: 1024, Access: qp.AccessRemoteRead, MaxRdAtomic: 5, MaxDestRdAtomic: 5, SignalAll: true,
		SQPSN: requests[0].in.PSN, RQPSN: requests[0].in.PSN, RemoteQPN: requests[0].in.DestQP}
	requester := rc.NewQP(cfg, nil)
	requester.StartSend(&cfg)
	cfg.RemoteQPN = responses[0].in.DestQP
	responder := rc.NewQP(cfg, &aRegion{reth.RKey, reth.VA, data[:size]})

	var out rc.Out
	var bufs [5][]byte
	for i, c := range requests {
		bufs[i] = make([]byte, size)
		wr := qp.SendWR{ID: uint64(i), Opcode: qp.OpRead, RemoteAddr: reth.VA, RKey: reth.RKey}
		if err := requester.PostSend(&wr, [][]byte{bufs[i]}); err != nil {
			t.Fatal(err)
		}
		if !requester.Next(0, &out) {
			t.Fatal("no request")
		}
		c.is(t, &out)
		responder.Handle(&c.in, 0)
	}
	for _, c := range responses {
		if !responder.Next(0, &out) {
			t.Fatal("no response")
		}
		c.is(t, &out)
		requester.Handle(&c.in, 0)
	}
	if requester.Next(0, &out) || responder.Next(0, &out) {
		t.Errorf("sends %+v besides", out.Headers)
	}
	var wc qp.WC
	for i, b := range bufs {
		if !requester.NextSendWC(&wc) || wc.ID != uint64(i) || wc.Status != qp.StatusSuccess || wc.Opcode != qp.WCRead || int(wc.ByteLen) != size {
			t.Errorf("completion %+v", wc)
		}
		if !bytes.Equal(b, data[i*size:][:size]) {
			t.Errorf("READ %d: the data differ", i)
		}
	}
}
