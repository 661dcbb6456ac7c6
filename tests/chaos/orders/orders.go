// Package orders defines the orders to the application of the fault matrix
// (tests/chaos/app). Lines are as in package tests/e2e/orders.
package orders

import "github.com/mcrdma/mcrdma/tests/chaos/plan"

// The orders; the comments have the types of their arguments and results.
const (
	Open   = "open"   // OpenArgs: opens the device and dials the daemon
	Listen = "listen" // ListenArgs: offers a group's service
	Create = "create" // CreateArgs, CreateResult: makes a group
	Work   = "work"   // Name: begins to submit operations
	Finish = "finish" // FinishArgs: submits no more, waits for all, and closes the group
	Settle = "settle" // FinishArgs: waits until the membership has ended, if there was one
	Left   = "left"   // LeftResult: the resources that remain
)

// Watched is the first argument of a process that is no application: the others are a socket of
// package watch, and the command to watch.
const Watched = "watched"

// OpenArgs identify the application.
type OpenArgs struct {
	Device string `json:"device"`
	Socket string `json:"socket"`
	Dir    string `json:"dir"` // of journals and memory
	Host   string `json:"host"`
	Life   int    `json:"life"` // counts the applications of the host from 0
}

// ListenArgs identify the group.
type ListenArgs struct {
	Group plan.Group `json:"group"`
}

// CreateArgs have the receivers.
type CreateArgs struct {
	Group     plan.Group        `json:"group"`
	Addresses map[string]string `json:"addresses"` // of the hosts
}

// A CreateResult has the path of the group.
type CreateResult struct {
	Path string   `json:"path"`
	Why  []string `json:"why"`
}

// A Name names a group.
type Name struct {
	Name string `json:"name"`
}

// FinishArgs have the time to wait.
type FinishArgs struct {
	Name   string `json:"name"`
	Millis int    `json:"millis"`
}

// A LeftResult has the remaining resources of the device.
type LeftResult struct {
	QPs uint64 `json:"qps"`
}

// Files in Dir, by an application.

// SenderFile is the journal of a group's sender.
func SenderFile(group string) string { return group + ".sender" }

// MemberFile is the journal of a member; RegionFile its memory.
func MemberFile(group, host string, life int) string {
	return group + "." + host + "." + string(rune('0'+life)) + ".member"
}

// RegionFile is a region of a member.
func RegionFile(group, host string, life, region int) string {
	return group + "." + host + "." + string(rune('0'+life)) + ".region" + string(rune('0'+region))
}
