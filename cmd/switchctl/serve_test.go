package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/pcapfile"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/qp/softroce/framelink"
)

// A running is a switch or an agent in this process.
type running struct {
	addr   string
	stop   func()
	code   chan int
	stderr *testenv.SyncBuffer
}

// startSwitch starts a switch and waits for its ready line. The test ends it.
func startSwitch(t *testing.T, args ...string) *running {
	t.Helper()
	return start(t, "ready: P4Runtime on %s", append([]string{"softswitch"}, args...)...)
}

// start starts one of the programs that say at which address they are ready.
func start(t *testing.T, ready string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, code: make(chan int, 1), stderr: &testenv.SyncBuffer{}}
	lines := make(lineWriter, 10)
	go func() { r.code <- run(ctx, args, lines, r.stderr) }()
	t.Cleanup(func() { r.end(t) })
	select {
	case line := <-lines:
		if _, err := fmt.Sscanf(line, ready, &r.addr); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		r.addr = strings.TrimSuffix(r.addr, ",")
	case code := <-r.code:
		r.code <- code
		t.Fatalf("exit code %d: %s", code, r.stderr)
	case <-time.After(patience):
		t.Fatal("not ready: ", r.stderr)
	}
	return r
}

// end stops the switch and checks that it ends in order.
func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	select {
	case code := <-r.code:
		r.code <- code
		if code != cli.ExitOK && !t.Failed() {
			t.Errorf("exit code %d: %s", code, r.stderr)
		}
	case <-time.After(patience):
		t.Error("it does not end: ", r.stderr)
	}
}

type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

func dial(t *testing.T, addr string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	if strings.HasPrefix(addr, "/") {
		addr = "unix:" + addr
	}
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// A host is the other end of a port's tunnel.
func host(t *testing.T) (h *framelink.Tunnel, spec string) {
	t.Helper()
	// The switch's end must be known in advance: a currently free port at an address that no other
	// process uses.
	c, err := net.ListenPacket("udp", netip.AddrPortFrom(testenv.Loopback(), 0).String())
	must(t, err)
	local := c.LocalAddr().String()
	c.Close()
	h, err = framelink.DialTunnel(framelink.TunnelConfig{Local: netip.MustParseAddrPort("127.0.0.1:0"), Remote: netip.MustParseAddrPort(local)})
	must(t, err)
	t.Cleanup(func() { h.Close() })
	return h, fmt.Sprintf("udp:%s,%v", local, h.LocalAddr())
}

func frame(n int, mark byte) []byte {
	f := bytes.Repeat([]byte{mark}, n)
	copy(f, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5})
	return f
}

