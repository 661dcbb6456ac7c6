package osdmap

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
)

// Formats of records. Each is written in the oldest one that can say it, so that programs that are not updated
// yet can read it.
const (
	first    = 1
	allowed  = 2 // of volumes with Allow: a program that does not know it would serve them to all
	replaced = 3 // of volumes with Map.Former, which older programs would take for damage
)

// Keys: hosts/<id>, volumes/<id>, names/<name>, whose value is the id of the volume, and deleted/<id>.
const (
	hostPrefix    = "hosts/"
	volumePrefix  = "volumes/"
	namePrefix    = "names/"
	deletedPrefix = "deleted/"
)

func hostKey(id core.ID) string   { return fmt.Sprintf("%s%08x", hostPrefix, uint32(id)) }
func volumeKey(id uint64) string  { return fmt.Sprintf("%s%016x", volumePrefix, id) }
func nameKey(name string) string  { return namePrefix + name }
func damaged(err error) error     { return fmt.Errorf("%w: %w", ErrDamaged, err) }
func isHost(key string) bool      { return strings.HasPrefix(key, hostPrefix) }
func isVolume(key string) bool    { return strings.HasPrefix(key, volumePrefix) }
func deletedKey(id uint64) string { return fmt.Sprintf("%s%016x", deletedPrefix, id) }
func nameRecord(id uint64) []byte { return fmt.Appendf(nil, "%016x", id) }

type hostRecord struct {
	Format int  `json:"format"`
	Host   Host `json:"host"`
}

type volumeRecord struct {
	Format int      `json:"format"`
	Volume Volume   `json:"volume"`
	Map    core.Map `json:"map"`
}

// ofHost is the record of a host.
func ofHost(h Host) []byte { return encode(hostRecord{first, h}) }

// ofVolume is the record of a volume.
func ofVolume(v Volume, m core.Map) []byte { return encode(volumeRecord{v.format(&m), v, m}) }

func (v *Volume) format(m *core.Map) int {
	switch {
	case len(m.Former) > 0:
		return replaced
	case len(v.Allow) > 0:
		return allowed
	}
	return first
}

// encode makes a record of a struct that has no values that JSON lacks.
func encode(record any) []byte {
	b, err := json.Marshal(record)
	if err != nil {
		panic(err)
	}
	return b
}

// decode reads a record, of which this program knows the formats up to the newest: first its format, then all of it.
func decode(data []byte, record any, newest int) error {
	if len(data) > maxRecord {
		return damaged(fmt.Errorf("%d bytes, more than %d", len(data), maxRecord))
	}
	var f struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return damaged(err)
	}
	if f.Format > newest {
		return fmt.Errorf("%w: it has format %d, and this program knows formats up to %d: update it on this host", ErrFormat, f.Format, newest)
	}
	if f.Format < 1 {
		return damaged(fmt.Errorf("format %d", f.Format))
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(record); err != nil {
		return damaged(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return damaged(fmt.Errorf("something follows the record"))
	}
	return nil
}

// parseHost reads the record of a host under its key.
func parseHost(key string, data []byte) (Host, error) {
	var r hostRecord
	if err := decode(data, &r, first); err != nil {
		return Host{}, fmt.Errorf("osdmap: record %q: %w", key, err)
	}
	err := r.Host.Check()
	if err == nil && hostKey(r.Host.ID) != key {
		err = fmt.Errorf("it is of host %d", r.Host.ID)
	}
	if err != nil {
		return Host{}, fmt.Errorf("osdmap: record %q: %w", key, damaged(err))
	}
	return r.Host, nil
}

// parseVolume reads the record of a volume under its key.
func parseVolume(key string, data []byte) (VolumeState, error) {
	var r volumeRecord
	if err := decode(data, &r, replaced); err != nil {
		return VolumeState{}, fmt.Errorf("osdmap: record %q: %w", key, err)
	}
	err := cmp.Or(r.Volume.Check(), r.Volume.CheckMap(r.Map))
	if err == nil && r.Format < r.Volume.format(&r.Map) {
		err = fmt.Errorf("format %d has no list of clients or of former hosts", r.Format)
	}
	if err == nil && volumeKey(r.Volume.ID) != key {
		err = fmt.Errorf("it is of volume %016x", r.Volume.ID)
	}
	if err != nil {
		return VolumeState{}, fmt.Errorf("osdmap: record %q: %w", key, damaged(err))
	}
	r.Map.Up = r.Volume.Hosts
	return VolumeState{r.Volume, r.Map}, nil
}
