// Package library tests pkg/mcrdma with real daemons and, where there are to be
// switches, a real fabric, all in one process.
package library