// TestServe: a program from the command line, a controller over gRPC, frames
// through tunnels, packet-in, captures.
func TestServe(t *testing.T) {
	dir, json, info := files(t)
	a, specA := host(t)
	b, specB := host(t)
	r := startSwitch(t, json, "--p4info", info, "-i", "0@"+specA, "-i1@"+specB, "--device-id=7", "--pcap", dir, "--log-console",
		"--notifications-addr", "ipc:///x", "--max-mc-groups", "100", "--", "--grpc-server-addr", "127.0.0.1:0", "--cpu-port", "510")
	conn := dial(t, r.addr, insecure.NewCredentials())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	state, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "p4.v1.P4Runtime"})
	if err != nil || state.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", state, err)
	}
	refl, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	must(t, err)
	must(t, refl.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}))
	if list, err := refl.Recv(); err != nil || !strings.Contains(list.String(), "p4.v1.P4Runtime") {
		t.Errorf("reflection: %v, %v", list, err)
	}
	must(t, refl.CloseSend())

	client := p4.NewP4RuntimeClient(conn)
	config, err := client.GetForwardingPipelineConfig(ctx, &p4.GetForwardingPipelineConfigRequest{DeviceId: 7})
	must(t, err)
	var patch, forward, toCPU uint32
	for _, tb := range config.GetConfig().GetP4Info().GetTables() {
		if tb.GetPreamble().GetName() == "In.patch" {
			patch = tb.GetPreamble().GetId()
		}
	}
	for _, ac := range config.GetConfig().GetP4Info().GetActions() {
		switch ac.GetPreamble().GetName() {
		case "In.forward":
			forward = ac.GetPreamble().GetId()
		case "In.to_cpu":
			toCPU = ac.GetPreamble().GetId()
		}
	}
	stream, err := client.StreamChannel(ctx)
	must(t, err)
	election := &p4.Uint128{Low: 1}
	must(t, stream.Send(&p4.StreamMessageRequest{Update: &p4.StreamMessageRequest_Arbitration{
		Arbitration: &p4.MasterArbitrationUpdate{DeviceId: 7, ElectionId: election}}}))
	if m, err := stream.Recv(); err != nil || m.GetArbitration().GetStatus().GetCode() != int32(codes.OK) {
		t.Fatal("arbitration: ", m, err)
	}
	entry := func(port byte, action *p4.Action) *p4.Update {
		return &p4.Update{Type: p4.Update_INSERT, Entity: &p4.Entity{Entity: &p4.Entity_TableEntry{TableEntry: &p4.TableEntry{TableId: patch,
			Match:  []*p4.FieldMatch{{FieldId: 1, FieldMatchType: &p4.FieldMatch_Exact_{Exact: &p4.FieldMatch_Exact{Value: []byte{port}}}}},
			Action: &p4.TableAction{Type: &p4.TableAction_Action{Action: action}}}}}}
	}
	_, err = client.Write(ctx, &p4.WriteRequest{DeviceId: 7, ElectionId: election, Updates: []*p4.Update{
		entry(0, &p4.Action{ActionId: forward, Params: []*p4.Action_Param{{ParamId: 1, Value: []byte{1}}}}),
		entry(1, &p4.Action{ActionId: toCPU}),
	}})
	must(t, err)

	must(t, a.Send([][]byte{frame(90, 1)}))
	frames := make([][]byte, 1)
	if _, err := b.Recv(frames); err != nil || !bytes.Equal(frames[0], frame(90, 1)) {
		t.Errorf("forwarded %x, %v", frames[0], err)
	}
	must(t, b.Send([][]byte{frame(91, 2)}))
	if m, err := stream.Recv(); err != nil || !bytes.Equal(m.GetPacket().GetPayload(), frame(91, 2)) {
		t.Errorf("packet-in %v, %v", m, err)
	}
	// With the stream open: ending must not wait for the controller.
	gracePeriod = time.Hour
	defer func(d time.Duration) { gracePeriod = d }(2 * time.Second)
	r.end(t)
	if s := r.stderr.String(); !strings.Contains(s, "note: --notifications-addr") || !strings.Contains(s, "rx_packets=1") || !strings.Contains(s, "pipeline=\"map[Emitted:2 Received:2]\"") {
		t.Errorf("log: %s", s)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	for suffix, want := range map[string][]byte{specA + "_in": frame(90, 1), specB + "_out": frame(90, 1), specB + "_in": frame(91, 2)} {
		got, err := (&pcapfile.Tail{Name: filepath.Join(dir, suffix+".pcap")}).Read()
		if err != nil || len(got) != 1 || !bytes.Equal(got[0].Data, want) {
			t.Errorf("capture %s: %v, %v", suffix, got, err)
		}
	}
}

// TestNoInfo: a program without P4Info runs, but a controller has to load it.
func TestNoInfo(t *testing.T) {
	_, json, _ := files(t)
	r := startSwitch(t, json, "--grpc-server-addr", "127.0.0.1:0", "-L", "off")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := p4.NewP4RuntimeClient(dial(t, r.addr, insecure.NewCredentials()))
	if got, err := c.GetForwardingPipelineConfig(ctx, &p4.GetForwardingPipelineConfigRequest{}); err != nil || got.GetConfig() != nil {
		t.Errorf("%v, %v", got, err)
	}
	r.end(t)
	if s := r.stderr.String(); s != "" {
		t.Errorf("it logs although that is off: %s", s)
	}
}

