package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	p4config "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/google/renameio/v2"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/internal/grpcserver"
	"github.com/mcrdma/mcrdma/internal/softswitch"
	"github.com/mcrdma/mcrdma/internal/softswitch/fastpath"
	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/softswitch/ports"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
	"github.com/mcrdma/mcrdma/internal/unixsock"
)

// gracePeriod is how long running calls may take when the switch ends.
var gracePeriod = 2 * time.Second

// serve runs the switch until ctx or a signal ends it.
func (o *softswitchOptions) serve(ctx context.Context, stdout, stderr io.Writer) (err error) {
	ctx, stop := cli.Interruptible(ctx)
	defer stop()
	counters := make(chan os.Signal, 1)
	signal.Notify(counters, syscall.SIGUSR1)
	defer signal.Stop(counters)
	moved := make(chan os.Signal, 1)
	signal.Notify(moved, syscall.SIGUSR2)
	defer signal.Stop(moved)
	log, file, err := o.logger(stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.close()) }()

	sw, err := softswitch.New(softswitch.Config{CPUPort: o.cpuPort, DropPort: o.dropPort, Traffic: o.traffic, Rate: o.rate,
		PRE: pre.Limits{Groups: o.groups, Replicas: max(pre.DefaultReplicas, o.nodes1, o.nodes2)}, Log: log, LogMessages: o.detailed()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sw.Close()) }()
	server := p4rtserver.New(sw, p4rtserver.Options{DeviceID: o.deviceID, FastPath: sw.FastPath, Problems: sw.Problems})
	defer server.Close()
	if err := o.load(sw, server); err != nil {
		return err
	}
	creds, err := o.tls.credentials()
	if err != nil {
		return err
	}
	listener, err := listen(o.grpc)
	if err != nil {
		return err
	}
	defer listener.Close()
	fastPorts, err := o.attach(sw, log)
	if err != nil {
		return err
	}
	fast, err := o.accelerate(sw, fastPorts, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fast.close(sw)) }()
	g := grpc.NewServer(append(p4rtserver.ServerOptions(), creds...)...)
	server.Register(g)
	up := health.NewServer()
	up.SetServingStatus(p4.P4Runtime_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, up)
	reflection.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	defer func() {
		up.Shutdown()
		server.Close()
		stopGracefully(g)
	}()
	removeReady, err := o.ready(listener.Addr(), stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeReady()) }()
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() && !o.tls.on {
		log.Warn("any client that reaches this address controls the switch; --grpc-server-ssl and --grpc-server-with-client-auth protect it",
			"p4runtime", tcp.String())
	}
	log.Info("the switch runs", "p4runtime", listener.Addr().String(), "device", o.deviceID, "ports", len(o.ports), "program", o.program)

	for {
		select {
		case <-counters:
			logCounters(log, sw.Stats(), server.Stats())
			fast.log(sw, log)
		case <-moved:
			if err := file.reopen(); err != nil {
				log.Error("the log file is not opened again", "error", err)
			}
		case err := <-served:
			return fmt.Errorf("P4Runtime server: %w", err)
		case <-ctx.Done():
			stop() // another signal ends it at once
			cli.NotifySystemd("STOPPING=1")
			logCounters(log, sw.Stats(), server.Stats())
			fast.log(sw, log)
			return nil
		}
	}
}

// load loads the program of the command line, if there is one.
func (o *softswitchOptions) load(sw *softswitch.Switch, server *p4rtserver.Server) error {
	if o.program == "" {
		return nil
	}
	if filepath.Ext(o.program) == ".p4" {
		return fmt.Errorf("program %s: it is P4 source: compile it first, with p4c --target bmv2 --arch v1model --p4runtime-files INFO.txtpb, and name the JSON", o.program)
	}
	json, err := os.ReadFile(o.program)
	if err != nil {
		return fmt.Errorf("program: %w", err)
	}
	if o.p4info == "" {
		prog, err := program.Load(json)
		if err != nil {
			return fmt.Errorf("program %s: %w", o.program, err)
		}
		p, e, err := sw.NewPipeline(prog)
		if err != nil {
			return fmt.Errorf("program %s: %w", o.program, err)
		}
		sw.Load(p, e)
		return nil
	}
	text, err := os.ReadFile(o.p4info)
	if err != nil {
		return fmt.Errorf("--p4info: %w", err)
	}
	var info p4config.P4Info
	if errText := prototext.Unmarshal(text, &info); errText != nil {
		info.Reset()
		if errBinary := proto.Unmarshal(text, &info); errBinary != nil {
			return fmt.Errorf("--p4info %s: it is not P4Info, neither as text (%w) nor binary (%w); p4c writes it with --p4runtime-files",
				o.p4info, errText, errBinary)
		}
	}
	err = server.Preset(&p4.ForwardingPipelineConfig{P4Info: &info, P4DeviceConfig: json})
	if err != nil {
		return fmt.Errorf("program %s with %s: %s", o.program, o.p4info, status.Convert(err).Message())
	}
	return nil
}

