package p4rtserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func (s *session) packetOut(r *rig, text_ string) {
	s.t.Helper()
	s.send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Packet{Packet: text(r, &p4.PacketOut{}, text_)}})
}

const goodOut = `payload: "hello" metadata { metadata_id: 1 value: "\001\001" } metadata { metadata_id: 3 value: "\n\274" } metadata { metadata_id: 2 value: "\000\005" }`

func (b *bench) frames() [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.injected)
}

// port (9 bits) 0x101, class (3) 5, tag (12) 0xabc: 100000001 101 101010111100.
func TestPacketOut(t *testing.T) {
	r, s := ready(t)
	s.packetOut(r, goodOut)
	eventually(t, "the packet is injected", func() bool { return len(r.bench.frames()) == 1 })
	if got, want := r.bench.frames()[0], []byte("\x80\xda\xbchello"); !bytes.Equal(got, want) {
		t.Errorf("frame %x, want %x", got, want)
	}
	eventually(t, "it is counted", func() bool { return r.server.Stats().PacketOuts == 1 })
}

func TestBadPacketOuts(t *testing.T) {
	r, s := ready(t)
	backup := r.open(0)
	backup.next()
	stranger := r.channel()
	for i, c := range []struct {
		from *session
		out  string
		code codes.Code
		text string
	}{
		{backup, goodOut, codes.PermissionDenied, "only the primary may send a packet-out"},
		{stranger, goodOut, codes.PermissionDenied, "only the primary may send a packet-out"},
		{s, `payload: "x"`, codes.InvalidArgument, "packet metadata packet_out: field 1 (port) is missing"},
		{s, `metadata { metadata_id: 1 value: "\001" } metadata { metadata_id: 1 value: "\001" }`, codes.InvalidArgument, "field 1 (port) is given twice"},
		{s, goodOut + `metadata { metadata_id: 7 value: "\001" }`, codes.InvalidArgument, "there is no field with id 7"},
		{s, `metadata { metadata_id: 1 value: "\002\000" } metadata { metadata_id: 2 value: "\001" } metadata { metadata_id: 3 value: "\001" }`, codes.InvalidArgument, "field 1 (port): value 0x0200 needs 10 bits, the field has 9"},
		{s, `metadata { metadata_id: 1 } metadata { metadata_id: 2 value: "\001" } metadata { metadata_id: 3 value: "\001" }`, codes.InvalidArgument, "field 1 (port): the value is empty"},
	} {
		c.from.packetOut(r, c.out)
		e := c.from.next().GetError()
		if codes.Code(e.GetCanonicalCode()) != c.code || !bytes.Contains([]byte(e.GetMessage()), []byte(c.text)) || e.GetPacketOut().GetPacketOut() == nil {
			t.Errorf("%d: %v, want %v with %q and the packet", i, e, c.code, c.text)
		}
	}
	r.bench.mu.Lock()
	r.bench.refuse = errors.New("the link is on fire")
	r.bench.mu.Unlock()
	s.packetOut(r, goodOut)
	if e := s.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.ResourceExhausted || e.GetMessage() != "packet-out: the link is on fire" {
		t.Errorf("error %v", e)
	}
	if n := len(r.bench.frames()); n != 0 {
		t.Errorf("%d packets injected", n)
	}
	if n := r.server.Stats().PacketOutErrors; n != 8 {
		t.Errorf("%d errors counted", n)
	}
}

func TestPacketOutWithoutPipeline(t *testing.T) {
	r := newRig(t, Options{})
	s := r.open(1)
	s.next()
	s.packetOut(r, `payload: "x"`)
	if e := s.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.FailedPrecondition {
		t.Errorf("error %v", e)
	}
}

