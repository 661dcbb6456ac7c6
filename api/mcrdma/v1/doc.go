// Package mcrdmav1 is the gRPC contract between the parts of mcrdma: applications, daemons, switch
// agents and tools. The .proto files are the source; "make proto" generates the rest. Packages
// convert its messages into their own types at their boundary.
package mcrdmav1
