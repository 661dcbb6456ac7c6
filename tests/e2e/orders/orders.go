// Package orders defines the orders to the test application (tests/e2e/member) and its answers:
// lines of JSON on its standard input and output. Orders are carried out in parallel; answers come
// as they are ready.
package orders

import (
	"encoding/json"
	"time"
)

// An Order is one line to the application.
type Order struct {
	ID   int             `json:"id"`
	Do   string          `json:"do"`
	Args json.RawMessage `json:"args,omitempty"`
}

// An Answer is one line back.
type Answer struct {
	ID     int             `json:"id"`
	Error  string          `json:"error,omitempty"`
	Is     []string        `json:"is,omitempty"` // sentinels of pkg/mcrdma that the error wraps, such as "ErrDenied"
	Result json.RawMessage `json:"result,omitempty"`
}

// The orders; the comments have the type of Args, and that of the Result.
const (
	OpenDevice = "device"   // DeviceArgs, DeviceInfo: opens the device
	Dial       = "dial"     // DialArgs, HostInfo: connects to the daemon; with the device, if one is open
	Listen     = "listen"   // ListenArgs: offers a service
	Unlisten   = "unlisten" // Name of the service
	Create     = "create"   // CreateArgs, GroupInfo: makes a group
	Info       = "info"     // Name, GroupInfo: of a group that it sends to
	Work       = "work"     // WorkArgs, WorkResult: writes and sends
	Beyond     = "beyond"   // BeyondArgs: a WRITE to a place that may not be
	Events     = "events"   // Name, []Event: of a group that it sends to, so far
	Close      = "close"    // Name: closes a group that it sends to
	Replica    = "replica"  // ReplicaArgs, ReplicaInfo: what it has received in a group
	Leave      = "leave"    // Name is the group's ID: leaves it
	Counters   = "counters" // map[string]uint64: of the device, and ProcessorTime
	FlowEnd    = "flowend"  // FlowEndArgs, FlowAddr: makes an end of a unicast connection
	FlowJoin   = "flowjoin" // FlowJoinArgs: connects it
	FlowRun    = "flowrun"  // FlowRunArgs, FlowResult: writes
	FlowSum    = "flowsum"  // Name, string: SHA-256 of what the end has in memory
)

// ProcessorTime is the application's processor time so far, in nanoseconds, among the device's
// counters.
const ProcessorTime = "processor_time"

// A Name names a group, a service or a flow's end.
type Name struct {
	Name string `json:"name"`
}

// DeviceArgs have the name of the device to open.
type DeviceArgs struct {
	Device string `json:"device"`
}

// A DeviceInfo describes the device.
type DeviceInfo struct {
	MTU int `json:"mtu"`
}

// DialArgs have the daemon's socket.
type DialArgs struct {
	Socket  string `json:"socket"`
	Program string `json:"program"`
}

// A HostInfo is the host according to its daemon.
type HostInfo struct {
	Host    string `json:"host"`
	Address string `json:"address"`
}

// ListenArgs offer a service.
type ListenArgs struct {
	Service string `json:"service"`
	Refuse  string `json:"refuse,omitempty"` // the policy refuses all requests, with this text
	// For each member: receives posted at a time and bytes of each.
	Receives    int `json:"receives,omitempty"`
	ReceiveSize int `json:"receive_size,omitempty"`
	Small       int `json:"small,omitempty"` // grants this many bytes fewer than the requested regions
	Stall       int `json:"stall,omitempty"` // milliseconds that the policy takes
}

// CreateArgs create a group, which gets this Name.
type CreateArgs struct {
	Name      string   `json:"name"`
	Service   string   `json:"service"`
	Receivers []string `json:"receivers"`
	Mode      string   `json:"mode"` // auto, require, off
	MinSize   int      `json:"min_size,omitempty"`
	DSCP      uint8    `json:"dscp,omitempty"`
	Regions   []uint64 `json:"regions,omitempty"` // lengths
	MTU       int      `json:"mtu,omitempty"`
	Algorithm string   `json:"algorithm,omitempty"`
	Transport string   `json:"transport,omitempty"`
	Depth     int      `json:"depth,omitempty"`
	// TypicalSize of an operation, bytes.
	TypicalSize int64 `json:"typical_size,omitempty"`
	Millis      int   `json:"millis,omitempty"` // until it times out; 0: a minute
	Cancel      int   `json:"cancel,omitempty"` // milliseconds until it is canceled; 0: it is not
}

