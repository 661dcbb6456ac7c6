package p4rtserver

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// naive is the least that a P4Runtime server can do: entries by their key in a
// map, nothing checked. What it achieves is what gRPC and protobuf cost.
type naive struct {
	p4.UnimplementedP4RuntimeServer
	mu      sync.Mutex
	entries map[[4]byte]*p4.TableEntry
}

func (n *naive) Write(_ context.Context, req *p4.WriteRequest) (*p4.WriteResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, u := range req.GetUpdates() {
		e := u.GetEntity().GetTableEntry()
		key := [4]byte(e.GetMatch()[0].GetLpm().GetValue())
		if u.GetType() == p4.Update_DELETE {
			delete(n.entries, key)
		} else {
			n.entries[key] = e
		}
	}
	return &p4.WriteResponse{}, nil
}

// serve starts a gRPC server on loopback and returns a client of it.
func serve(b *testing.B, register func(grpc.ServiceRegistrar)) p4.P4RuntimeClient {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	g := grpc.NewServer(ServerOptions()...)
	register(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close(); g.Stop(); <-done })
	return p4.NewP4RuntimeClient(conn)
}

// BenchmarkWrite writes 10,000 routes and deletes them again, batch by batch,
// over loopback; entries/s is the figure that counts. "map" is the same without
// a switch. A second connection writes half of the batches where it says so.
func BenchmarkWrite(b *testing.B) {
	for _, batch := range []int{1, 100} {
		for _, kind := range []string{"switch", "map", "switch", "map"} {
			b.Run(fmt.Sprintf("%s/batch=%d", kind, batch), func(b *testing.B) {
				r, s := direct(b)
				n := &naive{entries: map[[4]byte]*p4.TableEntry{}}
				client := serve(b, func(g grpc.ServiceRegistrar) {
					if kind == "switch" {
						s.Register(g)
					} else {
						p4.RegisterP4RuntimeServer(g, n)
					}
				})
				benchWrites(b, r, client, batch)
			})
		}
	}
}

func benchWrites(b *testing.B, r *rig, client p4.P4RuntimeClient, batch int) {
	const routes = 10000
	var requests []*p4.WriteRequest
	for _, kind := range []p4.Update_Type{p4.Update_INSERT, p4.Update_DELETE} {
		for at := 0; at < routes; at += batch {
			req := &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{Low: 1}}
			for i := range batch {
				req.Updates = append(req.Updates, &p4.Update{Type: kind, Entity: routeEntity(r.ids, at+i)})
			}
			requests = append(requests, req)
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, err := client.Write(b.Context(), requests[i%len(requests)]); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(i*batch)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkApply is what the service itself costs, without gRPC.
func BenchmarkApply(b *testing.B) {
	r, s := direct(b)
	const n = 100
	ins := &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{Low: 1}}
	del := &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{Low: 1}}
	for i := range n {
		ins.Updates = append(ins.Updates, &p4.Update{Type: p4.Update_INSERT, Entity: routeEntity(r.ids, i)})
		del.Updates = append(del.Updates, &p4.Update{Type: p4.Update_DELETE, Entity: routeEntity(r.ids, i)})
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		for _, req := range []*p4.WriteRequest{ins, del} {
			if _, err := s.Write(b.Context(), req); err != nil {
				b.Fatal(describe(err))
			}
		}
		i++
	}
	b.ReportMetric(float64(i*2*n)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkRead reads 10,000 routes, without gRPC.
func BenchmarkRead(b *testing.B) {
	r, s := direct(b)
	const n = 10000
	req := &p4.WriteRequest{DeviceId: device, ElectionId: &p4.Uint128{Low: 1}}
	for i := range n {
		req.Updates = append(req.Updates, &p4.Update{Type: p4.Update_INSERT, Entity: routeEntity(r.ids, i)})
	}
	if _, err := s.Write(b.Context(), req); err != nil {
		b.Fatal(describe(err))
	}
	read := &p4.ReadRequest{DeviceId: device, Entities: []*p4.Entity{{Entity: &p4.Entity_TableEntry{TableEntry: &p4.TableEntry{TableId: r.ids["In.routes"]}}}}}
	b.ReportAllocs()
	for b.Loop() {
		if out, err := s.collect(read); err != nil || len(out.out) != n {
			b.Fatal(len(out.out), err)
		}
	}
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "entries/s")
}

// BenchmarkPacketIn is what a packet to a controller costs the packet path.
func BenchmarkPacketIn(b *testing.B) {
	_, s := direct(b)
	st := (*s.primaries.Load())[0]
	frame := make([]byte, 256)
	b.ReportAllocs()
	for b.Loop() {
		s.packetIn(frame)
		<-st.data
	}
}
