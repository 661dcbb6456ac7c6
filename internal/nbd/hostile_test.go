package nbd

import (
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// conversation is what a client says from its flags to DISC.
func conversation() []byte {
	data := make([]byte, 3000)
	return join(be32(fixed), option(optStructuredReply), option(optList), option(99, []byte("x")),
		option(optSetMetaContext, str("vol"), be32(1), str(contextAllocation)),
		option(optInfo, str("vol"), be16(1), be16(infoBlockSize)), option(optGo, str("vol"), be16(0)),
		req(cmdWrite, flagFUA, 1, 100, len(data), data), req(cmdRead, 0, 2, 0, 4096), req(cmdBlockStatus, 0, 3, 0, 1<<20),
		req(cmdWriteZeroes, 0, 4, 0, 512), req(cmdTrim, 0, 5, 0, 512), req(cmdFlush, 0, 6, 0, 0), req(cmdDisc, 0, 7, 0, 0))
}

// say sends words to a server, waits for the response unless hurry is set, and closes the
// connection. It discards the response.
func say(l *pipes, words []byte, hurry bool, rest func(net.Conn)) {
	conn := l.dial()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, conn)
	}()
	_, _ = conn.Write(words) // the server may have hung up
	if rest != nil {
		rest(conn)
	}
	if !hurry {
		synctest.Wait()
	}
	conn.Close()
	<-done
}

// TestTruncated: a conversation that ends at any byte leaves nothing.
func TestTruncated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		m := small("vol")
		m.pieces = 1024
		s := start(t, only(m), l)
		all := conversation()
		for n := range all {
			say(l, all[:n], true, nil)
			say(l, all[:n], false, nil)
		}
		synctest.Wait()
		if n := s.Stats(); n.Connections != 0 || n.Violations != 0 || n.Written < 3000*100 || !m.unused() {
			t.Errorf("%+v, buffers given back: %v", n, m.unused())
		}
	})
}

// TestGarbage: a session with changed, missing or additional bytes, followed by noise, ends; the
// server continues.
func TestGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		m := small("vol")
		s := start(t, only(m), l)
		random := rand.New(rand.NewPCG(1, 2))
		for range 3000 {
			words := conversation()
			for range 1 + random.IntN(3) {
				at := random.IntN(len(words))
				switch random.IntN(4) {
				case 0:
					words[at] = byte(random.Uint32())
				case 1:
					words[at] ^= 1 << random.IntN(8)
				case 2:
					words = append(words[:at:at], words[min(len(words), at+1+random.IntN(20)):]...)
				case 3:
					noise := make([]byte, random.IntN(40))
					for i := range noise {
						noise[i] = byte(random.Uint32())
					}
					words = join(words[:at], noise, words[at:])
				}
			}
			say(l, words, random.IntN(5) == 0, nil)
		}
		synctest.Wait()
		n := s.Stats()
		if n.Connections != 0 || !m.unused() {
			t.Errorf("%+v, buffers given back: %v", n, m.unused())
		}
		if n.Handshakes < 100 || n.Violations < 100 || n.Requests < 1000 || n.Errors < 30 {
			t.Errorf("the noise does not reach everything: %+v", n)
		}
		if c := newClient(t, l.dial()).enter("vol", false); c.do(cmdFlush, 0, 0, 0) != 0 {
			t.Error("no flush after that")
		}
	})
}

// TestFlood: options with as much data as can be announced, and requests that are refused
// without end, cost the server no memory, and end at once or with the client.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := start(t, only(small("vol")), l)
		from := time.Now()
		say(l, join(be32(fixed), option(99)[:12], be32(-1)), true, func(conn net.Conn) {
			for chunk := make([]byte, 1<<16); ; time.Sleep(700 * time.Millisecond) {
				if _, err := conn.Write(chunk); err != nil {
					return
				}
			}
		})
		if d := time.Since(from); d != 1400*time.Millisecond { // the next chunk after lingerTime
			t.Errorf("an option of 4 GiB ended after %v", d)
		}
		say(l, join(be32(fixed), option(optGo, str("vol"), be16(0))), true, func(conn net.Conn) {
			for range 20000 {
				if _, err := conn.Write(req(77, 0xffff, 1, -1, -1)); err != nil {
					t.Fatal(err)
				}
			}
		})
		synctest.Wait()
		if n := s.Stats(); n.Connections != 0 || n.Errors < 19000 {
			t.Errorf("%+v", n)
		}
	})
}

// TestUnread: replies that the client does not read are bounded in number.
func TestUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		config := only(small("vol"))
		config.MaxRequests = 5
		s := start(t, config, l)
		c := newClient(t, l.dial()).enter("vol", false)
		go func() {
			for range 1000 {
				if _, err := c.conn.Write(req(cmdFlush, 0, 1, 0, 0)); err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		if n := s.Stats().Requests; n != 5 {
			t.Errorf("%d requests carried out, and none of their replies was read", n)
		}
	})
}
