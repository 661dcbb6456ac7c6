// Package mcrdmav1 is the gRPC contract between the parts of mcrdma: what a daemon asks of
// a switch's agent, what agents ask of each other, and what tools ask of an agent. The
// .proto files are the source; "make proto" generates the rest. Others convert its
// messages into types of their own at their border, and hold none of them inside.
package mcrdmav1
