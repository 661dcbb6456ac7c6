// Package orders defines the orders to the application of the fault matrix
// (tests/chaos/app). Lines are as in package tests/e2e/orders.
package orders

import "github.com/mcrdma/mcrdma/tests/chaos/plan"

// What there is to do; behind it the types of its arguments and its result.
const (
	Open   = "open"   // OpenArgs: opens the device and dials the daemon
	Listen = "listen" // ListenArgs: offers a group's service
	Create = "create" // CreateArgs, CreateResult: makes a group
	Work   = "work"   // Name: begins to submit operations
	Finish = "finish" // FinishArgs: submits no more, waits for all, and closes the group
	Settle = "settle" // FinishArgs: waits until the membership has ended, if there was one
	Left   = "left"   // LeftResult: what there still is
)

// Watched is the first argument of an application that is none: the others are a socket of
// package watch, and the command that it has watched.
const Watched = "watched"

// OpenArgs say who the application is.
type OpenArgs struct {
	Device string `json:"device"`
	Socket string `json:"socket"`
	Dir    string `json:"dir"` // of journals and memory
	Host   string `json:"host"`
	Life   int    `json:"life"` // counts the applications of the host from 0
}

// ListenArgs name the group.
type ListenArgs struct {
	Group plan.Group `json:"group"`
}

// CreateArgs say who the receivers are.
type CreateArgs struct {
	Group     plan.Group        `json:"group"`
	Addresses map[string]string `json:"addresses"` // of the hosts
}

// A CreateResult says how it is carried.
type CreateResult struct {
	Path string   `json:"path"`
	Why  []string `json:"why"`
}

// A Name names a group.
type Name struct {
	Name string `json:"name"`
}

// FinishArgs say how long to wait.
type FinishArgs struct {
	Name   string `json:"name"`
	Millis int    `json:"millis"`
}

// A LeftResult is what the device still has.
type LeftResult struct {
	QPs uint64 `json:"qps"`
}

// Files that an application leaves in Dir.

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
