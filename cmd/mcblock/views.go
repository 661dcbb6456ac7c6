package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// each converts the elements of a list. The result is not nil: in JSON it is a list.
func each[T, U any](list []T, convert func(T) U) []U {
	out := make([]U, len(list))
	for i, x := range list {
		out[i] = convert(x)
	}
	return out
}

// A volumeView is a volume in JSON.
type volumeView struct {
	ID        string    `json:"id"` // hexadecimal
	Name      string    `json:"name"`
	Size      int64     `json:"size"`       // bytes
	BlockSize int       `json:"block_size"` // bytes
	MinSize   int       `json:"min_size"`
	Epoch     uint64    `json:"epoch"`
	Primary   string    `json:"primary"` // empty: there was none yet
	Acting    []string  `json:"acting"`
	Hosts     []string  `json:"hosts"`
	Created   time.Time `json:"created"`
	Allow     []string  `json:"allow"` // clients that may open it; empty: all
}

func volume(s *osdmap.State, v osdmap.VolumeState) volumeView {
	j := volumeView{ID: fmt.Sprintf("%016x", v.Volume.ID), Name: v.Volume.Name, Size: v.Volume.Size, BlockSize: v.Volume.BlockSize,
		MinSize: v.Map.MinSize, Epoch: v.Map.Epoch, Created: v.Volume.Created.UTC(), Acting: each(v.Map.Acting, func(m core.Member) string { return s.HostName(m.ID) }),
		Hosts: s.HostNames(v.Volume.Hosts), Allow: append([]string{}, v.Volume.Allow...)}
	if v.Map.Since > 0 {
		j.Primary = s.HostName(v.Map.Primary.ID)
	}
	return j
}

func volumes(s *osdmap.State) []volumeView {
	list := each(s.Volumes, func(v osdmap.VolumeState) volumeView { return volume(s, v) })
	slices.SortFunc(list, func(a, b volumeView) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