func TestPacketsWithoutHeaders(t *testing.T) {
	r, s := ready(t)
	c := r.config()
	c.P4Info.ControllerPacketMetadata = nil
	r.set(commitNew, c)
	s.packetOut(r, `payload: "hello"`)
	eventually(t, "the packet is injected", func() bool { return len(r.bench.frames()) == 1 })
	if got := r.bench.frames()[0]; string(got) != "hello" {
		t.Errorf("frame %q", got)
	}
	s.packetOut(r, goodOut)
	if e := s.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument {
		t.Errorf("error %v", e)
	}
	r.bench.packetIn([]byte("abc"))
	if p := s.next().GetPacket(); string(p.GetPayload()) != "abc" || len(p.GetMetadata()) != 0 {
		t.Errorf("packet-in %v", p)
	}
}

// ethernet is a frame; with ip, to 10.1.2.3.
func ethernet(src byte, ip bool) []byte {
	f := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, src, 0x90, 0}
	if ip {
		f[12], f[13] = 8, 0
		f = append(f, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 10, 1, 2, 3)
	}
	return append(f, "payload"...)
}

// A packet that the program sends to the CPU comes with the header's fields:
// port, clone = 1, and the low 70 bits of the argument of note.
func TestPacketIn(t *testing.T) {
	r, s := ready(t)
	backup := r.open(0)
	backup.next()
	r.write(`INSERT `+route10+`action { action { action_id: @In.punt } } }`,
		`MODIFY table_entry { table_id: @In.acl is_default_action: true action { action { action_id: @In.learn } } }`)
	frame := ethernet(9, true)
	r.bench.process(0x105, frame)
	p := s.next().GetPacket()
	if !bytes.Equal(p.GetPayload(), frame) {
		t.Errorf("payload %x, want %x", p.GetPayload(), frame)
	}
	want := [][]byte{{1, 5}, {1}, {0x2f, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef}}
	for i, m := range p.GetMetadata() {
		if m.GetMetadataId() != uint32(i+1) || !bytes.Equal(m.GetValue(), want[i]) {
			t.Errorf("metadata %v, want %x", m, want[i])
		}
	}
	if len(p.GetMetadata()) != 3 {
		t.Errorf("metadata %v", p.GetMetadata())
	}
	backup.expectSilence()

	r.bench.packetIn([]byte("short")) // shorter than the header
	s.close()
	backup.expectArbitration(codes.NotFound, 1)
	r.bench.packetIn(make([]byte, 100)) // no controller there
	if st := r.server.Stats(); st.PacketIns != 1 || st.PacketInDrops != 2 {
		t.Errorf("stats %+v", st)
	}
}

// A packet-out goes through the program with its header.
func TestPacketOutThroughTheProgram(t *testing.T) {
	r, s := ready(t)
	s.packetOut(r, goodOut)
	eventually(t, "the packet is injected", func() bool { return len(r.bench.frames()) == 1 })
	frame := append(r.bench.frames()[0][:3:3], ethernet(1, false)...)
	if got := r.bench.process(cpuPort, frame); !bytes.Equal(got[0x101], ethernet(1, false)) || len(got) != 1 {
		t.Errorf("left by %x", got)
	}
}

// A controller that does not read loses packets; it delays no other, and its
// arbitration messages are not lost.
func TestSlowController(t *testing.T) {
	r := newRig(t, Options{Queue: 8})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	slow, err := r.client.StreamChannel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.Send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Arbitration{Arbitration: arbitration(1)}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is the primary", func() bool { return len(*r.server.primaries.Load()) == 1 })
	r.set(commitNew, r.config())
	const n = 10000
	for range n {
		r.bench.packetIn(make([]byte, 1000)) // more than the flow control window
	}
	st := r.server.Stats()
	if st.PacketIns+st.PacketInDrops != n || st.PacketInDrops < n/2 {
		t.Errorf("stats %+v", st)
	}
	other := r.open(2)
	other.expectArbitration(codes.OK, 2) // not held up
	// What was queued comes when it is read, the news of the new primary too.
	got, news := 0, false
	for got < int(st.PacketIns) || !news {
		m, err := slow.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetPacket() != nil {
			got++
		}
		news = news || m.GetArbitration().GetStatus().GetCode() == int32(codes.AlreadyExists)
	}
}