// attach opens the ports, and returns those that are network interfaces.
func (o *softswitchOptions) attach(sw *softswitch.Switch, log *slog.Logger) (interfaces []fastpath.Port, err error) {
	for _, spec := range o.ports {
		options := ports.Options{Hint: func(text string) { log.Warn("frames are dropped", "port", spec.number, "why", text) }}
		p, err := spec.open(options)
		if err != nil {
			return nil, fmt.Errorf("port %d: %w", spec.number, err)
		}
		if i, ok := p.(*ports.Interface); ok {
			interfaces = append(interfaces, fastpath.Port{Number: spec.number, Name: spec.name, Index: i.Index()})
			if o.fastPath == fastOff { // which has its programs at this very interface
				p = ports.NewLasting(i, options)
			}
		}
		if o.pcap != "" {
			c, err := ports.Capture(p, o.pcap)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("--pcap: %w", err), p.Close())
			}
			p = c
		}
		if err := sw.Attach(spec.number, p); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return interfaces, nil
}

// listen listens on HOST:PORT or unix:PATH.
func listen(addr string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		l, err := unixsock.Listen(path, 0o600) // a program that may connect controls the switch
		if err != nil {
			return nil, fmt.Errorf("--grpc-server-addr %s: %w", addr, err)
		}
		return l, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, grpcserver.CannotListen("--grpc-server-addr", addr, err)
	}
	return l, nil
}

func (t *tlsOptions) credentials() ([]grpc.ServerOption, error) {
	if !t.on {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(t.cert, t.key)
	if err != nil {
		return nil, fmt.Errorf("--grpc-server-cert %s, --grpc-server-key %s: %w", t.cert, t.key, err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, fmt.Errorf("--grpc-server-cacert: %w", err)
		}
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--grpc-server-cacert %s: there is no PEM certificate in it", t.ca)
		}
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if t.clientAuth {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(c))}, nil
}

// stopGracefully lets running calls end, for a while.
func stopGracefully(g *grpc.Server) {
	late := time.AfterFunc(gracePeriod, g.Stop)
	defer late.Stop()
	g.GracefulStop()
}

// ready reports that the switch works (on stdout, to the service manager and in
// the ready file), and returns a function that removes the ready file.
func (o *softswitchOptions) ready(addr net.Addr, stdout io.Writer) (remove func() error, err error) {
	remove = func() error { return nil }
	if o.readyFile != "" {
		if err := renameio.WriteFile(o.readyFile, []byte(addr.String()+"\n"), 0o644); err != nil {
			return nil, fmt.Errorf("--ready-file: %w", err)
		}
		remove = func() error { return os.Remove(o.readyFile) }
	}
	what := "no program yet"
	if o.program != "" {
		what = "program " + o.program
	}
	if _, err := fmt.Fprintf(stdout, "ready: P4Runtime on %v, device %d, %d ports, %s\n", addr, o.deviceID, len(o.ports), what); err != nil {
		return nil, errors.Join(fmt.Errorf("ready line: %w", err), remove())
	}
	cli.CollectSeldom()
	cli.NotifySystemd("READY=1")
	return remove, nil
}

// logCounters logs counters that may show why packets are missing.
func logCounters(log *slog.Logger, st softswitch.Stats, p4rt p4rtserver.Stats) {
	for _, p := range st.Ports {
		log.Info("counters", "port", p.Number, "name", p.Name, "up", p.Up, "rx_packets", p.RxPackets, "rx_bytes", p.RxBytes,
			"tx_packets", p.TxPackets, "tx_bytes", p.TxBytes, "drops", p.Drops)
		for class, q := range p.Classes {
			log.Info("counters", "port", p.Number, "class", class, "queued", q.Queued, "queue_bytes", q.Waiting.Bytes,
				"queue_peak", q.Peak.Bytes, "queue_drops", q.Dropped)
		}
	}
	log.Info("counters", "frames", st.Traffic.Arrived, "without_program", st.Traffic.NoPipeline, "without_class", st.Traffic.NoClass, "to_no_port", st.NoPort,
		"packet_ins", st.PacketIns, "packet_outs", st.PacketOuts, "pipeline", nonZero(st.Pipeline), "p4runtime", nonZero(p4rt))
}
