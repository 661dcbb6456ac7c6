// Package library tests pkg/mcrdma with real daemons and, for tests with switches, a real fabric,
// all in one process.
package library
