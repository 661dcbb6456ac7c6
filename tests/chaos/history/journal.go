package history

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// Kinds of operations.
const (
	Write    = "write"
	WriteImm = "writeimm"
	Send     = "send"
	SendImm  = "sendimm"
)

// The events of an Entry.
const (
	Created = "created" // sender: Members, MinSize, Regions, Text: the path
	Submit  = "submit"  // sender: N, Kind, Region, Offset, Size, Imm
	View    = "view"    // sender: View and its Members
	Done    = "done"    // sender: N, the View in which it was completed, and Text if it failed
	Removed = "removed" // sender: Member, and N, the first operation that it may lack
	Added   = "added"   // sender: Member, and N, the first operation that it has
	Note    = "note"    // any process: Text to be shown
	Over    = "over"    // sender: the group has ended, by Text
	Joined  = "joined"  // member
	Receive = "receive" // member: Kind, Size, Imm, Sum
	Ended   = "ended"   // member: its membership has ended, by Text
)

// An Entry is one event. Operations are counted from 0.
type Entry struct {
	At      int64    `json:"at"` // µs since 1970
	What    string   `json:"what"`
	N       uint64   `json:"n,omitempty"`
	Kind    string   `json:"kind,omitempty"`
	Region  int      `json:"region,omitempty"`
	Offset  int      `json:"offset,omitempty"`
	Size    int      `json:"size,omitempty"`
	Imm     uint32   `json:"imm,omitempty"`
	Sum     uint32   `json:"sum,omitempty"`
	Member  string   `json:"member,omitempty"`
	Members []string `json:"members,omitempty"`
	View    uint32   `json:"view,omitempty"`
	MinSize int      `json:"min_size,omitempty"`
	Regions []int    `json:"regions,omitempty"`
	Text    string   `json:"text,omitempty"`
}

// MaxLine bounds an entry's line.
const MaxLine = 64 << 10

// Line returns the entry as a line of a journal.
func (e *Entry) Line() ([]byte, error) {
	b, err := json.Marshal(e)
	return append(b, '\n'), err
}

// Parse reads a journal. It ignores an incomplete last line, which a killed process may leave;
// anything else that is not an entry is an error.
func Parse(b []byte) ([]Entry, error) {
	var list []Entry
	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !whole {
			return list, nil
		}
		b = rest
		var e Entry
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if d.InputOffset() != int64(len(line)) || len(line) > MaxLine {
			return nil, fmt.Errorf("line %d: more than an entry", n)
		}
		list = append(list, e)
	}
}

// Fill returns the bytes of operation n of the group with that key; no two operations have the
// same.
func Fill(b []byte, key, n uint64) {
	x := mix(key) ^ mix(n+0x9e3779b97f4a7c15)
	for len(b) >= 8 {
		x += 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(b, mix(x))
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], mix(x+0x9e3779b97f4a7c15))
		copy(b, last[:])
	}
}

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum is the checksum of a message's bytes.
func Sum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
