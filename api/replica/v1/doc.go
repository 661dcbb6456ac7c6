// Package replicav1 is the gRPC contract between hosts with copies of volumes.
package replicav1