// A controller that never reads arbitration messages is cut off.
func TestDeafController(t *testing.T) {
	st := &stream{ctl: make(chan *p4.StreamMessageResponse, 1), end: make(chan error, 1)}
	st.control(nil)
	select {
	case err := <-st.end:
		t.Fatalf("ended by %v", err)
	default:
	}
	st.control(nil)
	expectError(t, <-st.end, codes.ResourceExhausted, "arbitration messages wait")
}

// A controller that neither reads nor writes does not keep the server from
// closing. (It does keep gRPC from stopping gracefully, until it goes.)
func TestCloseWithStuckController(t *testing.T) {
	r := newRig(t, Options{Queue: 5000})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stuck, err := r.client.StreamChannel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stuck.Send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Arbitration{Arbitration: arbitration(1)}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is the primary", func() bool { return len(*r.server.primaries.Load()) == 1 })
	r.set(commitNew, r.config())
	for range 5000 {
		r.bench.packetIn(make([]byte, 1000))
	}
	closed := make(chan struct{})
	go func() { r.server.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("Close hangs")
	}
}

func TestOtherStreamMessages(t *testing.T) {
	r, s := ready(t)
	a, err := anypb.New(&p4.Uint128{})
	if err != nil {
		t.Fatal(err)
	}
	s.send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Other{Other: a}})
	if e := s.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.Unimplemented || e.GetOther().GetOther() == nil {
		t.Errorf("error %v", e)
	}
	s.send(&p4.StreamMessageRequest{})
	if e := s.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument || e.GetOther() == nil {
		t.Errorf("error %v", e)
	}
	ack := func(s *session, id uint32) *p4.StreamError {
		s.send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_DigestAck{DigestAck: &p4.DigestListAck{DigestId: id}}})
		return s.next().GetError()
	}
	if e := ack(s, 5); codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument || e.GetDigestListAck().GetDigestListAck().GetDigestId() != 5 {
		t.Errorf("error %v", e)
	}
	backup := r.open(0)
	backup.next()
	if e := ack(backup, r.ids["learn_t"]); codes.Code(e.GetCanonicalCode()) != codes.PermissionDenied {
		t.Errorf("error %v", e)
	}
}

func TestDigests(t *testing.T) {
	r, s := ready(t)
	stamp := time.Now().UnixNano()
	r.write(`MODIFY table_entry { table_id: @In.acl is_default_action: true action { action { action_id: @In.learn } } }`)
	r.bench.process(1, ethernet(1, false)) // not enabled: nothing comes of it
	r.write(`INSERT digest_entry { digest_id: @learn_t config { max_list_size: 2 max_timeout_ns: 1000000000000 ack_timeout_ns: 1000000000000 } }`)
	for _, src := range []byte{1, 1, 2, 2, 3} {
		r.bench.process(uint16(src), ethernet(src, false))
	}
	list := s.next().GetDigest()
	if list.GetDigestId() != r.ids["learn_t"] || list.GetTimestamp() < stamp || len(list.GetData()) != 2 {
		t.Fatalf("list %v", list)
	}
	for i, d := range list.GetData() {
		m := d.GetStruct().GetMembers()
		if len(m) != 2 || !bytes.Equal(m[0].GetBitstring(), []byte{byte(i + 1)}) || !bytes.Equal(m[1].GetBitstring(), []byte{2, 0, 0, 0, 0, byte(i + 1)}) {
			t.Errorf("digest %v", d)
		}
	}
	// Known ones do not come again until they are acknowledged.
	r.bench.process(1, ethernet(1, false))
	s.expectSilence()
	s.send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_DigestAck{DigestAck: &p4.DigestListAck{DigestId: list.GetDigestId(), ListId: list.GetListId()}}})
	s.expectSilence() // and the acknowledgement has been dealt with
	r.bench.process(1, ethernet(1, false))
	again := s.next().GetDigest() // 3 from before, and 1
	if len(again.GetData()) != 2 || again.GetListId() == list.GetListId() {
		t.Errorf("list %v", again)
	}
	eventually(t, "all are counted", func() bool { return r.server.Stats().Digests == 4 })
	r.write(`DELETE digest_entry { digest_id: @learn_t }`)
	r.bench.process(7, ethernet(7, false))
	s.expectSilence()
}

