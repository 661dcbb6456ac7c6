// Package grpcwindow sets options of gRPC connections for short calls: windows of a fixed size,
// and, at servers, goroutines that are kept with their grown stacks. By default gRPC measures the
// round trip with each message that it receives, by a separate ping and window update: short calls
// then cause three times as many packets, each of which wakes a process at either end.
package grpcwindow

import "google.golang.org/grpc"

// size is that of the windows of a stream and of a connection, in bytes. A message that is longer
// extends its stream's window when it is read. It bounds what a peer can have a process hold that
// does not read.
const size = 1 << 20

// Dial are options of a client.
func Dial() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithStaticStreamWindowSize(size), grpc.WithStaticConnWindowSize(size)}
}

// workers is how many calls a server answers at once with goroutines that it keeps; further ones get their own.
const workers = 16

// Serve are options of a server.
func Serve() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StaticStreamWindowSize(size), grpc.StaticConnWindowSize(size), grpc.NumStreamWorkers(workers)}
}
