package rc_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/qp/rc"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

// TestScripts runs testdata/*: one queue pair whose peer and clock are the
// script. After every command it prints the queue pair's output: packets,
// completions, and its deadline.
//
//	new    [mtu= window= ackevery= psn= rpsn= timeout= retry= rnr= rnrtimer= rd= destrd= nocc nowrite noread]
//	start  [psn= timeout= retry= rnr= rd=]   the step to RTS, which new rtr leaves out
//	post   id= op=SEND|RDMA_WRITE|… len= [cut=] [imm=] [unsignaled] [fence] [solicited] [deferred]     its memory is in two pieces, the first of cut bytes
//	recv   id= len=
//	ack    psn= [msn=]          an ACK arrives
//	nak    psn= code=sequence|invalid|access|operation|rnr:N
//	pkt    op= psn= [len= pad= ackreq va= rkey= dma= imm= syndrome= ce]   a request or READ response arrives
//	region len=                 the region is this long from now on
//	batch  (several lines of the above, nothing is pulled in between)
//	wait   10us                 time passes; timers that are due expire
//	cnp | error | drain | undrain
//	limit  n=                   so many packets more may go
//	expect 10us                 acknowledgements may take so long
//	access [write] [read]       what the peer may do
//	rnrtimer n=                 the code of the RNR NAKs
//	flight                      prints what is on its way, the next PSNs, and whose memory is in use
//	twin                        the state continues in a new queue pair with the same posted requests
//	deadline                    prints what it is before the output is pulled
//	stats  [responder]          prints the requester's, or the responder's, counters that are not 0, and the packets that are of neither half
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			if d.Cmd == "batch" {
				for line := range strings.Lines(d.Input) {
					s.do(strings.Fields(line))
				}
			} else {
				line := d.Cmd
				for _, a := range d.CmdArgs {
					line += " " + a.String()
				}
				s.do(strings.Fields(line))
			}
			return s.pull()
		})
	})
}

type script struct {
	t       *testing.T
	q       *rc.QP
	now     time.Duration
	memory  []byte // the one region: va 4096, rkey 7
	posted  []posted
	done    [][]string // commands that a twin has, too
	notes   string     // printed first
	failure error
}

// posted is the memory of a request.
type posted struct {
	id  string
	mem []byte
}

// inUse returns the requests whose memory the queue pair reports as in use.
func (s *script) inUse() (ids []string) {
	for _, p := range s.posted {
		if s.q.Holds(func(mem []byte) bool { return len(mem) > 0 && &mem[len(mem)-1] == &p.mem[len(p.mem)-1] }) {
			ids = append(ids, p.id)
		}
	}
	return ids
}

func (s *script) duration(word string) time.Duration {
	d, err := time.ParseDuration(word)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func access(write, read bool) (a qp.Access) {
	if write {
		a |= qp.AccessRemoteWrite
	}
	if read {
		a |= qp.AccessRemoteRead
	}
	return a
}

func (s *script) Remote(rkey uint32, va uint64, n int, _ qp.Access) ([]byte, bool) {
	if rkey != 7 || va < 4096 || va+uint64(n) > 4096+uint64(len(s.memory)) {
		return nil, false
	}
	return s.memory[va-4096:][:n], true
}

// args holds the key=value words of a command.
type args map[string]string

func (a args) num(key string, def int) int {
	v, ok := a[key]
	if !ok {
		return def
	}
	var n int
	if _, err := fmt.Sscan(v, &n); err != nil {
		panic(fmt.Sprintf("%s=%s: %v", key, v, err))
	}
	return n
}

func (a args) has(key string) bool { _, ok := a[key]; return ok }

func (s *script) do(words []string) {
	a := args{}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		a[k] = v
	}
	switch words[0] {
	case "new", "post", "recv":
		s.done = append(s.done, words)
	}
	switch words[0] {
	case "new":
		s.done = s.done[len(s.done)-1:]
		s.create(a)
	case "start":
		cfg := config(a)
		s.q.StartSend(&cfg)
	case "post":
		wr := qp.SendWR{ID: uint64(a.num("id", 0)), Imm: uint32(a.num("imm", 0)), RemoteAddr: 4096, RKey: 7,
			Flags: qp.FlagSignaled}
		for wr.Opcode = 0; wr.Opcode.String() != a["op"]; wr.Opcode++ {
			if wr.Opcode > qp.OpFetchAdd {
				s.t.Fatalf("op %q", a["op"])
			}
		}
		if a.has("unsignaled") {
			wr.Flags = 0
		}
		if a.has("fence") {
			wr.Flags |= qp.FlagFence
		}
		if a.has("solicited") {
			wr.Flags |= qp.FlagSolicited
		}
		if a.has("deferred") {
			wr.Flags |= qp.FlagDeferred
		}
		mem, cut := make([]byte, a.num("len", 0)), a.num("cut", 0)
		s.posted = append(s.posted, posted{a["id"], mem})
		s.failure = s.q.PostSend(&wr, [][]byte{mem[:cut], mem[cut:]})
	case "recv":
		mem := make([]byte, a.num("len", 0))
		s.posted = append(s.posted, posted{a["id"], mem})
		s.failure = s.q.PostRecv(uint64(a.num("id", 0)), [][]byte{mem})
	case "region":
		s.memory = s.memory[:a.num("len", 0)]
	case "ack", "nak", "cnp", "pkt":
		in := packet(s.t, words[0], a)
		s.q.Handle(&in, s.now)
	case "wait":
		s.now += s.duration(words[1])
		s.q.Tick(s.now)
	case "expect":
		s.q.Expect(s.duration(words[1]))
	case "access":
		s.q.SetAccess(access(a.has("write"), a.has("read")))
	case "rnrtimer":
		s.q.SetMinRNRTimer(uint8(a.num("n", 0)))
	case "flight":
		sent, posted := s.q.Unacknowledged()
		sq, rq := s.q.PSNs()
		s.notes = fmt.Sprintf("%+v, sent %d of %d, PSNs %d and %d, uses memory of %v\n", s.q.Flight(s.now), sent, posted, sq, rq, s.inUse())
	case "limit":
		s.q.Limit(a.num("n", 0))
	case "twin":
		s.twin()
	case "error":
		s.q.SetError()
	case "drain":
		s.q.Drain(true)
	case "undrain":
		s.q.Drain(false)
	case "deadline":
		s.notes = fmt.Sprintf("until then, wake at %v\n", s.q.Deadline())
	case "stats":
		s.printStats(a.has("responder"))
	default:
		s.t.Fatalf("unknown command %q", words[0])
	}
}