// A Phase of forming a group.
type Phase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"`
}

// A GroupInfo is the group according to the library.
type GroupInfo struct {
	ID          string        `json:"id"`
	Path        string        `json:"path"` // switch, relay
	Why         []string      `json:"why"`
	Members     []string      `json:"members"` // addresses
	Tree        []string      `json:"tree"`
	Formation   uint32        `json:"formation"`
	MCID        uint32        `json:"mc_id"`
	MTU         int           `json:"mtu"`
	Phases      []Phase       `json:"phases"`
	Took        time.Duration `json:"took"` // of Create, by the caller's clock
	Posts       uint64        `json:"posts"`
	Completions uint64        `json:"completions"`
	Bytes       uint64        `json:"bytes"`
	Error       string        `json:"error,omitempty"`
}

// WorkArgs order operations, of kinds and sizes by turns, up to Depth in flight, with content from
// Seed.
type WorkArgs struct {
	Name   string   `json:"name"`
	Kinds  []string `json:"kinds"` // write, writeimm, send, sendimm
	Sizes  []int    `json:"sizes"`
	Count  int      `json:"count"`
	Depth  int      `json:"depth"`
	Seed   uint64   `json:"seed"`
	Pieces int      `json:"pieces,omitempty"` // of each payload; 0: one
	// Millis end the work after that time; with Count 0, only that ends it.
	Millis int `json:"millis,omitempty"`
	// Patience limits the time of all the work, in milliseconds; 0: a minute.
	Patience int `json:"patience,omitempty"`
}

// A WorkResult is the result of the work. The digests are of what every receiver must have.
type WorkResult struct {
	Done     int           `json:"done"`
	Bytes    uint64        `json:"bytes"`
	Took     time.Duration `json:"took"`
	Regions  []string      `json:"regions"`  // SHA-256 of each region
	Messages string        `json:"messages"` // SHA-256 over all two-sided messages in order
	Count    int           `json:"count"`    // of two-sided messages
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	Max      time.Duration `json:"max"`
}

// BeyondArgs have the place to write to, whether or not it exists.
type BeyondArgs struct {
	Name   string `json:"name"`
	Offset uint64 `json:"offset"`
	Size   int    `json:"size"`
}

// ReplicaArgs ask what was received in a group, after Count two-sided messages have arrived.
type ReplicaArgs struct {
	Group  string `json:"group"`
	Count  int    `json:"count"`
	Millis int    `json:"millis,omitempty"` // to wait; 0: ten seconds
}

// A ReplicaInfo is what a receiver has.
type ReplicaInfo struct {
	Regions  []string `json:"regions"`
	Messages string   `json:"messages"`
	Count    int      `json:"count"`
	Open     bool     `json:"open"` // the membership has not ended
	Ended    string   `json:"ended,omitempty"`
}

// An Event of a group.
type Event struct {
	Type    string `json:"type"`
	Address string `json:"address,omitempty"`
	Host    string `json:"host,omitempty"`
	Text    string `json:"text,omitempty"`
}

// FlowEndArgs make an end of an ordinary RC connection, with memory of Size bytes.
type FlowEndArgs struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// A FlowAddr is the data for the other end.
type FlowAddr struct {
	Addr string `json:"addr"`
	QPN  uint32 `json:"qpn"`
	VA   uint64 `json:"va"`
	RKey uint32 `json:"rkey"`
}

// FlowJoinArgs connect an end to another, both with that initial PSN.
type FlowJoinArgs struct {
	Name string   `json:"name"`
	Peer FlowAddr `json:"peer"`
	PSN  uint32   `json:"psn"`
	MTU  int      `json:"mtu"`
}

// FlowRunArgs order WRITEs of Size bytes, up to Depth in flight, until Millis have passed or Count
// have completed.
type FlowRunArgs struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`
	Depth  int    `json:"depth"`
	Count  int    `json:"count,omitempty"`
	Millis int    `json:"millis,omitempty"`
}

// A FlowResult is the result of these.
type FlowResult struct {
	Bytes uint64        `json:"bytes"`
	Took  time.Duration `json:"took"`
	Sum   string        `json:"sum"` // SHA-256 of what the other end must have
}
