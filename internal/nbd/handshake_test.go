package nbd

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

const fixed = flagFixedNewstyle | flagNoZeroes

// TestOptions: what each option is answered with, one after the other on one connection.
func TestOptions(t *testing.T) {
	l := newPipes()
	m := newMemory(Info{Name: "vol", Description: "a\x00 volume", Size: 1 << 20})
	config := only(m, newMemory(Info{Name: "odd", Size: 100, MinBlock: 512}))
	open := config.Open
	config.Open = func(ctx context.Context, c Client, name string) (Export, error) {
		switch name {
		case "secret":
			return nil, fmt.Errorf("not for you: %w", EPERM)
		case "leaving":
			return nil, ESHUTDOWN
		}
		return open(ctx, c, name)
	}
	start(t, config, l)
	c := newClient(t, l.dial()).greet(fixed)
	long := strings.Repeat("x", maxName+1)
	allocation := "\x00\x00\x00\x00base:allocation"
	for i, s := range []struct {
		option int
		data   []byte
		want   uint32
		text   string   // of the last reply
		before []string // replies before it
	}{
		{99, []byte("abc"), repErrUnsup, "option 99 is not known", nil},
		{11, nil, repErrUnsup, "", nil},
		{optList, []byte("x"), repErrInvalid, "no data", nil},
		{optList, nil, repAck, "", []string{"\x00\x00\x00\x03vola volume", "\x00\x00\x00\x03odd"}},
		{optStartTLS, nil, repErrPolicy, "does not offer TLS", nil},
		{optSetMetaContext, join(str("vol"), be32(0)), repErrInvalid, "structured replies", nil},
		{optListMetaContext, join(str("vol"), be32(0)), repErrInvalid, "structured replies", nil},
		{optStructuredReply, []byte{0}, repErrInvalid, "no data", nil},
		{optStructuredReply, nil, repAck, "", nil},
		{optListMetaContext, join(str("vol"), be32(0)), repAck, "", []string{allocation}},
		{optListMetaContext, join(str("vol"), be32(1), str("base:")), repAck, "", []string{allocation}},
		{optListMetaContext, join(str("vol"), be32(1), str("qemu:")), repAck, "", nil},
		{optListMetaContext, join(str("none"), be32(0)), repErrUnknown, `"none": there is no such export`, nil},
		{optSetMetaContext, join(str("vol"), be32(1), str("base:")), repAck, "", nil},
		{optSetMetaContext, join(str("vol"), be32(2), str("x-y:z"), str(contextAllocation)), repAck, "",
			[]string{"\x00\x00\x00\x01base:allocation"}},
		{optSetMetaContext, join(str("vol"), be32(2), str("a:b")), repErrInvalid, "1 queries, and 2", nil},
		{optSetMetaContext, join(str("vol"), be32(1), be32(5), []byte("a:b")), repErrInvalid, "5 bytes in 3", nil},
		{optSetMetaContext, str("vol"), repErrInvalid, "number of queries", nil},
		{optSetMetaContext, []byte{0}, repErrInvalid, "length of a string", nil},
		{optInfo, nil, repErrInvalid, "length of a string", nil},
		{optInfo, str("vol"), repErrInvalid, "0 bytes after the name", nil},
		{optInfo, join(str("vol"), be16(1)), repErrInvalid, "2 bytes after the name", nil},
		{optInfo, join(str("vol"), be16(0), be16(0)), repErrInvalid, "4 bytes after the name", nil},
		{optInfo, join(str("a\x00b"), be16(0)), repErrInvalid, "NUL", nil},
		{optInfo, join(str("a\xff"), be16(0)), repErrInvalid, "UTF-8", nil},
		{optInfo, join(str(long), be16(0)), repErrInvalid, "at most 4096", nil},
		{optGo, join(be32(1<<31-1), []byte("vol"), be16(0)), repErrInvalid, "2147483647 bytes in 5", nil},
		{optGo, join(str("none"), be16(0)), repErrUnknown, "no such export", nil},
		{optGo, join(str("odd"), be16(0)), repErrUnknown, "not as NBD has them", nil},
		{optGo, join(str("secret"), be16(0)), repErrPolicy, "not for you", nil},
		{optGo, join(str("leaving"), be16(0)), repErrShutdown, "", nil},
		{optInfo, make([]byte, maxOption+100), repErrTooBig, "65636 bytes", nil},
		{optInfo, join(str("vol"), be16(4), be16(infoName), be16(77), be16(infoDescription), be16(infoBlockSize)), repAck, "", []string{
			"\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x09\xed", "\x00\x01vol", "\x00\x02a volume",
			"\x00\x03\x00\x00\x00\x01\x00\x00\x10\x00\x02\x00\x00\x00"}},
		{optAbort, []byte("ignored"), repAck, "", nil},
	} {
		kind, text, before := c.ask(s.option, s.data)
		if kind != s.want || !strings.Contains(text, s.text) || fmt.Sprintf("%q", before) != fmt.Sprintf("%q", s.before) {
			t.Errorf("%d: option %d: %#x %q, before %q; want %#x %q, before %q", i, s.option, kind, text, before, s.want, s.text, s.before)
		}
	}
	c.ended()
}

