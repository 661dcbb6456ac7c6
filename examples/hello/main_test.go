package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/inproc"
)

func TestMain(m *testing.M) {
	if os.Getenv("MCRDMA_SOCKET") != "" && os.Getenv("HELLO") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestQuoted: the README quotes the program as it is, without its helper and the
// comment above the package.
func TestQuoted(t *testing.T) {
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(program), "func main() {\n")
	body, _, ok := strings.Cut(body, "\n}\n")
	if !ok || !strings.Contains(string(readme), "```go\n"+"func main() {\n"+body+"\n}\n```") {
		t.Errorf("README.md does not have, as a block of Go:\nfunc main() {\n%s\n}", body)
	}
}

// TestHello: the program on three hosts.
func TestHello(t *testing.T) {
	names := []string{"h1", "h2", "h3"}
	var hosts []inproc.Host
	var listeners []net.Listener
	for _, name := range names {
		addr := testenv.Loopback()
		l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		hosts = append(hosts, inproc.Host{Name: name, Address: addr, Daemon: l.Addr().String()})
	}
	sockets := map[string]string{}
	for i, h := range hosts {
		d, err := inproc.Start(t.Context(), inproc.Options{Name: h.Name, Address: h.Address, Listener: listeners[i],
			Hosts: slices.Concat(hosts[:i], hosts[i+1:])})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}()
		sockets[h.Name] = d.Socket()
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	hello := func(host string, args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), exe, args...)
		c.Env = append(os.Environ(), "HELLO=1", "MCRDMA_SOCKET="+sockets[host])
		return c
	}
	outputs := make(chan string, 2)
	for _, host := range names[1:] {
		go func() {
			out, err := hello(host).CombinedOutput()
			outputs <- fmt.Sprintf("%s%v", out, err)
		}()
	}
	out, err := hello("h1", names[1:]...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "2 of 2 have it; by hosts: ") {
		t.Fatalf("%v: %s", err, out)
	}
	for range 2 {
		if got := <-outputs; got != "Hello, all of you!\n<nil>" {
			t.Errorf("a receiver says %q", got)
		}
	}
}