func TestDigestTimeout(t *testing.T) {
	r, s := ready(t)
	r.write(`MODIFY table_entry { table_id: @In.acl is_default_action: true action { action { action_id: @In.learn } } }`,
		`INSERT digest_entry { digest_id: @learn_t config { max_timeout_ns: 5000000 } }`)
	r.bench.process(1, ethernet(1, false))
	d := r.server.digests
	eventually(t, "the digest waits", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.learn[r.ids["learn_t"]].data) == 1
	})
	r.bench.pass(5 * time.Millisecond) // the bench's time; the timer runs on the real one
	if n := len(s.next().GetDigest().GetData()); n != 1 {
		t.Errorf("%d digests", n)
	}
	s.close()
	eventually(t, "no primary", func() bool { return len(*r.server.primaries.Load()) == 0 })
	r.bench.process(2, ethernet(2, false))
	eventually(t, "the digest is dropped", func() bool {
		r.bench.pass(5 * time.Millisecond)
		return r.server.Stats().DigestDrops == 1
	})
}

func TestIdleTimeouts(t *testing.T) {
	r, s := ready(t)
	stamp := time.Now().UnixNano()
	rule := func(prio int) string {
		return fmt.Sprintf(`table_entry { table_id: @In.acl match { field_id: 3 range { low: "\000" high: "\%03o" } } match { field_id: 4 exact { value: "\000" } } priority: %d `, prio, prio)
	}
	r.write(`INSERT `+rule(1)+limit3+`idle_timeout_ns: 1000 metadata: "one" controller_metadata: 1 }`,
		`INSERT `+rule(2)+limit3+`idle_timeout_ns: 1000000 }`,
		`INSERT `+rule(3)+limit3+`}`)
	r.bench.pass(500)
	r.expectRead(`table_entry { table_id: @In.acl priority: 1 time_since_last_hit {} }`,
		rule(1)+limit3+`idle_timeout_ns: 1000 metadata: "one" controller_metadata: 1 time_since_last_hit { elapsed_ns: 500 } }`)
	r.expectRead(`table_entry { table_id: @In.acl priority: 3 time_since_last_hit {} }`,
		rule(3)+limit3+`time_since_last_hit { elapsed_ns: 500 } }`)
	r.bench.process(1, ethernet(1, false)) // hits the first of those that match by priority: 3
	r.expectRead(`table_entry { table_id: @In.acl priority: 3 time_since_last_hit {} }`,
		rule(3)+limit3+`time_since_last_hit {} }`)
	r.bench.pass(600)
	n := s.next().GetIdleTimeoutNotification()
	if n.GetTimestamp() < stamp || len(n.GetTableEntry()) != 1 {
		t.Fatalf("notification %v", n)
	}
	want := r.entity(rule(1) + `idle_timeout_ns: 1000 metadata: "one" controller_metadata: 1 }`).GetTableEntry()
	if got := n.GetTableEntry()[0]; !proto.Equal(got, want) {
		t.Errorf("entry %v, want %v", got, want)
	}
	r.bench.pass(999)
	r.bench.pass(1) // another time-out: reported once more
	if got := s.next().GetIdleTimeoutNotification().GetTableEntry(); len(got) != 1 || !proto.Equal(got[0], want) {
		t.Errorf("entries %v, want %v", got, want)
	}
	s.close()
	eventually(t, "no primary", func() bool { return len(*r.server.primaries.Load()) == 0 })
	r.bench.pass(10 * time.Second)
	if st := r.server.Stats(); st.IdleEntries != 2 || st.IdleDrops == 0 {
		t.Errorf("stats %+v", st)
	}
}