func TestNoP4IgnoresProgram(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	r := startSwitch(t, "no-such.json", "--no-p4", "--grpc-server-addr", "127.0.0.1:0", "--log-file", log, "--log-flush",
		"--priority-queues", "1", "--max-port-count", "9", "--enable-swap")
	r.end(t)
	if s := r.stderr.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "no-such.json is ignored because of --no-p4") {
		t.Errorf("standard error: %s", s)
	}
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "the switch runs") {
		t.Errorf("log: %s, %v", b, err)
	}
}

// TestUnixSocket: the socket that a killed switch has left behind is replaced.
func TestUnixSocket(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "p4rt")
	l, err := net.Listen("unix", sock)
	must(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, l.Close())
	r := startSwitch(t, "--no-p4", "--grpc-server-addr", "unix:"+sock)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := p4.NewP4RuntimeClient(dial(t, r.addr, insecure.NewCredentials())).Capabilities(ctx, &p4.CapabilitiesRequest{}); err != nil {
		t.Error(err)
	}
}

// TestSystemd: READY=1 comes, and STOPPING=1 at the end.
func TestSystemd(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenPacket("unixgram", name)
	must(t, err)
	defer c.Close()
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	t.Setenv("NOTIFY_SOCKET", name)
	r := startSwitch(t, "--no-p4", "--grpc-server-addr", "127.0.0.1:0")
	r.end(t)
	for _, want := range []string{"READY=1", "STOPPING=1"} {
		b := make([]byte, 100)
		if n, _, err := c.ReadFrom(b); err != nil || string(b[:n]) != want {
			t.Errorf("%q, %v, want %s", b[:n], err, want)
		}
	}
}

// pemFiles writes a CA and a certificate from it for 127.0.0.1, for servers and clients, and
// returns the files' names.
func pemFiles(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		name = filepath.Join(dir, name)
		must(t, os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return name
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &caKey.PublicKey, caKey)
	must(t, err)
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, &leafKey.PublicKey, caKey)
	must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(leafKey)
	must(t, err)
	return write("ca.pem", "CERTIFICATE", rootDER), write("cert.pem", "CERTIFICATE", leafDER), write("key.pem", "EC PRIVATE KEY", keyDER)
}

// TestTLS: only a client with a certificate can connect, if that is required.
func TestTLS(t *testing.T) {
	ca, cert, key := pemFiles(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	pool := x509.NewCertPool()
	text, err := os.ReadFile(ca)
	must(t, err)
	pool.AppendCertsFromPEM(text)
	_, other, otherKey := pemFiles(t)
	stranger, err := tls.LoadX509KeyPair(other, otherKey)
	must(t, err)
	server := []string{"--no-p4", "--grpc-server-addr", "127.0.0.1:0", "--grpc-server-ssl", "--grpc-server-cert", cert, "--grpc-server-key", key}
	for _, c := range []struct {
		name   string
		args   []string
		client credentials.TransportCredentials
		ok     bool
	}{
		{"plain", nil, insecure.NewCredentials(), false},
		{"server only", nil, credentials.NewTLS(&tls.Config{RootCAs: pool}), true},
		{"optional, none", []string{"--grpc-server-cacert", ca}, credentials.NewTLS(&tls.Config{RootCAs: pool}), true},
		{"demanded, none", []string{"--grpc-server-cacert", ca, "--grpc-server-with-client-auth"}, credentials.NewTLS(&tls.Config{RootCAs: pool}), false},
		{"demanded, a stranger's", []string{"--grpc-server-cacert", ca, "--grpc-server-with-client-auth"},
			credentials.NewTLS(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{stranger}}), false},
		{"demanded", []string{"--grpc-server-cacert", ca, "--grpc-server-with-client-auth"},
			credentials.NewTLS(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startSwitch(t, append(server, c.args...)...)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, err := p4.NewP4RuntimeClient(dial(t, r.addr, c.client)).Capabilities(ctx, &p4.CapabilitiesRequest{})
			if (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
		})
	}
	bad := append(server, "--grpc-server-cacert", key)
	if code, _, stderr := call(append([]string{"softswitch"}, bad...)...); code != cli.ExitFailure || !strings.Contains(stderr, "no PEM certificate") {
		t.Errorf("%d, %s", code, stderr)
	}
}
