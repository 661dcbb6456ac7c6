package ports

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/mcrdma/mcrdma/internal/pcapfile"
)

// A named port has another name.
type named struct {
	Port
	name string
}

func (n named) Name() string { return n.name }

// tunnels are two ports that are joined; the name of the first has a slash.
func tunnels(t *testing.T) (Port, Port) {
	at := freeAddr(t)
	far := tunnel(t, at, Options{})
	near, err := OpenTunnel(TunnelConfig{Local: at, Remote: far.LocalAddr()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	return named{near, "udp:a/b"}, far
}

// freeAddr is an address that has just been free.
func freeAddr(t *testing.T) netip.AddrPort {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestCapture(t *testing.T) {
	dir := t.TempDir()
	near, far := tunnels(t)
	p, err := Capture(near, dir)
	if err != nil {
		t.Fatal(err)
	}
	in, out := [][]byte{frame(60, 1), frame(61, 2)}, [][]byte{frame(62, 3), frame(1514, 4)}
	far.Send(in)
	p.Send(out)
	bufs := room(2, 100)
	if n, err := p.Recv(bufs); n != 2 || err != nil || equal(bufs, in) != nil {
		t.Error(n, err)
	}
	check := func() {
		t.Helper()
		for suffix, want := range map[string][][]byte{"in": in, "out": out} {
			frames, err := (&pcapfile.Tail{Name: filepath.Join(dir, "udp:a_b_"+suffix+".pcap")}).Read()
			var got [][]byte
			for _, f := range frames {
				got = append(got, f.Data)
				if f.Len != len(f.Data) || f.Time.IsZero() {
					t.Errorf("%+v", f)
				}
			}
			if err = errors.Join(err, equal(got, want)); err != nil {
				t.Errorf("%s: %v", suffix, err)
			}
		}
	}
	check() // without Close
	if p.Name() != near.Name() || p.Stats().TxPackets != 2 {
		t.Error("it hides its port")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	p.Send(in)
	if _, err := p.Recv(bufs); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	check()
	if err := p.Close(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	far.Close()
}

func TestCaptureErrors(t *testing.T) {
	near, far := tunnels(t)
	defer near.Close()
	defer far.Close()
	if _, err := Capture(near, filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("optional: there is no /dev/full")
	}
	dir := t.TempDir()
	if err := os.Symlink("/dev/full", filepath.Join(dir, "udp:a_b_out.pcap")); err != nil {
		t.Fatal(err)
	}
	if _, err := Capture(near, dir); err == nil {
		t.Error("a full disk was not noticed")
	}
}