// TestHandshakeEnds: what makes the server hang up.
func TestHandshakeEnds(t *testing.T) {
	l := newPipes()
	s := start(t, only(newMemory(Info{Name: "vol", Size: 512})), l)
	for name, say := range map[string][]byte{
		"flags":             be32(4),
		"magic":             join(be32(fixed), []byte("IHAVEOPTIHAVEOPU")[8:], make([]byte, 8)),
		"no such export":    join(be32(fixed), option(optExportName, []byte("none"))),
		"no name":           join(be32(fixed), option(optExportName, []byte("a\x00"))),
		"name far too long": join(be32(fixed), option(optExportName, make([]byte, maxOption)))} {
		c := newClient(t, l.dial())
		c.read(18)
		c.write(say)
		c.ended()
		t.Log(name)
	}
	if n := s.Stats().Handshakes; n > 5 { // the last may not have been counted yet
		t.Errorf("%d failed handshakes", n)
	}
}

// TestHugeOption: an option whose data are too many to be skipped is refused before they come, and the connection ends.
func TestHugeOption(t *testing.T) {
	for _, kind := range []int{99, optGo, optExportName} {
		l := newPipes()
		s := start(t, only(newMemory(Info{Name: "vol", Size: 512})), l)
		c := newClient(t, l.dial()).greet(fixed)
		c.write(join(option(kind)[:12], be32(-1)))
		reply := c.read(20)
		text := c.read(int(binary.BigEndian.Uint32(reply[16:])))
		if binary.BigEndian.Uint32(reply[12:]) != repErrTooBig || string(text) != "4294967295 bytes of data; at most 65536" {
			t.Errorf("option %d: %x %s", kind, reply, text)
		}
		c.ended()
		if n := s.Stats().Requests; n != 0 {
			t.Error(n)
		}
	}
}

// TestExportName: the old end of the handshake, with and without 124 zeros, also of clients
// that do not know the fixed handshake.
func TestExportName(t *testing.T) {
	for _, flags := range []int{0, flagFixedNewstyle, flagNoZeroes, fixed} {
		l := newPipes()
		start(t, only(newMemory(Info{Name: "", Size: 4096})), l)
		c := newClient(t, l.dial()).greet(flags)
		c.write(option(optExportName))
		reply := c.read(10)
		if binary.BigEndian.Uint64(reply) != 4096 || binary.BigEndian.Uint16(reply[8:]) != hasFlags|sendFlush|sendFUA|sendTrim|sendWriteZeroes|canMultiConn|sendFastZero {
			t.Errorf("reply % x", reply)
		}
		if flags&flagNoZeroes == 0 {
			c.read(124)
		}
		if e := c.do(cmdFlush, 0, 0, 0); e != 0 {
			t.Error(e)
		}
	}
}

// TestStartTLS: what is allowed before TLS, and that STARTTLS discards what was negotiated.
func TestStartTLS(t *testing.T) {
	server := certificates(t, t.TempDir())
	server.ClientAuth = tls.NoClientCert
	upgrade := func(c *client) *client {
		t.Helper()
		if kind, text, _ := c.ask(optStartTLS); kind != repAck {
			t.Fatalf("STARTTLS: %#x %s", kind, text)
		}
		return newClient(t, tls.Client(c.conn, &tls.Config{InsecureSkipVerify: true}))
	}
	for _, required := range []bool{false, true} {
		t.Run(fmt.Sprintf("required=%v", required), func(t *testing.T) {
			l := newPipes()
			config := only(newMemory(Info{Name: "vol", Size: 4096}))
			config.TLS, config.RequireTLS = server, required
			start(t, config, l)
			c := newClient(t, l.dial()).greet(fixed)
			want := uint32(repAck)
			if required {
				want = repErrTLSReqd
			}
			for _, o := range [][]byte{option(optList), option(optStructuredReply),
				option(optSetMetaContext, str("vol"), be32(1), str(contextAllocation)), option(optInfo, str("vol"), be16(0))} {
				kind := int(binary.BigEndian.Uint32(o[8:]))
				if got, text, _ := c.ask(kind, o[optionLen:]); got != want {
					t.Errorf("option %d before TLS: %#x %s", kind, got, text)
				}
			}
			if kind, _, _ := c.ask(optStartTLS, []byte("x")); kind != repErrInvalid {
				t.Errorf("STARTTLS with data: %#x", kind)
			}
			c = upgrade(c)
			if kind, _, _ := c.ask(optStartTLS); kind != repErrInvalid {
				t.Errorf("STARTTLS within TLS: %#x", kind)
			}
			c.must(optGo, str("vol"), be16(0))
			c.write(req(cmdBlockStatus, 0, 1, 0, 512))
			if _, e := c.simple(); e != EINVAL { // a simple reply: what was agreed upon before is forgotten
				t.Errorf("BLOCK_STATUS: %d", e)
			}

			inject := newClient(t, l.dial()).greet(fixed)
			inject.write(join(option(optStartTLS), option(optStructuredReply)))
			inject.ended()

			name := newClient(t, l.dial()).greet(fixed)
			name.write(option(optExportName, []byte("vol")))
			if required {
				name.ended()
			} else {
				name.read(10)
			}
			if abort := newClient(t, l.dial()).greet(fixed); len(abort.must(optAbort)) != 0 {
				t.Error("ABORT")
			}
			if old := newClient(t, l.dial()).greet(0); !required {
				if kind, _, _ := old.ask(optStartTLS); kind != repErrPolicy {
					t.Errorf("STARTTLS of a client without the fixed handshake: %#x", kind)
				}
			}
		})
	}
}

func TestNew(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"List":        func(c *Config) { c.List = nil },
		"certificate": func(c *Config) { c.RequireTLS = true },
		"negative":    func(c *Config) { c.StallTime = -1 },
	} {
		c := only()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