// twin gives the queue pair's state to a new one. That does not say again what is complete already.
func (s *script) twin() {
	now, memory, state, did := s.now, s.memory, s.q.AppendState(nil, s.now), s.done
	for _, words := range did {
		s.do(words)
	}
	s.now, s.memory, s.done = now, memory, did
	if rest := s.q.LoadState(append(state, 1, 2, 3), s.now); len(rest) != 3 {
		s.t.Errorf("LoadState leaves %d bytes of 3", len(rest))
	}
	for n := range state {
		if !panics(func() { s.q.LoadState(state[:n:n], s.now) }) {
			s.t.Errorf("LoadState takes %d of %d bytes", n, len(state))
		}
	}
	s.q.LoadState(state, s.now)
	if again := s.q.AppendState(nil, s.now); !bytes.Equal(again, state) {
		s.t.Errorf("the twin's state is %x, want %x", again, state)
	}
	var wc qp.WC
	for s.q.NextSendWC(&wc) || s.q.NextRecvWC(&wc) {
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func config(a args) rc.Config {
	return rc.Config{
		MaxSendWR: 8, MaxRecvWR: 8, LocalQPN: 0x11, RemoteQPN: 0x22, PathMTU: a.num("mtu", 256),
		Window: a.num("window", 8), AckEvery: a.num("ackevery", 1000),
		SQPSN: rocev2.PSN(a.num("psn", 100)), RQPSN: rocev2.PSN(a.num("rpsn", 500)),
		Timeout: uint8(a.num("timeout", 10)), RetryCnt: uint8(a.num("retry", 2)), RNRRetry: uint8(a.num("rnr", 2)),
		MinRNRTimer: uint8(a.num("rnrtimer", 12)), Access: access(!a.has("nowrite"), !a.has("noread")),
		MaxRdAtomic: uint8(a.num("rd", 0)), MaxDestRdAtomic: uint8(a.num("destrd", 0)),
		CC: rc.CCParams{LineRate: 1e9, Disable: a.has("nocc")},
	}
}

func (s *script) create(a args) {
	cfg := config(a)
	s.now, s.posted, s.memory = 0, nil, make([]byte, 1024, 8192)
	s.q = rc.NewQP(cfg, s)
	if !a.has("rtr") {
		s.q.StartSend(&cfg)
	}
}

func (s *script) printStats(responder bool) {
	var parts []string
	v := reflect.ValueOf(s.q.Stats().Requester)
	if responder {
		v = reflect.ValueOf(s.q.Stats().Responder)
	}
	for i := range v.NumField() {
		if n := v.Field(i).Uint(); n > 0 {
			parts = append(parts, fmt.Sprint(v.Type().Field(i).Name, " ", n))
		}
	}
	if n := s.q.Stats().Unexpected; n > 0 {
		parts = append(parts, fmt.Sprint("Unexpected ", n))
	}
	if len(parts) == 0 {
		parts = []string{"nothing"}
	}
	s.notes = strings.Join(parts, ", ") + "\n"
}

func packet(t *testing.T, kind string, a args) rc.In {
	var in rc.In
	in.PKey, in.DestQP, in.PSN = rocev2.DefaultPKey, 0x11, rocev2.PSN(a.num("psn", 0))
	in.CE = a.has("ce")
	switch kind {
	case "ack":
		in.Opcode, in.AETH = rocev2.Acknowledge, rocev2.AETH{Syndrome: rocev2.AckNoLimit, MSN: uint32(a.num("msn", 0))}
	case "cnp":
		in.Opcode = rocev2.CNP
	case "nak":
		in.Opcode = rocev2.Acknowledge
		in.AETH.Syndrome = map[string]rocev2.Syndrome{"sequence": rocev2.NakSequence, "invalid": rocev2.NakInvalidRequest,
			"access": rocev2.NakRemoteAccess, "operation": rocev2.NakRemoteOperation, "reserved": 0x7f}[a["code"]]
		if n, ok := strings.CutPrefix(a["code"], "rnr:"); ok {
			in.AETH.Syndrome = rocev2.RNRSyndrome(uint8(args{"n": n}.num("n", 0)))
		}
	case "pkt":
		for op := 0; op < 256 && rocev2.Opcode(op).String() != a["op"]; op++ {
			in.Opcode = rocev2.Opcode(op + 1)
		}
		if in.Opcode.String() != a["op"] {
			t.Fatalf("opcode %q", a["op"])
		}
		in.AckReq, in.Imm = a.has("ackreq"), uint32(a.num("imm", 0))
		in.RETH = rocev2.RETH{VA: uint64(a.num("va", 4096)), RKey: uint32(a.num("rkey", 7)), Length: uint32(a.num("dma", 0))}
		in.AETH.Syndrome = rocev2.Syndrome(a.num("syndrome", 0x1f))
		in.Payload = make([]byte, a.num("len", 0))
	}
	return in
}

// pull prints all output of the queue pair.
func (s *script) pull() string {
	var b strings.Builder
	b.WriteString(s.notes)
	s.notes = ""
	if s.failure != nil {
		fmt.Fprintf(&b, "error: %v\n", s.failure)
		s.failure = nil
	}
	var out rc.Out
	for s.q.Next(s.now, &out) {
		fmt.Fprintf(&b, "%8v -> %v psn %d", s.now, out.Opcode, out.PSN)
		switch {
		case out.Opcode.HasAETH():
			fmt.Fprintf(&b, " syndrome %#02x msn %d", uint8(out.AETH.Syndrome), out.AETH.MSN)
			if out.Opcode != rocev2.Acknowledge {
				fmt.Fprintf(&b, " len %d", out.PayloadLen)
			}
		case out.Opcode.IsRequest(), out.Opcode == rocev2.ReadRespMiddle:
			fmt.Fprintf(&b, " len %d", out.PayloadLen)
		}
		if out.Opcode.HasRETH() {
			fmt.Fprintf(&b, " dma %d", out.RETH.Length)
			if out.Opcode == rocev2.ReadRequest {
				fmt.Fprintf(&b, " va %d", out.RETH.VA)
			}
		}
		if len(out.Payload) > 1 {
			fmt.Fprintf(&b, " pieces %d", len(out.Payload))
		}
		if out.Pad > 0 {
			fmt.Fprintf(&b, " pad %d", out.Pad)
		}
		if out.AckReq {
			b.WriteString(" ackreq")
		}
		if out.Solicited {
			b.WriteString(" solicited")
		}
		if out.Retransmit {
			b.WriteString(" again")
		}
		b.WriteByte('\n')
	}
	var wc qp.WC
	for s.q.NextSendWC(&wc) {
		fmt.Fprintf(&b, "sent %d: %v, %v\n", wc.ID, wc.Opcode, wc.Status)
	}
	for s.q.NextRecvWC(&wc) {
		fmt.Fprintf(&b, "received %d: %v, %v, %d bytes", wc.ID, wc.Opcode, wc.Status, wc.ByteLen)
		if wc.HasImm {
			fmt.Fprintf(&b, ", imm %d", wc.Imm)
		}
		b.WriteByte('\n')
	}
	if status, ev, failed := s.q.Failed(); failed || ev != 0 {
		fmt.Fprintf(&b, "queue pair failed: %v", status)
		if ev != 0 {
			fmt.Fprintf(&b, ", event %v", ev)
		}
		b.WriteByte('\n')
	}
	if d := s.q.Deadline(); d != rc.Never {
		fmt.Fprintf(&b, "wake at %v\n", d)
	}
	return b.String()
}
