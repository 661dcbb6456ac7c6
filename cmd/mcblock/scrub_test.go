package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// TestScrubInPart: a host whose copy was compared only at some places is not said to be the same.
func TestScrubInPart(t *testing.T) {
	s := &osdmap.State{Hosts: []osdmap.Host{{ID: 1, Name: "h1"}, {ID: 2, Name: "h2"}, {ID: 3, Name: "h3"}}}
	s.Volumes = []osdmap.VolumeState{{Volume: osdmap.Volume{ID: 7, Name: "vol", Size: 8, Hosts: []core.ID{1, 2, 3}}}}
	for _, c := range []struct {
		first, second []core.ID // that are compared at the first place, and at the second
		left          []string
		text          string
	}{
		{[]core.ID{1, 2, 3}, []core.ID{1, 2, 3}, nil, ""},
		{[]core.ID{1, 2, 3}, []core.ID{1, 2}, []string{"h3"}, "not compared everywhere, since their copies were not up to date: h3\n"},
		{[]core.ID{1}, []core.ID{1, 3}, []string{"h2", "h3"}, "not compared everywhere, since their copies were not up to date: h2, h3\n"},
		{[]core.ID{1, 2}, []core.ID{1, 2}, []string{"h3"}, "not compared, since their copies were not up to date: h3\n"},
	} {
		r := scrubView{Volume: "vol", Size: 8, covered: map[string]int64{}}
		for i, ids := range [][]core.ID{c.first, c.second} {
			p := replica.Scrubbed{Offset: int64(4 * i), Length: 4}
			for _, id := range ids {
				p.Sums = append(p.Sums, replica.Sum{Host: id})
			}
			r.add(s, &p)
		}
		var b bytes.Buffer
		err := r.write(&b, &cli.Output{}, s, 7)
		if !slices.Equal(r.Left, c.left) || !strings.Contains(b.String(), c.text) || (err == nil) != (c.left == nil) {
			t.Errorf("%v, %v: left %v, error %v, %s", c.first, c.second, r.Left, err, b.String())
		}
	}
}
